//! Times the check that precedes a write in place: does a range of a file have any checksum?
//!
//! Runs on the same files with both positions of the switch `nocow_check`, in turn. For a range
//! with checksums, `first-match` stops at the first one and `collect-all` collects them all. A
//! range without checksums, as in a nodatacow file, takes the same tree walk either way.

use crate::environment::has_slow_positions;
use crate::interrupt;
use crate::measure::print_line;
use crate::report::statistics::{Spread, nanoseconds, number};
use papilio::{File, FileSystem, MkfsOptions, NocowCheck, OpenOptions, Tuning};
use papilio_oracle::Scratch;
use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

/// Arguments of `nocow-check`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Number of rounds; the output shows medians
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Number of checks of each kind in a round
    #[arg(long, default_value_t = 20_000)]
    checks: u32,
}

/// Size of each file in bytes; each is one extent.
const FILE: u64 = 8 << 20;
/// Size of the image in bytes.
const IMAGE: u64 = 512 << 20;
/// Sizes of the checked ranges in bytes.
const RANGES: [u64; 4] = [4 << 10, 64 << 10, 1 << 20, FILE];

/// Runs the comparison and prints a row for each range.
///
/// # Errors
/// The library fails, or space is insufficient.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    interrupt::watch();
    anyhow::ensure!(
        arguments.rounds > 0 && arguments.checks > 0,
        "--rounds and --checks: must be at least 1"
    );
    anyhow::ensure!(
        has_slow_positions(),
        "this build lacks the slow positions of the switches; `make bench` builds them"
    );
    let scratch = Scratch::under(Path::new("/dev/shm"), IMAGE)?;
    let image = scratch.unique("image");
    papilio::mkfs(&image, &MkfsOptions::new().size(IMAGE))?;
    make_files(&image)?;
    print_line(format_args!("{:28} {:>12} {:>12}  first match is", "range", "first match", "collect all"))?;
    for (name, file) in [("with checksums", "/with"), ("without", "/without")] {
        for bytes in RANGES {
            let mut times = [Vec::new(), Vec::new()];
            for _ in 0..arguments.rounds {
                interrupt::check()?;
                for (check, times) in NocowCheck::ALL.iter().zip(&mut times) {
                    times
                        .push(time_check(&image, file, *check, bytes, arguments.checks)?.as_secs_f64() * 1e9);
                }
            }
            let [first, all] = times.map(|times| Spread::of(times).median);
            let range = format!("{} KiB {name}", bytes >> 10);
            let ratio = number(all / first);
            let (first, all) = (nanoseconds(first), nanoseconds(all));
            print_line(format_args!("{range:28} {first:>12} {all:>12}  {ratio} times as fast"))?;
        }
    }
    Ok(())
}

/// Creates one file with checksums and one without, each of one extent.
fn make_files(image: &Path) -> anyhow::Result<()> {
    let data: Vec<u8> = (0..FILE).map(|byte| (byte.wrapping_mul(2_654_435_761) >> 20) as u8).collect();
    for (name, no_checksums) in [("/with", false), ("/without", true)] {
        let options = OpenOptions::new().write(true).no_data_sums(no_checksums);
        let fs = FileSystem::open_with(image, &options)?;
        fs.create_file(name)?.write_all_at(&data, 0)?;
        fs.close()?;
    }
    Ok(())
}

/// Returns the mean time of one check.
fn time_check(
    image: &Path,
    name: &str,
    check: NocowCheck,
    bytes: u64,
    checks: u32,
) -> anyhow::Result<Duration> {
    let mut tuning = Tuning::default();
    tuning.nocow_check = check;
    let fs = FileSystem::open_with(image, &OpenOptions::new().write(true).tuning(tuning))?;
    let file: File = fs.open_file(name)?;
    let start = Instant::now();
    for number in 0..u64::from(checks) {
        // Cycles through the ranges of the file.
        let at = number % (FILE / bytes) * bytes;
        let found = file.has_checksums(black_box(at..at + bytes))?;
        anyhow::ensure!(found == (name == "/with"), "{name} at {at}: has_checksums returned {found}");
    }
    let took = start.elapsed() / checks;
    drop(file);
    fs.close()?;
    Ok(took)
}
