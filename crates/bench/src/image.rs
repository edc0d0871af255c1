//! Makes an image from a directory with `papilio mkfs --rootdir`, with `mkfs.btrfs --rootdir`, and
//! with the kernel (mount, `cp -a`, unmount), in turn.
//!
//! The time covers everything from no image to a closed one. The memory is the peak of the program
//! itself, without the kernel's. The space is that of the finished image.

use crate::interrupt;
use crate::measure::{Times, print_line};
use crate::report::statistics::number;
use anyhow::{Context, bail};
use papilio_oracle::requirement::find_command;
use papilio_oracle::{FileSystemSpec, Need, Scratch};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Arguments of `image`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Number of rounds; the output shows medians
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Source directory [default: a new one with --files small files]
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    directory: Option<PathBuf>,
    /// Number of files of 1 to 16 KiB in the new source directory
    #[arg(long, default_value_t = 20_000)]
    files: u64,
}

/// One way to make an image, with its measurements.
struct Way {
    name: &'static str,
    times: Times,
    /// Peak memory over all rounds in bytes.
    memory: u64,
    /// Space of the image in bytes.
    space: u64,
}

/// Runs the comparison.
///
/// # Errors
/// A program fails, or space is insufficient.
pub fn run(arguments: &Arguments, papilio: &Path, quiet: bool) -> anyhow::Result<()> {
    interrupt::watch();
    anyhow::ensure!(arguments.rounds > 0, "--rounds 0: must be at least 1");
    // At most 16 KiB for each file, and as much again for trees and partly filled blocks.
    let made = arguments.files.saturating_mul(32 << 10) + (256 << 20);
    let bytes = match &arguments.directory {
        Some(directory) => tree_bytes(directory)?.saturating_mul(2) + (512 << 20),
        None => made,
    };
    let scratch = Scratch::under(Path::new("/dev/shm"), bytes + made)?;
    let directory = match &arguments.directory {
        Some(directory) => directory.clone(),
        None => make_tree(&scratch, arguments.files)?,
    };
    let mut ways = ["papilio mkfs --rootdir", "mkfs.btrfs --rootdir", "kernel mount, cp -a"]
        .map(|name| Way { name, times: Times::default(), memory: 0, space: 0 });
    let mut left_out: Vec<(usize, String)> = Vec::new();
    for (place, needs) in [(1, &[Need::Command("mkfs.btrfs")][..]), (2, Need::KERNEL_MOUNT)] {
        left_out.extend(needs.iter().find_map(|need| need.missing()).map(|why| (place, why)));
    }
    for round in 0..arguments.rounds {
        if !quiet {
            eprintln!("round {} of {}", round + 1, arguments.rounds);
        }
        for turn in 0..ways.len() {
            let place = (turn + round) % ways.len();
            if left_out.iter().any(|(left, _)| *left == place) {
                continue;
            }
            interrupt::check()?;
            let image = scratch.unique("image");
            let way = &mut ways[place];
            let mut memory = 0;
            way.times.take(0, || {
                memory = match place {
                    0 => by_papilio(papilio, &directory, &image)?,
                    1 => by_mkfs(&directory, &image, bytes)?,
                    _ => by_kernel(&scratch, &directory, &image, bytes)?,
                };
                Ok(0)
            })?;
            way.memory = way.memory.max(memory);
            way.space = std::fs::metadata(&image)?.blocks() * 512;
            std::fs::remove_file(&image)?;
        }
    }
    let first = ways[0].times.median();
    for (place, way) in ways.iter().enumerate() {
        match left_out.iter().find(|(left, _)| *left == place) {
            Some((_, why)) => print_line(format_args!("{:24} left out: {why}", way.name))?,
            None => print_line(format_args!("{}", line(way, first)))?,
        }
    }
    Ok(())
}

fn line(way: &Way, first: Duration) -> String {
    let (least, most) = way.times.spread();
    let median = way.times.median();
    format!(
        "{:24} {:8.2} s ({:.2}-{:.2})  {:>6} times papilio  {:>6} MiB of memory  {:>6} MiB of image",
        way.name,
        median.as_secs_f64(),
        least.as_secs_f64(),
        most.as_secs_f64(),
        number(median.as_secs_f64() / first.as_secs_f64().max(1e-9)),
        number(way.memory as f64 / f64::from(1 << 20)),
        number(way.space as f64 / f64::from(1 << 20)),
    )
}

fn by_papilio(program: &Path, directory: &Path, image: &Path) -> anyhow::Result<u64> {
    let mut command = Command::new(program);
    command.args(["mkfs", "--quiet", "--shrink", "--rootdir"]).arg(directory).arg(image);
    watched(command)
}

fn by_mkfs(directory: &Path, image: &Path, bytes: u64) -> anyhow::Result<u64> {
    papilio_oracle::scratch::create_image(image, bytes)?;
    let mut command = Command::new(find_command("mkfs.btrfs").context("mkfs.btrfs is not installed")?);
    command.args(["--quiet", "--shrink", "--rootdir"]).arg(directory).arg(image);
    watched(command)
}

fn by_kernel(scratch: &Scratch, directory: &Path, image: &Path, bytes: u64) -> anyhow::Result<u64> {
    let spec = FileSystemSpec { device_size: bytes, ..FileSystemSpec::default() };
    let images = spec.make(scratch)?;
    let mounted = images.mount()?;
    let mut command = Command::new("cp");
    command.arg("-a").arg(directory.join(".")).arg(mounted.path());
    let memory = watched(command)?;
    mounted.unmount()?;
    std::fs::rename(&images.paths()[0], image)?;
    Ok(memory)
}

/// Runs a command to its end and returns its peak memory in bytes, sampled every 2 ms.
fn watched(mut command: Command) -> anyhow::Result<u64> {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().with_context(|| format!("{command:?}"))?;
    let status = format!("/proc/{}/status", child.id());
    let mut most = 0;
    let start = Instant::now();
    loop {
        let held = std::fs::read_to_string(&status).unwrap_or_default();
        let peak = held.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = peak.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        most = most.max(kib.unwrap_or_default() << 10);
        if let Some(status) = child.try_wait()? {
            if !status.success() {
                bail!("{command:?}: {status}");
            }
            return Ok(most);
        }
        if interrupt::seen() || start.elapsed() > Duration::from_secs(3600) {
            let _ = child.kill();
            let _ = child.wait();
            interrupt::check()?;
            bail!("{command:?}: took more than an hour");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Creates `files` files of 1 to 16 KiB, 100 in each directory.
fn make_tree(scratch: &Scratch, files: u64) -> anyhow::Result<PathBuf> {
    let root = scratch.unique("tree");
    let noise: Vec<u8> = (0..1_u32 << 16).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for number in 0..files {
        let folder = root.join(format!("{}", number / 100));
        if number % 100 == 0 {
            std::fs::create_dir_all(&folder)?;
        }
        let size = 1024 + (number.wrapping_mul(2_654_435_761) % 15_360) as usize;
        let start = (number % 1000) as usize;
        std::fs::write(folder.join(format!("file{number}")), &noise[start..start + size])?;
    }
    Ok(root)
}

/// Returns the size of a tree's files in bytes, each rounded up to a sector.
fn tree_bytes(directory: &Path) -> anyhow::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(directory).with_context(|| directory.display().to_string())? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes += if metadata.is_dir() {
            tree_bytes(&entry.path())?
        } else {
            metadata.len().next_multiple_of(4096)
        };
    }
    Ok(bytes)
}
