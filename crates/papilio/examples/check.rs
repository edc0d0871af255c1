//! Checks an image: `cargo run --release --example check -- [--data] IMAGE [DEVICE ...]`.

use papilio::{CheckOptions, OpenOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (flags, paths): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|argument| argument.starts_with("--"));
    let (image, others) = paths.split_first().ok_or("usage: check [--data] IMAGE [DEVICE ...]")?;
    let open = others.iter().fold(OpenOptions::new(), |open, path| open.device(path));
    let options = CheckOptions::new().data_csum(flags.iter().any(|flag| flag == "--data"));
    let report = papilio::check(image, &open, &options)?;
    for finding in report.findings.iter().take(100) {
        println!("{finding}");
    }
    for note in &report.notes {
        println!("note: {note}");
    }
    println!("{:?}", report.counts);
    println!("{:#?}", report.statistics);
    if !report.is_clean() {
        std::process::exit(1);
    }
    Ok(())
}
