//! Files with unusual extents: holes, preallocation, overwrites and sharing.

use std::fs::File;
use std::path::Path;

use anyhow::Context;
use fastrand::Rng;
use rustix::fs::{FallocateFlags, IFlags, fallocate};

use super::content::{Data, Writer, numbered, sync};
use super::tree_spec::TreeSpec;
use crate::sys;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Writes all cases.
pub fn write(writer: &mut Writer, folder: &Path, _spec: &TreeSpec) -> anyhow::Result<()> {
    holes(writer, folder).context("holes")?;
    preallocated(writer, folder).context("preallocated")?;
    overwritten(writer, folder).context("overwritten")?;
    shared(writer, folder).context("shared")?;
    flagged(writer, folder).context("flagged")
}

fn holes(writer: &mut Writer, folder: &Path) -> anyhow::Result<()> {
    /// Name, size of the file, and stretches of data as (offset, length).
    type Case = (&'static str, u64, &'static [(u64, u64)]);
    let cases: [Case; 7] = [
        ("hole-leading", MIB, &[(MIB - 5000, 5000)]),
        ("hole-middle", MIB, &[(0, 70_000), (900_000, 100_000)]),
        ("hole-trailing", MIB + 17, &[(0, 4096)]),
        ("hole-only", 3 * MIB + 1, &[]),
        ("hole-after-inline", 64 * KIB, &[(0, 100)]),
        ("holes-many", 4 * MIB, &[]),
        ("hole-huge", 5 << 40, &[(1 << 40, 8192), ((5 << 40) - 100, 100)]),
    ];
    for (name, size, stretches) in cases {
        let path = folder.join(name);
        let file = writer.create(&path)?;
        file.set_len(size)?;
        let mut random = writer.random(&path);
        for &(offset, length) in stretches {
            writer.write_at(&file, &mut random, offset, length, Data::Text)?;
        }
        if name == "holes-many" {
            for offset in (0..size).step_by(32 * 1024) {
                writer.write_at(&file, &mut random, offset, 4 * KIB, Data::Random)?;
            }
        }
    }
    let path = folder.join("hole-punched");
    let file = writer.file(&path, MIB, Data::Random)?;
    file.sync_all()?;
    for (offset, length) in [(100_000, 50_000), (8192, 4096), (MIB - 4096, 4096)] {
        fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, length)?;
    }
    let file = writer.file(&folder.join("truncated"), MIB, Data::Text)?;
    file.sync_all()?;
    file.set_len(300_001)?;
    file.sync_all()?;
    file.set_len(600_000)?;
    Ok(())
}

fn preallocated(writer: &mut Writer, folder: &Path) -> anyhow::Result<()> {
    // On a mount without copy on write, only these extents are overwritten in place.
    let file = writer.create(&folder.join("prealloc"))?;
    fallocate(&file, FallocateFlags::empty(), 0, MIB)?;
    let file = writer.create(&folder.join("prealloc-past-the-end"))?;
    fallocate(&file, FallocateFlags::KEEP_SIZE, 0, MIB)?;
    let path = folder.join("prealloc-data-past-the-end");
    let file = writer.file(&path, 10_000, Data::Text)?;
    fallocate(&file, FallocateFlags::KEEP_SIZE, 64 * KIB, MIB)?;
    let path = folder.join("prealloc-partly-written");
    let file = writer.create(&path)?;
    fallocate(&file, FallocateFlags::empty(), 0, MIB)?;
    file.sync_all()?;
    let mut random = writer.random(&path);
    for (offset, length) in [(0, 4096), (100_000, 33_000), (MIB - 8192, 8192), (500_000, 10)] {
        writer.write_at(&file, &mut random, offset, length, Data::Random)?;
    }
    let file = writer.file(&folder.join("zero-range"), MIB, Data::Random)?;
    file.sync_all()?;
    fallocate(&file, FallocateFlags::ZERO_RANGE, 70_000, 200_000)?;
    Ok(())
}

