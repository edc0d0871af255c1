//! `papilio bench latency`: how much of a slow device's parallelism Papilio uses.
//!
//! The devices are memory that answers each request after the same time. The figure of each row is
//! the part of what the device allows: requests in flight divided by the time of one. No other side
//! takes part, because the kernel has no such device without modules.

use crate::measure::print_line;
use papilio::device::{Device, MemoryDevice};
use papilio::{
    DelayDevice, File, FileSystem, IoOperation, IoQueue, IoRequest, MkfsOptions, OpenOptions, RaidProfile,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Arguments of `latency`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Time of a request in microseconds
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    delay_us: u64,
    /// Seconds of each measurement of reads
    #[arg(long, default_value_t = 2.0)]
    runtime: f64,
    /// Files to look up
    #[arg(long, default_value_t = 10_000)]
    files: u64,
    /// Threads that look them up
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=1024))]
    callers: u64,
}

/// Size of a device in bytes.
const DEVICE: u64 = 1 << 30;
/// Size of the file that is read, in bytes.
const FILE: u64 = 128 << 20;
/// Bytes of a read.
const BLOCK: usize = 4096;
/// The devices of the striped file system.
const STRIPES: usize = 4;

/// Runs the measurements and prints a row for each.
///
/// # Errors
/// The library fails.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let delay = Duration::from_micros(arguments.delay_us);
    let memory = prepared(1, arguments.files)?;
    let fs = open(&memory, delay, false)?;
    let file = Arc::new(fs.open_file("/data")?);
    for depth in [1, 16, 64, 256] {
        let rate = reads(&file, depth, arguments.runtime)?;
        row(&format!("random reads, depth {depth}"), rate, depth as f64 / delay.as_secs_f64())?;
    }
    drop((file, fs));
    for callers in [1, arguments.callers] {
        let fs = open(&memory, delay, false)?;
        let rate = lookups(&fs, arguments.files.min(callers * 1000), callers)?;
        row(&format!("uncached stat, {callers} callers"), rate, callers as f64 / delay.as_secs_f64())?;
    }
    let striped = prepared(STRIPES, 0)?;
    let depth = 16 * STRIPES;
    let rate = |devices: &[Arc<dyn Device>]| -> anyhow::Result<f64> {
        let fs = open(devices, delay, true)?;
        reads(&Arc::new(fs.open_file("/data")?), depth, arguments.runtime)
    };
    let (one, several) = (rate(&memory)?, rate(&striped)?);
    print_line(format_args!(
        "{:32} one device {one:9.0}/s  RAID0 of {STRIPES} {several:9.0}/s  {:.2} times",
        format!("one head a device, depth {depth}"),
        several / one
    ))
}

fn row(name: &str, rate: f64, most: f64) -> anyhow::Result<()> {
    print_line(format_args!("{name:32} {rate:9.0}/s of {most:9.0}/s  {:.2}", rate / most))
}

/// Returns devices in memory with a file system, striped over several, that holds the files.
fn prepared(devices: usize, files: u64) -> anyhow::Result<Vec<Arc<dyn Device>>> {
    let devices: Vec<Arc<dyn Device>> =
        (0..devices).map(|_| Arc::new(MemoryDevice::new(DEVICE)) as Arc<dyn Device>).collect();
    let mut options = MkfsOptions::new();
    if devices.len() > 1 {
        options = options.data_profile(RaidProfile::Raid0).metadata_profile(RaidProfile::Raid1);
    }
    papilio::mkfs_devices(&devices, &options)?;
    let fs = FileSystem::from_devices(devices.clone(), &OpenOptions::new().write(true))?;
    let file = fs.create_file("/data")?;
    let piece = vec![7; 1 << 20];
    for offset in (0..FILE).step_by(piece.len()) {
        file.write_all_at(&piece, offset)?;
    }
    drop(file);
    for number in 0..files {
        // Directories of their own, so that each look-up needs other tree blocks.
        if number % 100 == 0 {
            fs.create_dir(format!("/d{}", number / 100))?;
        }
        fs.create_file(path(number))?;
    }
    fs.close()?;
    Ok(devices)
}

fn path(number: u64) -> String {
    format!("/d{}/file{number}", number / 100)
}

fn open(devices: &[Arc<dyn Device>], delay: Duration, one_at_a_time: bool) -> anyhow::Result<FileSystem> {
    let delayed = devices.iter().map(|device| -> std::io::Result<Arc<dyn Device>> {
        let delayed = DelayDevice::new(Arc::clone(device), delay)?;
        Ok(Arc::new(if one_at_a_time { delayed.one_at_a_time() } else { delayed }))
    });
    let delayed = delayed.collect::<std::io::Result<Vec<_>>>()?;
    Ok(FileSystem::from_devices(delayed, &OpenOptions::new().write(true).commit_interval(None))?)
}

/// Reads at random for some seconds, and returns the reads of a second.
fn reads(file: &Arc<File>, depth: usize, seconds: f64) -> anyhow::Result<f64> {
    let blocks = FILE / BLOCK as u64;
    // Extents and checksums are cached first.
    let mut piece = vec![0; 1 << 20];
    for offset in (0..FILE).step_by(piece.len()) {
        file.read_at(&mut piece, offset)?;
    }
    let mut queue = IoQueue::with_threads(depth, 2)?;
    let mut random = fastrand::Rng::with_seed(1);
    let mut request = |buffer: Vec<u8>| {
        let operation = IoOperation::Read { buffer, offset: random.u64(..blocks) * BLOCK as u64 };
        IoRequest { file: Arc::clone(file), operation, token: 0 }
    };
    let start = Instant::now();
    for _ in 0..depth {
        assert!(queue.submit(request(vec![0; BLOCK])).is_ok(), "the queue has room");
    }
    let (mut done, mut count) = (Vec::with_capacity(depth), 0_u64);
    while start.elapsed().as_secs_f64() < seconds {
        queue.wait(1, &mut done);
        for completion in done.drain(..) {
            completion.result?;
            count += 1;
            let buffer = completion.buffer.expect("a read returns its buffer");
            assert!(queue.submit(request(buffer)).is_ok(), "the queue has room");
        }
    }
    Ok(count as f64 / start.elapsed().as_secs_f64())
}

/// Looks up files that are not cached from several threads, and returns the look-ups of a second.
fn lookups(fs: &FileSystem, files: u64, callers: u64) -> anyhow::Result<f64> {
    let next = AtomicU64::new(0);
    let start = Instant::now();
    std::thread::scope(|scope| {
        let caller = || -> papilio::Result<()> {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= files {
                    return Ok(());
                }
                // In an order that leaves neighbours to different moments.
                let number = number * 7919 % files;
                fs.metadata(path(number))?;
            }
        };
        let callers: Vec<_> = (0..callers).map(|_| scope.spawn(caller)).collect();
        callers.into_iter().try_for_each(|caller| caller.join().expect("no caller panics"))
    })?;
    Ok(files as f64 / start.elapsed().as_secs_f64())
}
