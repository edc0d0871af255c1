//! Subvolumes, and snapshots whose origins change afterwards.

use std::fs::File;
use std::path::Path;

use super::content::{Data, Writer, numbered, sync};
use super::times::set_times;
use super::tree_spec::TreeSpec;
use crate::sys;

/// Writes all cases, and makes one subvolume the default.
pub fn write(writer: &mut Writer, folder: &Path, spec: &TreeSpec) -> anyhow::Result<()> {
    let origin = folder.join("origin");
    subvolume(writer, &origin)?;
    fill(writer, &origin, 40)?;
    let nested = origin.join("nested");
    subvolume(writer, &nested)?;
    fill(writer, &nested, 10)?;
    let innermost = nested.join("down/below");
    writer.directory(&nested.join("down"))?;
    subvolume(writer, &innermost)?;
    fill(writer, &innermost, 5)?;
    subvolume(writer, &folder.join("empty"))?;

    // Set the times now, because those of a read-only snapshot cannot be set later. A snapshot
    // leaves an empty folder in place of each nested subvolume.
    set_times(&origin, spec.seed)?;
    sys::create_snapshot(&origin, &folder.join("read-only"), true)?;
    change(writer, &origin, 0)?;
    sync(folder)?;
    let writable = folder.join("writable");
    sys::create_snapshot(&origin, &writable, false)?;
    change(writer, &origin, 1)?;
    change(writer, &writable, 2)?;
    set_times(&writable, spec.seed)?;
    sync(folder)?;
    sys::create_snapshot(&writable, &folder.join("of-a-snapshot"), true)?;
    change(writer, &writable, 3)?;

    let deleted = folder.join("deleted");
    sys::create_snapshot(&origin, &deleted, false)?;
    fill(writer, &deleted.join("inner-directory"), 20)?;
    sync(folder)?;
    sys::delete_subvolume(&deleted)?;

    // Create, delete and create again at one path: a new id under an old name.
    let again = folder.join("again");
    subvolume(writer, &again)?;
    sync(folder)?;
    sys::delete_subvolume(&again)?;
    subvolume(writer, &again)?;
    fill(writer, &again, 5)?;
    let renamed = folder.join("renamed");
    std::fs::rename(&again, &renamed)?;
    sys::set_default_subvolume(folder, sys::subvolume_id(&renamed)?)?;
    Ok(())
}

fn subvolume(writer: &mut Writer, path: &Path) -> anyhow::Result<()> {
    sys::create_subvolume(path)?;
    writer.count();
    Ok(())
}

fn fill(writer: &mut Writer, folder: &Path, files: u64) -> anyhow::Result<()> {
    if !folder.exists() {
        writer.directory(folder)?;
    }
    let inner = folder.join("inner-directory");
    if !inner.exists() {
        writer.directory(&inner)?;
    }
    for number in 0..files {
        let path = numbered(if number % 3 == 0 { &inner } else { folder }, "file-", number);
        if path.exists() {
            continue;
        }
        let mut random = writer.random(&path);
        let size = if random.bool() { random.u64(0..3000) } else { random.u64(3000..200_000) };
        writer.file(&path, size, Data::any(&mut random))?;
    }
    Ok(())
}

/// Overwrites, removes, renames and adds files in a folder that [`fill`] filled with 40 files.
fn change(writer: &mut Writer, folder: &Path, round: u64) -> anyhow::Result<()> {
    let mut random = writer.random(&numbered(folder, "change-", round));
    for number in (0..40).filter(|number| number % 3 != 0) {
        let path = numbered(folder, "file-", number);
        if !path.exists() {
            continue;
        }
        match random.u8(0..6) {
            0 => std::fs::remove_file(&path)?,
            1 => std::fs::rename(&path, folder.join(format!("renamed-{round}-{number}")))?,
            2 | 3 => {
                let file = File::options().write(true).open(&path)?;
                let offset = random.u64(0..50_000);
                writer.write_at(&file, &mut random, offset, 9000, Data::Mixed)?;
            }
            _ => {}
        }
    }
    let path = numbered(folder, "added-", round);
    writer.file(&path, 70_000, Data::Text)?;
    Ok(())
}
