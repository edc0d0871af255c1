//! The check before a write in place, alone: does a range of a file have any checksum?
//!
//! Asked of the same file with the switch `nocow_check` in both positions, in turn. A range with sums is what the
//! switch is about: the first that is found is the answer, or all are collected first. A range without them takes
//! the same walk both ways; it is what a file that is overwritten in place has.

use crate::interrupt;
use crate::report::statistics::{Spread, nanoseconds, number};
use papilio::{File, FileSystem, MkfsOptions, NocowCheck, OpenOptions, Tuning};
use papilio_oracle::Scratch;
use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

/// Arguments of the comparison.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Rounds; medians are shown
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How often each question is asked in a round
    #[arg(long, default_value_t = 20_000)]
    questions: u32,
}

/// Bytes of the files: an extent each.
const FILE: u64 = 8 << 20;
/// Bytes of the image.
const IMAGE: u64 = 512 << 20;
/// Bytes of the ranges that are asked for.
const RANGES: [u64; 4] = [4 << 10, 64 << 10, 1 << 20, FILE];

pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    interrupt::watch();
    anyhow::ensure!(arguments.rounds > 0 && arguments.questions > 0, "at least one round of one question");
    let scratch = Scratch::under(Path::new("/dev/shm"), IMAGE)?;
    let image = scratch.unique("image");
    papilio::mkfs(&image, &MkfsOptions::new().size(IMAGE))?;
    make_files(&image)?;
    println!("{:28} {:>12} {:>12}  first match is", "range", "first match", "collect all");
    for (name, file) in [("with checksums", "/summed"), ("without", "/unsummed")] {
        for bytes in RANGES {
            let mut times = [Vec::new(), Vec::new()];
            for _ in 0..arguments.rounds {
                interrupt::check()?;
                for (check, times) in
                    [NocowCheck::FirstMatch, NocowCheck::CollectAll].into_iter().zip(&mut times)
                {
                    times.push(ask(&image, file, check, bytes, arguments.questions)?.as_secs_f64() * 1e9);
                }
            }
            let [first, all] = times.map(|times| Spread::of(times).median);
            let range = format!("{} KiB {name}", bytes >> 10);
            let ratio = number(all / first);
            println!("{range:28} {:>12} {:>12}  {ratio} times as fast", nanoseconds(first), nanoseconds(all));
        }
    }
    Ok(())
}

/// One file with checksums and one without, an extent each.
fn make_files(image: &Path) -> anyhow::Result<()> {
    let data: Vec<u8> = (0..FILE).map(|byte| (byte.wrapping_mul(2_654_435_761) >> 20) as u8).collect();
    for (name, unsummed) in [("/summed", false), ("/unsummed", true)] {
        let options = OpenOptions::new().write(true).no_data_sums(unsummed);
        let fs = FileSystem::open_with(image, &options)?;
        fs.create_file(name)?.write_at(&data, 0)?;
        fs.close()?;
    }
    Ok(())
}

/// How long one question takes, of many.
fn ask(image: &Path, name: &str, check: NocowCheck, bytes: u64, questions: u32) -> anyhow::Result<Duration> {
    let mut tuning = Tuning::default();
    tuning.nocow_check = check;
    let fs = FileSystem::open_with(image, &OpenOptions::new().write(true).tuning(tuning))?;
    let file: File = fs.open_file(name)?;
    let start = Instant::now();
    for question in 0..u64::from(questions) {
        // Another place each time, where there are several.
        let at = question % (FILE / bytes) * bytes;
        let found = file.has_checksums(black_box(at..at + bytes))?;
        anyhow::ensure!(found == (name == "/summed"), "{name} at {at}: {found}");
    }
    let took = start.elapsed() / questions;
    drop(file);
    fs.close()?;
    Ok(took)
}
