//! `papilio bench read`: sequential reads of one large file and of many small ones, cold and warm.
//!
//! - Cold: a new mount or open. No cache holds anything of the file system; the image is in memory.
//! - Warm: the same reads again. The kernel reads from its page cache. Papilio reads tree blocks
//!   from its cache, but reads and verifies all data again.

use crate::measure::{Times, row};
use anyhow::Context;
use papilio::FileSystem;
use papilio_oracle::{FileSystemSpec, ImageSet, Need, Scratch};
use std::fs;
use std::io::{Read, Write};
use std::path::Path;

const BUFFER: usize = 1 << 20;

/// Arguments of `read`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Number of rounds; the output shows medians
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Size of the large file in bytes
    #[arg(long, default_value_t = 1 << 30)]
    big_bytes: u64,
    /// Number of small files
    #[arg(long, default_value_t = 50_000)]
    small_files: u32,
    /// Mount options for writing the files, such as compress=zstd
    #[arg(long, default_value = "")]
    mount_options: String,
    /// Run only Papilio, for use with a profiler
    #[arg(long)]
    papilio_only: bool,
}

/// Returns the size of small file number `index`: 1 to 16 KiB, so that some are inline.
fn small_size(index: u32) -> u64 {
    1024 + u64::from(index.wrapping_mul(2_654_435_761) % 15_360)
}

/// Runs the comparison and prints a row for each workload.
///
/// # Errors
/// The kernel's Btrfs is not available, or either side fails.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    if let Some(why) = Need::KERNEL_MOUNT.iter().find_map(|need| need.missing()) {
        anyhow::bail!(why);
    }
    let small_bytes: u64 = (0..arguments.small_files).map(small_size).sum();
    let bytes = arguments.big_bytes + small_bytes;
    let scratch = Scratch::under(Path::new("/dev/shm"), bytes + (256 << 20))?;
    let mount_options = match arguments.mount_options.as_str() {
        "" => Vec::new(),
        options => vec![options.to_owned()],
    };
    let spec = FileSystemSpec { mount_options, ..FileSystemSpec::default() };
    let images = spec.sized_for(bytes).make(&scratch)?;
    write(&images, arguments)?;

    let mut times: [Times; 8] = Default::default();
    let [big_kernel_cold, big_kernel_warm, big_cold, big_warm, rest @ ..] = &mut times;
    let [small_kernel_cold, small_kernel_warm, small_cold, small_warm] = rest;
    for round in 0..arguments.rounds {
        eprintln!("round {} of {}", round + 1, arguments.rounds);
        if !arguments.papilio_only {
            let mounted = images.mount_read_only()?;
            for times in [&mut *big_kernel_cold, &mut *big_kernel_warm] {
                times.take(arguments.big_bytes, || kernel_file(&mounted.path().join("big")))?;
            }
            drop(mounted);
            let mounted = images.mount_read_only()?;
            for times in [&mut *small_kernel_cold, &mut *small_kernel_warm] {
                times.take(small_bytes, || kernel_tree(&mounted.path().join("small")))?;
            }
        }
        let image = &images.paths()[0];
        let fs = FileSystem::open(image)?;
        for times in [&mut *big_cold, &mut *big_warm] {
            times.take(arguments.big_bytes, || papilio_file(&fs, "/big"))?;
        }
        let fs = FileSystem::open(image)?;
        for times in [&mut *small_cold, &mut *small_warm] {
            times.take(small_bytes, || papilio_tree(&fs, "/small"))?;
        }
    }
    row("large file, cold", arguments.big_bytes, big_kernel_cold, big_cold)?;
    row("large file, warm", arguments.big_bytes, big_kernel_warm, big_warm)?;
    row("small files, cold", small_bytes, small_kernel_cold, small_cold)?;
    row("small files, warm", small_bytes, small_kernel_warm, small_warm)?;
    Ok(())
}

/// Writes the files with the kernel: `big`, and `small/NN/NNNNN`.
fn write(images: &ImageSet, arguments: &Arguments) -> anyhow::Result<()> {
    let mounted = images.mount()?;
    let mut noise = vec![0; BUFFER];
    fs::File::open("/dev/urandom")?.read_exact(&mut noise)?;
    // Half of the buffer is compressible.
    noise[BUFFER / 2..].fill(b'p');
    let mut big = fs::File::create(mounted.path().join("big"))?;
    let mut left = arguments.big_bytes;
    while left > 0 {
        let step = left.min(BUFFER as u64) as usize;
        big.write_all(&noise[..step])?;
        left -= step as u64;
    }
    for index in 0..arguments.small_files {
        let folder = mounted.path().join(format!("small/{:02}", index % 100));
        if index < 100 {
            fs::create_dir_all(&folder)?;
        }
        let start = index as usize % (BUFFER / 4);
        fs::write(folder.join(format!("{index:05}")), &noise[start..start + small_size(index) as usize])?;
    }
    mounted.unmount()
}

fn kernel_file(path: &Path) -> anyhow::Result<u64> {
    let mut file = fs::File::open(path).with_context(|| path.display().to_string())?;
    let mut buffer = vec![0; BUFFER];
    let mut bytes = 0;
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(bytes),
            read => bytes += read as u64,
        }
    }
}

fn kernel_tree(path: &Path) -> anyhow::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        bytes += if entry.file_type()?.is_dir() {
            kernel_tree(&entry.path())?
        } else {
            let mut content = Vec::new();
            fs::File::open(entry.path())?.read_to_end(&mut content)? as u64
        };
    }
    Ok(bytes)
}

fn papilio_file(fs: &FileSystem, path: &str) -> anyhow::Result<u64> {
    let file = fs.open_file(path)?;
    let mut buffer = vec![0; BUFFER];
    let mut bytes = 0;
    loop {
        match file.read_at(&mut buffer, bytes)? {
            0 => return Ok(bytes),
            read => bytes += read as u64,
        }
    }
}

fn papilio_tree(fs: &FileSystem, path: &str) -> anyhow::Result<u64> {
    let mut bytes = 0;
    for entry in fs.walk(path)? {
        let entry = entry?;
        if entry.inode.metadata().is_file() {
            bytes += entry.inode.open()?.read_all()?.len() as u64;
        }
    }
    Ok(bytes)
}