/// Overwrites parts of files, committing each generation before the next. The remaining parts of
/// old extents are then referenced with an offset.
fn overwritten(writer: &mut Writer, folder: &Path) -> anyhow::Result<()> {
    for (name, data) in [("text", Data::Text), ("random", Data::Random), ("mixed", Data::Mixed)] {
        let path = folder.join(format!("overwritten-{name}"));
        let file = writer.file(&path, 2 * MIB + 333, data)?;
        let mut random = writer.random(&path);
        for round in 0..3 {
            file.sync_all()?;
            for _ in 0..12 << round {
                overwrite(writer, &file, &mut random, 2 * MIB, data)?;
            }
        }
    }
    let path = folder.join("appended");
    let file = writer.create(&path)?;
    let mut random = writer.random(&path);
    let mut end = 0;
    // From inline to one regular extent to many, each step in its own transaction or log.
    for length in [10, 1000, 3000, 5000, 40_000, 200_000] {
        writer.write_at(&file, &mut random, end, length, Data::Text)?;
        file.sync_all()?;
        end += length;
    }
    Ok(())
}

fn overwrite(
    writer: &mut Writer,
    file: &File,
    random: &mut Rng,
    size: u64,
    data: Data,
) -> anyhow::Result<()> {
    let offset = random.u64(0..size);
    let length = random.u64(1..40_000).min(size - offset);
    writer.write_at(file, random, offset, length, data)
}

fn shared(writer: &mut Writer, folder: &Path) -> anyhow::Result<()> {
    let origin = writer.file(&folder.join("reflink-origin"), 2 * MIB, Data::Mixed)?;
    sync(folder)?;
    for number in 0..4 {
        let path = numbered(folder, "reflink-whole-", number);
        let copy = writer.create(&path)?;
        rustix::fs::ioctl_ficlone(&copy, &origin)?;
        let mut random = writer.random(&path);
        for _ in 0..number * 3 {
            overwrite(writer, &copy, &mut random, 2 * MIB, Data::Random)?;
        }
    }
    // Stretches of the origin in another order, some of them twice, with holes between.
    let path = folder.join("reflink-ranges");
    let copy = writer.create(&path)?;
    let sector = 64 * KIB;
    for (at, from) in (0..).zip([5, 5, 0, 9, 3, 1, 30, 5]) {
        sys::clone_range(&origin, from * sector, sector, &copy, at * 2 * sector)?;
    }
    // Sharing within one file, and an origin that changes after it was shared.
    let own = writer.file(&folder.join("reflink-own"), 256 * KIB, Data::Text)?;
    own.sync_all()?;
    sys::clone_range(&own, 0, 64 * KIB, &own, 512 * KIB)?;
    sys::clone_range(&own, 64 * KIB, 0, &own, 1024 * KIB)?;
    let mut random = writer.random(&folder.join("reflink-origin"));
    random.u64(..);
    for _ in 0..5 {
        overwrite(writer, &origin, &mut random, 2 * MIB, Data::Text)?;
    }
    Ok(())
}

/// Sets `chattr +C` (no copy on write, so no checksums) and `chattr +c` (compressed) on an empty
/// file and on a directory, whose files inherit them. Flags from a nodatacow mount are cleared
/// first, because the kernel refuses to compress an inode without copy on write.
fn flagged(writer: &mut Writer, folder: &Path) -> anyhow::Result<()> {
    for (name, flags) in [("nocow", IFlags::NOCOW), ("compressed", IFlags::COMPRESSED)] {
        let inner = folder.join(name);
        writer.directory(&inner)?;
        set_flags(&File::open(&inner)?, flags)?;
        let path = inner.join("inherits");
        let file = writer.file(&path, MIB, Data::Text)?;
        file.sync_all()?;
        let mut random = writer.random(&path);
        for _ in 0..8 {
            overwrite(writer, &file, &mut random, MIB, Data::Text)?;
        }
        writer.file(&inner.join("small"), 100, Data::Text)?;
        let path = folder.join(format!("{name}-itself"));
        let file = writer.create(&path)?;
        set_flags(&file, flags)?;
        let mut random = writer.random(&path);
        writer.write_at(&file, &mut random, 0, 300_000, Data::Mixed)?;
    }
    let plain = writer.file(&folder.join("nodump-noatime"), 5000, Data::Text)?;
    set_flags(&plain, IFlags::NODUMP | IFlags::NOATIME)
}

fn set_flags(file: &File, flags: IFlags) -> anyhow::Result<()> {
    rustix::fs::ioctl_setflags(file, IFlags::empty()).context("clear inode flags")?;
    rustix::fs::ioctl_setflags(file, flags).with_context(|| format!("inode flags {flags:?}"))
}
