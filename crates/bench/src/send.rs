//! `papilio bench send`: sends and receives a snapshot of many files, and sends what changed among
//! many more.
//!
//! Both sides send the same snapshots from the same image, and receive the same stream into a new
//! file system. All of it is in memory. Each run begins without caches: with a new mount, or the
//! file system just opened. Receiving ends with everything on the device.
//!
//! The kernel's side is `btrfs send` and `btrfs receive`; a program that starts is part of its time
//! (a millisecond).

use crate::measure::{Times, row, row_of_operations};
use anyhow::{Context, ensure};
use papilio::{Error, FileSystem, MkfsOptions, OpenOptions, Receive, SendOptions};
use papilio_oracle::{FileSystemSpec, ImageSet, Need, Scratch};
use std::fs::{self, File};
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Files of one directory.
const DIRECTORY: u64 = 500;

/// Arguments of `send`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Number of rounds; the output shows medians
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Number of files of the snapshot that is sent whole
    #[arg(long, default_value_t = 50_000)]
    files: u64,
    /// Number of files among which some change; 0 leaves the incremental stream out
    #[arg(long, default_value_t = 1_000_000)]
    many_files: u64,
    /// Number of files that change between two snapshots
    #[arg(long, default_value_t = 100)]
    changes: u64,
    /// Run only Papilio, for use with a profiler
    #[arg(long)]
    papilio_only: bool,
}

/// Returns the size of a file: 1 to 16 KiB, so that some are inline.
fn size(number: u64) -> usize {
    1024 + (number.wrapping_mul(2_654_435_761) % 15_360) as usize
}

/// Runs the comparison and prints a row for each workload.
///
/// # Errors
/// The kernel's Btrfs is not available, or either side fails.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    if let Some(why) = Need::KERNEL_MOUNT.iter().find_map(|need| need.missing()) {
        anyhow::bail!(why);
    }
    whole(arguments)?;
    if arguments.many_files > 0 {
        incremental(arguments)?;
    }
    Ok(())
}

/// Sends a snapshot of files with data, and receives it.
fn whole(arguments: &Arguments) -> anyhow::Result<()> {
    let bytes: u64 = (0..arguments.files).map(|number| size(number) as u64).sum();
    let room = 4 * bytes + (1 << 30);
    let scratch = Scratch::under(Path::new("/dev/shm"), 2 * room)?;
    let image = scratch.unique("source");
    make(&image, room, arguments.files, size)?;
    let source = ImageSet::open(&scratch, vec![image.clone()]);
    let stream = scratch.unique("stream");
    let (mut sends, mut receives) = (<[Times; 2]>::default(), <[Times; 2]>::default());
    for round in 0..arguments.rounds {
        eprintln!("round {} of {}", round + 1, arguments.rounds);
        if !arguments.papilio_only {
            send_by_kernel(&source, None, "before", &stream, &mut sends[0])?;
            let target = FileSystemSpec::default().sized_for(room / 2).make(&scratch)?;
            let mounted = target.mount()?;
            receives[0].take(arguments.files, || {
                finish(Command::new("btrfs").args(["receive", "-q", "-f"]).args([&*stream, mounted.path()]))?;
                mounted.sync()?;
                Ok(arguments.files)
            })?;
            mounted.unmount()?;
            remove_all(target.paths())?;
        }
        send_by_papilio(&image, None, "before", &stream, &mut sends[1])?;
        let target = scratch.unique("target");
        papilio::mkfs(&target, &MkfsOptions::new().size(room))?;
        let fs = FileSystem::open_with(&target, &OpenOptions::new().write(true))?;
        receives[1].take(arguments.files, || {
            let mut received = Vec::new();
            let mut input = BufReader::with_capacity(1 << 20, File::open(&stream)?);
            Receive::new().receive(&fs, "/", &mut input, &mut received, &mut ())?;
            ensure!(received.len() == 1 && received[0].complete, "the stream is incomplete");
            fs.sync()?;
            Ok(arguments.files)
        })?;
        fs.close()?;
        remove_all(&[target])?;
    }
    row(&format!("send {} files", arguments.files), bytes, &sends[0], &sends[1])?;
    row(&format!("receive {} files", arguments.files), bytes, &receives[0], &receives[1])
}

