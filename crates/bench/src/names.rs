//! Many files in one directory: created, listed, snapshotted and deleted, by the kernel on a loop device
//! and by Papilio, each on a fresh file system of the same size in memory.
//!
//! Creating and deleting end with everything on the device (`syncfs`, a commit). The kernel is asked by
//! system calls from this process; Papilio is called in it.

use crate::measure::{Times, row, row_of_operations};
use papilio::{FileSystem, MkfsOptions, NewInode, NewKind, OpenOptions};
use papilio_oracle::{FileSystemSpec, Need, Scratch};
use std::io::Write;
use std::path::Path;

/// Arguments of the job.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Rounds; medians are shown
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Files
    #[arg(long, default_value_t = 100_000)]
    files: u64,
    /// Snapshots
    #[arg(long, default_value_t = 100)]
    snapshots: u64,
    /// Bytes of a big file that is written
    #[arg(long, default_value_t = 1 << 30)]
    big_bytes: u64,
    /// Only Papilio's side, for a profiler
    #[arg(long)]
    papilio_only: bool,
}

/// Bytes of the image.
const IMAGE: u64 = 4 << 30;
/// Bytes that one call writes.
const PIECE: u64 = 1 << 20;

#[derive(Default)]
struct Phases {
    create: Times,
    list: Times,
    snapshot: Times,
    delete: Times,
    write: Times,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    if let Some(why) = Need::KERNEL_MOUNT.iter().find_map(|need| need.missing()) {
        anyhow::bail!(why);
    }
    let (mut kernel, mut papilio) = (Phases::default(), Phases::default());
    for round in 0..arguments.rounds {
        eprintln!("round {} of {}", round + 1, arguments.rounds);
        if !arguments.papilio_only {
            by_kernel(arguments, &mut kernel)?;
        }
        by_papilio(arguments, &mut papilio)?;
    }
    let files = arguments.files;
    row_of_operations("create files, sync", files, &kernel.create, &papilio.create);
    row_of_operations("list them", files, &kernel.list, &papilio.list);
    row_of_operations("snapshot", arguments.snapshots, &kernel.snapshot, &papilio.snapshot);
    row_of_operations("delete files, sync", files, &kernel.delete, &papilio.delete);
    row("write a big file, sync", arguments.big_bytes, &kernel.write, &papilio.write);
    Ok(())
}

fn by_kernel(arguments: &Arguments, phases: &mut Phases) -> anyhow::Result<()> {
    let scratch = Scratch::under(Path::new("/dev/shm"), IMAGE)?;
    let images = FileSystemSpec::default().sized_for(IMAGE / 2).make(&scratch)?;
    let mounted = images.mount()?;
    let root = mounted.path();
    let directory = root.join("d");
    std::fs::create_dir(&directory)?;
    phases.create.take(arguments.files, || {
        for number in 0..arguments.files {
            std::fs::File::create(directory.join(format!("file{number}")))?;
        }
        mounted.sync()?;
        Ok(arguments.files)
    })?;
    phases.list.take(arguments.files, || Ok(std::fs::read_dir(&directory)?.count() as u64))?;
    phases.snapshot.take(arguments.snapshots, || {
        for number in 0..arguments.snapshots {
            // As the Btrfs tools do it, without their start.
            papilio_oracle::sys::create_snapshot(root, &root.join(format!("snap{number}")), true)?;
        }
        Ok(arguments.snapshots)
    })?;
    phases.delete.take(arguments.files, || {
        for number in 0..arguments.files {
            std::fs::remove_file(directory.join(format!("file{number}")))?;
        }
        mounted.sync()?;
        Ok(arguments.files)
    })?;
    phases.write.take(arguments.big_bytes, || {
        let mut file = std::fs::File::create(root.join("big"))?;
        let piece = piece();
        for _ in 0..arguments.big_bytes / PIECE {
            file.write_all(&piece)?;
        }
        mounted.sync()?;
        Ok(arguments.big_bytes)
    })?;
    mounted.unmount()
}

fn by_papilio(arguments: &Arguments, phases: &mut Phases) -> anyhow::Result<()> {
    let scratch = Scratch::under(Path::new("/dev/shm"), IMAGE)?;
    let image = scratch.unique("papilio");
    papilio::mkfs(&image, &MkfsOptions::new().size(IMAGE))?;
    let fs = FileSystem::open_with(&image, &OpenOptions::new().write(true))?;
    let directory = fs.create_dir("/d")?;
    phases.create.take(arguments.files, || {
        let new = NewInode::new(NewKind::Regular, 0o644);
        for number in 0..arguments.files {
            directory.create(format!("file{number}").as_bytes(), &new)?;
        }
        fs.sync()?;
        Ok(arguments.files)
    })?;
    phases.list.take(arguments.files, || Ok(fs.read_dir("/d")?.count() as u64))?;
    phases.snapshot.take(arguments.snapshots, || {
        for number in 0..arguments.snapshots {
            // As durable as the kernel's, whose ioctl commits.
            fs.snapshot("/", format!("/snap{number}"), true)?;
            fs.sync()?;
        }
        Ok(arguments.snapshots)
    })?;
    phases.delete.take(arguments.files, || {
        for number in 0..arguments.files {
            directory.unlink(format!("file{number}").as_bytes())?;
        }
        fs.sync()?;
        Ok(arguments.files)
    })?;
    phases.write.take(arguments.big_bytes, || {
        let file = fs.create_file("/big")?;
        let piece = piece();
        for number in 0..arguments.big_bytes / PIECE {
            file.write_at(&piece, number * PIECE)?;
        }
        fs.sync()?;
        Ok(arguments.big_bytes)
    })?;
    Ok(fs.close()?)
}

/// What is written at a time: bytes that differ from one another.
fn piece() -> Vec<u8> {
    (0..PIECE as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}
