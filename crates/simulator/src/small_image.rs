//! Small file systems for fuzzing: a few inodes of each kind, so that a run over everything takes
//! a millisecond or less.
//!
//! Owns [`small_images`]. Its last image has a log.

use crate::BaseImage;
use papilio::format::ChecksumType;
use papilio::format::items::file_extent::Compression;
use papilio::{
    CompressionChoice, FileSystem, MkfsFeature, MkfsOptions, NewInode, NewKind, OpenOptions, Result, XattrSet,
};
use papilio_device::{Device, MemoryDevice};
use std::sync::Arc;

/// Size of an image in bytes, the least that `mkfs` takes for separate block groups.
const SIZE: u64 = 128 << 20;

/// Makes the images: the default, one with small nodes and without skinny metadata, a mixed one,
/// and one with a log.
///
/// # Errors
/// Those of `mkfs` and of writing, which a device in memory does not give.
pub fn small_images() -> Result<[BaseImage; 4]> {
    let old = MkfsOptions::new()
        .node_size(4096)
        .checksum(ChecksumType::XxHash64)
        .feature(MkfsFeature::NoHoles, false)
        .feature(MkfsFeature::FreeSpaceTree, false);
    let mixed = MkfsOptions::new().node_size(4096).feature(MkfsFeature::MixedGroups, true);
    Ok([
        make(&MkfsOptions::new(), false)?,
        make(&old, false)?,
        make(&mixed, false)?,
        make(&MkfsOptions::new(), true)?,
    ])
}

fn make(mkfs: &MkfsOptions, log: bool) -> Result<BaseImage> {
    let device = Arc::new(MemoryDevice::new(SIZE));
    let shared: Arc<dyn Device> = device.clone();
    papilio::mkfs_device(&shared, mkfs)?;
    let compress = CompressionChoice::new(Compression::Zstd);
    let options = OpenOptions::new().write(true).commit_interval(None).compress(compress);
    let fs = FileSystem::from_devices(vec![shared], &options)?;
    fill(&fs)?;
    if log {
        write_log(&fs)?;
        // The file system is still open: this is the state after a power loss.
        return Ok(BaseImage::of(&device));
    }
    fs.close()?;
    Ok(BaseImage::of(&device))
}

/// Makes inodes of each kind, with all kinds of extents, names and references.
fn fill(fs: &FileSystem) -> Result<()> {
    fs.create_dir("/d")?.set_xattr(b"user.colour", b"blue", XattrSet::Any)?;
    fs.create_file("/d/inline")?.write_all_at(b"a few bytes", 0)?;
    let file = fs.create_file("/d/f1")?;
    file.write_all_at(&noise(12_000), 0)?;
    file.write_all_at(&noise(5000), 40_960)?;
    file.set_len(60_000)?;
    fs.create_file("/d/zeros")?.write_all_at(&[0; 30_000], 0)?;
    fs.create_file("/allocated")?.allocate(0, 20_000, false)?;
    fs.create_file("/clone")?.clone_range(&file, 0, 8192, 4096)?;
    fs.hard_link("/d/f1", "/linked")?;
    fs.symlink("d/f1", "/link")?;
    fs.create("/fifo", &NewInode::new(NewKind::Fifo, 0o644))?;
    fs.create_subvolume("/sub")?;
    fs.create_file("/sub/f1")?.write_all_at(&noise(6000), 0)?;
    fs.sync()?;
    fs.snapshot("/sub", "/sub/snapshot", true)?;
    fs.create_file("/sub/later")?.write_all_at(&noise(100), 0)?;
    fs.sync()
}

/// Changes files, names and directories, each with an `fsync`.
fn write_log(fs: &FileSystem) -> Result<()> {
    let file = fs.open_file("/d/f1")?;
    file.write_all_at(&noise(9000), 8192)?;
    file.sync_all()?;
    let new = fs.create_file("/d/new")?;
    new.write_all_at(&noise(5000), 0)?;
    new.sync_all()?;
    fs.rename("/linked", "/d/moved")?;
    fs.remove_file("/d/zeros")?;
    fs.hard_link("/d/new", "/second")?;
    new.sync_all()?;
    let sub = fs.open_file("/sub/f1")?;
    sub.set_len(1000)?;
    sub.sync_all()
}

/// Returns bytes that do not compress.
fn noise(length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fastrand::Rng::with_seed(length as u64).fill(&mut bytes);
    bytes
}
