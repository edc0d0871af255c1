//! Random changes of several files, compared with a model in memory.

use super::files::{Files, SECTOR, bytes};
use crate::data::clone::CloneRange;
use crate::data::dedupe::{Deduped, dedupe};
use crate::data::progress::Progress;
use crate::data::write_rules::WriteOptions;
use crate::errors::ErrorKind;
use crate::options::CompressionChoice;
use papilio_format::FileOffset;
use papilio_format::items::file_extent::Compression;
use papilio_format::items::inode::{InodeFlags, InodeItem};
use std::collections::BTreeSet;

/// The largest size of a file.
const LIMIT: u64 = 600 << 10;

struct Run {
    files: Files,
    random: fastrand::Rng,
}

impl Run {
    /// Returns an offset in a file, mostly unaligned, often at boundaries.
    fn offset(&mut self, size: u64) -> u64 {
        match self.random.u8(..8) {
            0 => 0,
            1 => size,
            2 => self.random.u64(..=size) / SECTOR * SECTOR,
            3 => size / SECTOR * SECTOR,
            4 => self.random.u64(..3_000),
            5 => self.random.u64(..LIMIT / 2),
            _ => self.random.u64(..=size),
        }
    }

    fn length(&mut self) -> u64 {
        match self.random.u8(..6) {
            0 => self.random.u64(1..10),
            1 => self.random.u64(1..2_500),
            2 => self.random.u64(1..5) * SECTOR,
            3 => self.random.u64(1..20_000),
            4 => self.random.u64(1..40) * SECTOR,
            _ => self.random.u64(1..300_000),
        }
    }

    fn step(&mut self) {
        let index = self.random.usize(..self.files.files.len());
        let largest = [u64::MAX, u64::MAX, SECTOR, 5 * SECTOR][self.random.usize(..4)];
        self.files.state().largest = largest;
        match self.random.u8(..14) {
            0..5 => self.write(index),
            5..7 => self.truncate(index),
            7..9 => self.punch(index),
            9 => self.preallocate(index),
            10 => self.dedupe(index),
            _ => self.clone_range(index),
        }
        self.files.check_content(index);
    }

    fn write(&mut self, index: usize) {
        let offset = self.offset(self.files.files[index].item.size);
        let length = self.length().min(LIMIT - offset.min(LIMIT - 1));
        let data = bytes(&mut self.random, length as usize);
        self.files.edit(index, |phases, file| phases.write(file, offset, &data)).unwrap();
        let model = &mut self.files.files[index].bytes;
        let end = (offset + length) as usize;
        if model.len() < end {
            model.resize(end, 0);
        }
        model[offset as usize..end].copy_from_slice(&data);
    }

    fn truncate(&mut self, index: usize) {
        let size = self.offset(self.files.files[index].item.size);
        let few = self.random.bool();
        loop {
            let progress = self.files.edit(index, |phases, file| {
                if few && size <= file.item.size {
                    phases.shorten(file, size, 2)
                } else {
                    phases.truncate(file, size)
                }
            });
            // Between two steps, the file is shorter and unchanged before its end.
            let shorter = self.files.files[index].item.size;
            self.files.files[index].bytes.resize(shorter as usize, 0);
            if progress.unwrap() == Progress::Done {
                break;
            }
            self.files.check();
        }
        assert_eq!(self.files.files[index].item.size, size);
    }

    fn punch(&mut self, index: usize) {
        let offset = self.offset(self.files.files[index].item.size);
        let length = self.length();
        self.files.edit(index, |phases, file| phases.punch(file, offset, length)).unwrap();
        let model = &mut self.files.files[index].bytes;
        let end = model.len().min((offset + length) as usize);
        if let Some(range) = model.get_mut(offset as usize..end) {
            range.fill(0);
        }
    }

