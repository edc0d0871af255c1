//! The bulk of the tree: many small files and a few big ones.

use std::path::Path;

use super::content::{Data, Writer, numbered};
use super::tree_spec::TreeSpec;

/// Writes a quarter of the files into one directory; most are tiny, so their data is inline.
pub fn many(writer: &mut Writer, folder: &Path, spec: &TreeSpec) -> anyhow::Result<()> {
    for number in 0..spec.files / 4 {
        let path = numbered(folder, "file-", number);
        let mut random = writer.random(&path);
        let size = if random.u8(0..4) == 0 { 0 } else { random.u64(1..1500) };
        writer.file(&path, size, Data::any(&mut random))?;
    }
    Ok(())
}

/// Writes the other small files: a few dozen per directory, up to a dozen directories deep.
pub fn tree(writer: &mut Writer, folder: &Path, spec: &TreeSpec) -> anyhow::Result<()> {
    let files = spec.files - spec.files / 4;
    // Small files take at most half of the bytes; big/ takes the rest.
    let average = (spec.bytes / 2 / files.max(1)).clamp(512, 32 << 10);
    let mut random = writer.random(folder);
    let mut folders = vec![(folder.to_owned(), 0)];
    for number in 0..files {
        if number % 24 == 0 {
            // Branching off the later half of the directories makes the tree deep.
            let (parent, depth) = folders[random.usize(folders.len() / 2..folders.len())].clone();
            let child = numbered(&parent, "directory-", number / 24);
            writer.directory(&child)?;
            if depth < 12 {
                folders.push((child, depth + 1));
            }
        }
        let (parent, _) = &folders[folders.len() - 1 - random.usize(0..folders.len().min(8))];
        let size = match random.u8(0..10) {
            0 => 0,
            // Sizes around the limit of inline data (2048 bytes by default) and around a sector.
            1 => random.choice([2047, 2048, 2049, 4094, 4095, 4096, 4097]).unwrap_or(1),
            2..5 => random.u64(1..2048),
            5..9 => random.u64(1..average * 2),
            _ => random.u64(1..average * 6),
        };
        let path = numbered(parent, "f", number);
        writer.file(&path, size, Data::any(&mut random))?;
    }
    Ok(())
}

/// Writes big files until all bytes are used.
pub fn big(writer: &mut Writer, folder: &Path, spec: &TreeSpec) -> anyhow::Result<()> {
    let kinds = [Data::Text, Data::Random, Data::Mixed, Data::Zeros];
    for (number, data) in (0..).zip(kinds.into_iter().cycle()) {
        let rest = spec.bytes.saturating_sub(writer.done().bytes);
        if rest == 0 {
            break;
        }
        // An odd size: each file's last sector extends past the end.
        let size = (spec.bytes / 12).clamp(1 << 20, 256 << 20) + 1234;
        writer.file(&numbered(folder, "big-", number), size.min(rest), data)?;
    }
    Ok(())
}
