//! `papilio bench names`: creates, lists, snapshots and deletes many files in one directory.
//!
//! The kernel works on a loop device, Papilio on an image. Each gets a new file system of the same
//! size in memory. Creation and deletion end with everything on the device (`syncfs`, a commit).
//! This process makes the system calls and the calls of the library.

use crate::measure::{Times, row, row_of_operations};
use papilio::{FileSystem, MkfsOptions, NewInode, NewKind, OpenOptions};
use papilio_oracle::{FileSystemSpec, Need, Quota, Scratch};
use std::io::Write;
use std::path::Path;

/// Arguments of `names`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Number of rounds; the output shows medians
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Number of files
    #[arg(long, default_value_t = 100_000)]
    files: u64,
    /// Number of snapshots
    #[arg(long, default_value_t = 100)]
    snapshots: u64,
    /// Size in bytes of the large file to write
    #[arg(long, default_value_t = 1 << 30)]
    big_bytes: u64,
    /// Whether quotas are on; several are run in turn
    #[arg(long, value_enum, value_delimiter = ',', default_value = "off")]
    quotas: Vec<Quotas>,
    /// Run only Papilio, for use with a profiler
    #[arg(long)]
    papilio_only: bool,
}

/// The accounting of space to qgroups, on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Quotas {
    Off,
    Full,
    Simple,
}

impl Quotas {
    fn of_kernel(self) -> Quota {
        match self {
            Self::Off => Quota::Off,
            Self::Full => Quota::Full,
            Self::Simple => Quota::Simple,
        }
    }

    /// Returns the name of a row with these quotas.
    fn label(self, what: &str) -> String {
        match self {
            Self::Off => what.to_owned(),
            Self::Full => format!("{what} (quotas)"),
            Self::Simple => format!("{what} (simple quotas)"),
        }
    }
}

/// Size of the image in bytes.
const IMAGE: u64 = 4 << 30;
/// Bytes in each write call.
const PIECE: u64 = 1 << 20;

#[derive(Default)]
struct Phases {
    create: Times,
    list: Times,
    snapshot: Times,
    delete: Times,
    write: Times,
}

/// Runs the comparison and prints a row for each workload.
///
/// # Errors
/// The kernel's Btrfs is not available, or either side fails.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    if let Some(why) = Need::KERNEL_MOUNT.iter().find_map(|need| need.missing()) {
        anyhow::bail!(why);
    }
    let mut runs: Vec<_> =
        arguments.quotas.iter().map(|quotas| (*quotas, Phases::default(), Phases::default())).collect();
    for round in 0..arguments.rounds {
        eprintln!("round {} of {}", round + 1, arguments.rounds);
        for (quotas, kernel, papilio) in &mut runs {
            if !arguments.papilio_only {
                by_kernel(arguments, *quotas, kernel)?;
            }
            by_papilio(arguments, *quotas, papilio)?;
        }
    }
    let (files, snapshots) = (arguments.files, arguments.snapshots);
    for (quotas, kernel, papilio) in &runs {
        let label = |what| quotas.label(what);
        row_of_operations(&label("create files, sync"), files, &kernel.create, &papilio.create)?;
        row_of_operations(&label("list them"), files, &kernel.list, &papilio.list)?;
        row_of_operations(&label("snapshot"), snapshots, &kernel.snapshot, &papilio.snapshot)?;
        row_of_operations(&label("delete files, sync"), files, &kernel.delete, &papilio.delete)?;
        let write = label("write a large file, sync");
        row(&write, arguments.big_bytes, &kernel.write, &papilio.write)?;
    }
    Ok(())
}

fn by_kernel(arguments: &Arguments, quotas: Quotas, phases: &mut Phases) -> anyhow::Result<()> {
    let scratch = Scratch::under(Path::new("/dev/shm"), IMAGE)?;
    let images = FileSystemSpec { quota: quotas.of_kernel(), ..FileSystemSpec::default() };
    let images = images.sized_for(IMAGE / 2).make(&scratch)?;
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
            // The ioctl of `btrfs subvolume snapshot`, without starting a process.
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

fn by_papilio(arguments: &Arguments, quotas: Quotas, phases: &mut Phases) -> anyhow::Result<()> {
    let scratch = Scratch::under(Path::new("/dev/shm"), IMAGE)?;
    let image = scratch.unique("papilio");
    papilio::mkfs(&image, &MkfsOptions::new().size(IMAGE))?;
    let fs = FileSystem::open_with(&image, &OpenOptions::new().write(true))?;
    match quotas {
        Quotas::Off => {}
        Quotas::Full => {
            fs.enable_quotas()?;
            fs.rescan_quotas(|_| {})?;
        }
        Quotas::Simple => fs.enable_simple_quotas()?,
    }
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
            // Makes the snapshot durable: the kernel's ioctl commits too.
            fs.snapshot("/", format!("/snap{number}"), true)?;
            fs.sync()?;
        }
        Ok(arguments.snapshots)
    })?;
    phases.delete.take(arguments.files, || {
        for number in 0..arguments.files {
            directory.remove_file(format!("file{number}").as_bytes())?;
        }
        fs.sync()?;
        Ok(arguments.files)
    })?;
    phases.write.take(arguments.big_bytes, || {
        let file = fs.create_file("/big")?;
        let piece = piece();
        for number in 0..arguments.big_bytes / PIECE {
            file.write_all_at(&piece, number * PIECE)?;
        }
        fs.sync()?;
        Ok(arguments.big_bytes)
    })?;
    Ok(fs.close()?)
}

/// Returns the contents of one write call.
fn piece() -> Vec<u8> {
    (0..PIECE as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}