    fn preallocate(&mut self, index: usize) {
        let (offset, length) = (self.offset(self.files.files[index].item.size), self.length());
        let keep = self.random.bool();
        let preallocate = |files: &mut Files| {
            files.edit(index, |phases, file| phases.preallocate(file, offset, length, keep))
        };
        while preallocate(&mut self.files).unwrap() == Progress::More {}
        let model = &mut self.files.files[index].bytes;
        if !keep && model.len() < (offset + length) as usize {
            model.resize((offset + length) as usize, 0);
        }
    }

    /// Returns the index of another file or the same, and ranges at sector boundaries.
    fn ranges(&mut self, index: usize) -> (usize, u64, u64, u64) {
        let source = self.random.usize(..self.files.files.len());
        let size = self.files.files[source].item.size;
        let from = self.offset(size) / SECTOR * SECTOR;
        let to = self.offset(self.files.files[index].item.size) / SECTOR * SECTOR;
        let length =
            if self.random.bool() { size.saturating_sub(from) } else { self.length() / SECTOR * SECTOR };
        (source, from, to, length)
    }

    fn clone_range(&mut self, index: usize) {
        let (source, from, to, length) = self.ranges(index);
        let (model, other) = (self.files.files[source].clone(), self.files.files[index].clone());
        let size = model.item.size;
        let wanted = if length == 0 { size.saturating_sub(from) } else { length };
        let whole = wanted.next_multiple_of(SECTOR);
        let reaches_ends = from + wanted == size && to + wanted >= other.item.size;
        let overlap = source == index && from < to + whole && to < from + whole;
        let checksummed = |item: &InodeItem| !item.flags.contains(InodeFlags::NODATASUM);
        let allowed = checksummed(&model.item) == checksummed(&other.item)
            && from + wanted <= size
            && (wanted > 0 || from == size)
            && (wanted.is_multiple_of(SECTOR) || reaches_ends)
            && !overlap;
        let mut range = None;
        loop {
            let limit = [1, 3, 1000][self.random.usize(..3)];
            let progress = self.files.edit_from(index, source, |phases, file, source| {
                if range.is_none() {
                    let (from, to) = (FileOffset(from), FileOffset(to));
                    range = CloneRange::new(&phases.data.rules, source, from, length, file, to)?;
                }
                range.as_mut().map_or(Ok(Progress::Done), |range| {
                    let progress = phases.share(range, source, file, limit)?;
                    assert_eq!(progress == Progress::Done, range.bytes_done() == wanted);
                    Ok(progress)
                })
            });
            match progress {
                Ok(Progress::More) => {}
                Ok(Progress::Done) => break,
                Err(error) => {
                    assert!(!allowed && error.kind() == ErrorKind::Invalid, "{error}");
                    return;
                }
            }
        }
        assert!(
            allowed,
            "{wanted} bytes at {from} of {size} cannot be shared at {to} of {}",
            other.item.size
        );
        let target = &mut self.files.files[index].bytes;
        let (from, to, wanted) = (from as usize, to as usize, wanted as usize);
        if wanted > 0 && target.len() < to + wanted {
            target.resize(to + wanted, 0);
        }
        if wanted > 0 {
            target[to..to + wanted].copy_from_slice(&model.bytes[from..from + wanted]);
        }
    }

    fn dedupe(&mut self, index: usize) {
        let (source, from, to, length) = self.ranges(index);
        let flags = |file: usize| self.files.files[file].item.flags.contains(InodeFlags::NODATASUM);
        if flags(source) != flags(index) {
            return;
        }
        // Mostly copy the bytes first: random ranges are never equal.
        let size = self.files.files[index].item.size;
        let length = length.min(size.saturating_sub(to));
        if length == 0 || from + length > self.files.files[source].item.size {
            return;
        }
        let same = |files: &Files| {
            let bytes = |file: usize, at: u64| &files.files[file].bytes[at as usize..][..length as usize];
            bytes(source, from) == bytes(index, to)
        };
        if self.random.u8(..4) > 0 && source != index {
            let data = self.files.files[source].bytes[from as usize..][..length as usize].to_vec();
            self.files.edit(index, |phases, file| phases.write(file, to, &data)).unwrap();
            self.files.files[index].bytes[to as usize..][..length as usize].copy_from_slice(&data);
        }
        let before = self.files.files[index].item;
        let mut range = match self.files.edit_from(index, source, |phases, file, source| {
            dedupe(&phases.data, source, FileOffset(from), length, file, FileOffset(to))
        }) {
            Ok(Deduped::Same(range)) => range,
            Ok(Deduped::Nothing) => return,
            Ok(Deduped::Differs) => return assert!(!same(&self.files)),
            Err(error) => return assert!(source == index, "{error}"),
        };
        while self
            .files
            .edit_from(index, source, |phases, file, source| phases.share(&mut range, source, file, 1000))
            .unwrap()
            == Progress::More
        {}
        let after = self.files.files[index].item;
        assert_eq!((before.mtime, before.ctime, before.size), (after.mtime, after.ctime, after.size));
    }
}