/// Sends the changes between two snapshots of many small files.
fn incremental(arguments: &Arguments) -> anyhow::Result<()> {
    let room = arguments.many_files * 1500 + (2 << 30);
    let scratch = Scratch::under(Path::new("/dev/shm"), room)?;
    let image = scratch.unique("many");
    make(&image, room, arguments.many_files, |_| 100)?;
    let fs = FileSystem::open_with(&image, &OpenOptions::new().write(true))?;
    let step = (arguments.many_files / arguments.changes.max(1)).max(1);
    for number in (0..arguments.many_files).step_by(step as usize).take(arguments.changes as usize) {
        fs.write(name("work", number), [9; 5000])?;
    }
    fs.snapshot("/work", "/after", true)?;
    fs.close()?;
    let source = ImageSet::open(&scratch, vec![image.clone()]);
    let stream = scratch.unique("stream");
    let mut sends = <[Times; 2]>::default();
    for round in 0..arguments.rounds {
        eprintln!("round {} of {}", round + 1, arguments.rounds);
        if !arguments.papilio_only {
            send_by_kernel(&source, Some("before"), "after", &stream, &mut sends[0])?;
        }
        send_by_papilio(&image, Some("before"), "after", &stream, &mut sends[1])?;
    }
    let label = format!("send {} changes of {} files", arguments.changes, arguments.many_files);
    row_of_operations(&label, 1, &sends[0], &sends[1])
}

fn name(root: &str, number: u64) -> String {
    format!("/{root}/d{}/file{number}", number / DIRECTORY)
}

/// Makes an image with a subvolume of files, and a snapshot of it.
fn make(image: &Path, room: u64, files: u64, size: impl Fn(u64) -> usize) -> anyhow::Result<()> {
    papilio::mkfs(image, &MkfsOptions::new().size(room))?;
    let fs = FileSystem::open_with(image, &OpenOptions::new().write(true))?;
    fs.create_subvolume("/work")?;
    let content: Vec<u8> = (0..32_768_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for number in 0..files {
        if number % DIRECTORY == 0 {
            fs.create_dir(format!("/work/d{}", number / DIRECTORY))?;
        }
        let from = number as usize % 8192;
        fs.write(name("work", number), &content[from..from + size(number)])?;
    }
    fs.snapshot("/work", "/before", true)?;
    Ok(fs.close()?)
}

fn finish(command: &mut Command) -> anyhow::Result<()> {
    let output = command.output().context("btrfs")?;
    ensure!(output.status.success(), "btrfs: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

fn remove_all(paths: &[PathBuf]) -> anyhow::Result<()> {
    Ok(paths.iter().try_for_each(fs::remove_file)?)
}

fn send_by_kernel(
    source: &ImageSet,
    parent: Option<&str>,
    name: &str,
    stream: &Path,
    times: &mut Times,
) -> anyhow::Result<()> {
    let mounted = source.mount_read_only()?;
    let snapshot = mounted.path().join(name);
    let parent = parent.map(|parent| mounted.path().join(parent));
    times.take(1, || {
        let mut command = Command::new("btrfs");
        command.args(["send", "-q", "-f"]).arg(stream);
        if let Some(parent) = &parent {
            command.arg("-p").arg(parent);
        }
        finish(command.arg(&snapshot))?;
        Ok(1)
    })?;
    mounted.unmount()
}

fn send_by_papilio(
    image: &Path,
    parent: Option<&str>,
    name: &str,
    stream: &Path,
    times: &mut Times,
) -> anyhow::Result<()> {
    let fs = FileSystem::open(image)?;
    let id = |name: &str| Ok::<_, Error>(fs.inode(format!("/{name}"))?.tree());
    let (parent, snapshot) = (parent.map(id).transpose()?, id(name)?);
    times.take(1, || {
        let mut output = BufWriter::with_capacity(1 << 20, File::create(stream)?);
        SendOptions::new().parent(parent).send(&fs, snapshot, &mut output, &mut ())?;
        output.flush()?;
        Ok(1)
    })
}
