//! Converts an image in place, or rolls a conversion back: `convert_image IMAGE [-r|-n|-d]`.

use papilio_convert::{ConvertOptions, convert, rollback};
use papilio_device::{Access, Device, FileDevice};
use std::sync::Arc;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let image = arguments.next().ok_or("an image is needed")?;
    let rest: Vec<_> = arguments.collect();
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(&image, Access::ReadWrite)?);
    let begun = std::time::Instant::now();
    let mut stage = None;
    let mut report = |progress: papilio_convert::ConvertProgress| {
        if stage != Some(progress.stage) {
            eprintln!("{:?} at {:?}", progress.stage, begun.elapsed());
            stage = Some(progress.stage);
        }
    };
    if rest.iter().any(|option| option == "-r") {
        println!("{:?}", rollback(&device, &mut report)?);
    } else {
        let has = |option: &str| rest.iter().any(|given| given == option);
        let options = ConvertOptions::new().inline(!has("-n")).data_checksums(!has("-d"));
        println!("{:?}", convert(&device, &options, &mut report)?);
    }
    eprintln!("done at {:?}", begun.elapsed());
    Ok(())
}