fn run(node_size: u32, no_holes: bool, options: WriteOptions, seed: u64, steps: usize) {
    let mut files = Files::new(node_size, no_holes, options);
    for (tree, flags) in [
        (0, InodeFlags::empty()),
        (0, InodeFlags::empty()),
        (1, InodeFlags::empty()),
        (1, InodeFlags::NODATASUM),
        (0, InodeFlags::NODATASUM | InodeFlags::NODATACOW),
    ] {
        files.create(tree, flags);
    }
    let mut run = Run { files, random: fastrand::Rng::with_seed(seed) };
    let mut seen = BTreeSet::new();
    for step in 0..steps {
        run.step();
        for index in 0..run.files.files.len() {
            seen.extend(run.files.map(index).into_iter().map(|(_, _, kind)| kind));
        }
        if step % 16 == 0 {
            run.files.check();
        }
        if step % 100 == 50 {
            run.files.write_out();
        }
    }
    run.files.check();
    let mut wanted = BTreeSet::from(['p', 'r']);
    // With forced compression, all inline data may be compressed.
    if options.max_inline > 0 && !options.force_compression {
        wanted.insert('i');
    }
    if !no_holes {
        wanted.insert('h');
    }
    if options.compression.is_some() {
        wanted.insert('R');
    }
    if options.force_compression {
        wanted.insert('I');
    }
    assert!(seen.is_superset(&wanted), "{seen:?} are not all kinds of extents, {wanted:?}");
    // Deleting all files leaves nothing allocated.
    for index in 0..run.files.files.len() {
        while run.files.edit(index, |phases, file| phases.truncate(file, 0)).unwrap() == Progress::More {}
        run.files.files[index].bytes.clear();
        assert_eq!((run.files.map(index), run.files.files[index].item.nbytes), (vec![], 0));
    }
    run.files.check();
    assert!(run.files.state().allocated.is_empty());
}

fn packed(algorithm: Compression, level: i32, force: bool) -> WriteOptions {
    let choice = CompressionChoice::with_level(algorithm, level).unwrap();
    WriteOptions { compression: Some(choice), force_compression: force, ..WriteOptions::default() }
}

#[test]
fn plain_with_holes_left_out() {
    run(4096, true, WriteOptions::default(), 1, 1_200);
    run(16384, true, WriteOptions::default(), 2, 600);
}

#[test]
fn plain_with_hole_items() {
    run(4096, false, WriteOptions::default(), 3, 1_200);
    run(16384, false, WriteOptions::default(), 4, 600);
}

#[test]
fn without_inline_data() {
    run(4096, true, WriteOptions { max_inline: 0, ..WriteOptions::default() }, 5, 300);
    run(4096, false, WriteOptions { max_inline: 0, ..WriteOptions::default() }, 6, 300);
}

#[test]
fn compressed() {
    run(4096, true, packed(Compression::Zstd, 3, false), 7, 600);
    run(16384, false, packed(Compression::Zlib, 3, false), 8, 400);
    run(16384, true, packed(Compression::Lzo, 0, false), 9, 400);
}

#[test]
fn compressed_by_force() {
    run(16384, true, packed(Compression::Zstd, 1, true), 10, 400);
    run(4096, false, packed(Compression::Lzo, 0, true), 11, 400);
}
