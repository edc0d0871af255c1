//! Replays inputs found by the fuzz target `mount_walk`: `cargo run --release --example replay --
//! FILE...`

use papilio_simulator::{BaseImage, exercise, mutate};
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let images = [
        BaseImage::load(include_bytes!("../../../tests/fixtures/fuzz-default.img.zst")),
        BaseImage::load(include_bytes!("../../../tests/fixtures/fuzz-mixed.img.zst")),
    ];
    for path in std::env::args_os().skip(1) {
        let data = std::fs::read(&path)?;
        let (choice, plan) = data.split_first().ok_or("the input file is empty")?;
        let start = Instant::now();
        let summary = exercise(mutate(&images[usize::from(choice % 2)], plan));
        println!("{}: {summary:?} in {:?}", path.display(), start.elapsed());
    }
    Ok(())
}
