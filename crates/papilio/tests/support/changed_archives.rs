//! Disk archives with changed bytes: whatever reads them ends with an error or a file system.
//!
//! Owns [`Archives`], and [`frames`] and [`reseal`], which make checksums fit again. The fuzz
//! target `backup_repository` uses this file, too: its bytes choose the changes, as seeded ones do
//! in the tests of the library.

#![allow(dead_code, reason = "each crate that includes this file uses a part of it")]

use papilio::archive::{
    ArchiveChain, ArchiveOptions, ArchiveReader, ArchiveSource, restore_archive, verify_archive,
};
use papilio::device::{Device, MemoryDevice};
use papilio::format::disk_archive::checksum_of;
use papilio::{FileSystem, MkfsOptions, OpenOptions};
use papilio_device::PhysicalAddress;
use std::io::{Cursor, Read};
use std::sync::Arc;

/// Bytes of an archive's header.
pub const HEADER: usize = 72 << 10;
/// Bytes of a frame's header, and of one of its ranges.
const FRAME: usize = 48;
const RANGE: usize = 12;
/// Bytes of the end mark.
const END: usize = 64;
/// The kind of frames of the table of contents.
const TABLE: u8 = 6;
/// Bytes that encode a change.
const CHANGE: usize = 4;
/// The most changes of an input.
const CHANGES: usize = 16;
/// One of so many inputs is also restored.
const RESTORED: u32 = 8;
/// Bytes of the device.
const SIZE: u64 = 128 << 20;
/// The largest file that is read: sizes are made up.
const LARGEST: u64 = 1 << 20;

/// Returns where each frame starts, and where the last one ends.
pub fn frames(bytes: &[u8]) -> Vec<usize> {
    let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    let mut starts = vec![HEADER];
    while starts[starts.len() - 1] + END < bytes.len() {
        let at = starts[starts.len() - 1];
        starts.push(at + FRAME + number(at + 24) + number(at + 32) * RANGE);
    }
    starts
}

/// Makes all checksums of an archive without compression fit its bytes again. `good` is the archive
/// before it was changed, whose frames and lines of the table are in the same places.
pub fn reseal(bytes: &mut [u8], good: &[u8]) {
    let put = |bytes: &mut [u8], at: usize, sum: u64| bytes[at..at + 8].copy_from_slice(&sum.to_le_bytes());
    let sum = checksum_of(&[&bytes[..HEADER - 8]]);
    put(bytes, HEADER - 8, sum);
    let starts = frames(good);
    let mut sums = Vec::new();
    for pair in starts.windows(2) {
        if good[pair[0] + 4] == TABLE {
            // The table has a line for each frame before it.
            let mut line = pair[0] + FRAME;
            for sum in &sums {
                put(bytes, line + 8, *sum);
                let ranges = u32::from_le_bytes(good[line + 24..line + 28].try_into().unwrap()) as usize;
                line += 32 + ranges * RANGE;
            }
        }
        let sum = checksum_of(&[&bytes[pair[0]..pair[0] + 40], &bytes[pair[0] + FRAME..pair[1]]]);
        put(bytes, pair[0] + 40, sum);
        sums.push(sum);
    }
    let end = bytes.len() - END;
    let sum = checksum_of(&[&bytes[end..end + 56]]);
    put(bytes, end + 56, sum);
}

fn memory(bytes: &[u8]) -> Arc<dyn Device> {
    let device = MemoryDevice::new(bytes.len() as u64);
    device.write_at(bytes, PhysicalAddress(0)).unwrap();
    Arc::new(device)
}

fn reader(bytes: &[u8]) -> Option<ArchiveSource> {
    let input: Box<dyn Read + Send> = Box::new(Cursor::new(bytes.to_vec()));
    ArchiveReader::new(input, "memory").ok()
}

/// A full archive, and one that is based on it, both without compression.
pub struct Archives([Vec<u8>; 2]);

impl Archives {
    /// Makes them.
    ///
    /// # Panics
    /// If the library cannot.
    #[allow(clippy::new_without_default, reason = "it takes a while")]
    pub fn new() -> Self {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(SIZE));
        papilio::mkfs_device(&device, &MkfsOptions::new()).unwrap();
        let fs = FileSystem::from_devices(vec![device], &OpenOptions::new().write(true)).unwrap();
        let options = ArchiveOptions::new().level(0).threads(1);
        let mut archives: [Vec<u8>; 2] = Default::default();
        for number in 0..archives.len() {
            fs.create_dir(format!("/d{number}")).unwrap();
            fs.write(format!("/d{number}/small"), b"inline").unwrap();
            let bytes: Vec<u8> = (0..20_000_u32).map(|at| ((at * 7) >> number) as u8).collect();
            fs.write(format!("/d{number}/file"), bytes).unwrap();
            let parent = (number > 0)
                .then(|| Arc::new(ArchiveChain::open(memory(&archives[0]), &mut |_| Ok(None)).unwrap()));
            fs.archive(parent, &mut archives[number], &options, |_, _| {}).unwrap();
        }
        Self(archives)
    }

    /// Reads the archives after changes that `input` chooses. Returns whether they are still whole.
    pub fn read(&self, input: &[u8]) -> bool {
        let [choice, changes @ ..] = input else { return true };
        let mut archives = self.0.clone();
        let which = usize::from(choice & 1);
        let good = &self.0[which];
        let starts = frames(good);
        let bytes = &mut archives[which];
        for change in changes.chunks_exact(CHANGE).take(CHANGES) {
            let &[low, high, place, value] = change else { continue };
            let number = usize::from(u16::from_le_bytes([low, high]));
            // Fields of the header, the superblock, the map, the table and the end; any frame's
            // header and ranges; any byte.
            let frame = number % (starts.len() - 1);
            let (start, length) = match place % 8 {
                0 => (0, 104),
                1 => (4096, 4096),
                2 => (starts[0], starts[1] - starts[0]),
                3 => (starts[starts.len() - 2], good.len() - starts[starts.len() - 2]),
                4 => (starts[frame], FRAME),
                5 => (starts[frame], starts[frame + 1] - starts[frame]),
                _ => (0, good.len()),
            };
            let at = start + (usize::from(place / 8) + usize::from(high)) * 257 % length;
            let at = if place % 8 < 4 { start + number % length } else { at };
            bytes[at] = match place / 8 % 4 {
                0 => value,
                1 => bytes[at] ^ (1 << (value % 8)),
                2 => 0xff,
                _ => 0,
            };
        }
        match choice / 2 % 8 {
            0 => {}
            1 => bytes.truncate(bytes.len() * usize::from(*choice) / 256),
            _ => reseal(bytes, good),
        }
        let sum = input.iter().fold(0_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(*byte)));
        judge(&archives, sum.is_multiple_of(RESTORED))
    }
}

/// Reads archives in order, at any place and, if asked for, by a restore.
fn judge(archives: &[Vec<u8>; 2], restores: bool) -> bool {
    let mut whole = true;
    for bytes in archives {
        let verified = reader(bytes).map(|mut reader| verify_archive(&mut reader, 1, &mut |_| {}).is_ok());
        whole &= verified == Some(true);
    }
    let chain = ArchiveChain::open(memory(&archives[1]), &mut |_| Ok(Some(memory(&archives[0]))));
    let opened = chain.ok().and_then(|chain| Arc::new(chain).devices().ok());
    let opened = opened.and_then(|devices| FileSystem::from_devices(devices, &OpenOptions::new()).ok());
    whole &= opened.as_ref().is_some_and(reads_all);
    if restores && let [Some(full), Some(next)] = [reader(&archives[0]), reader(&archives[1])] {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(SIZE));
        let mut sources = [full, next];
        let targets = [Arc::clone(&device)];
        let restored = restore_archive(&mut sources, &targets, &std::env::temp_dir(), |_| {});
        let opened = FileSystem::from_devices(vec![device], &OpenOptions::new());
        if restored.is_err() {
            assert!(opened.is_err(), "a restore that failed left a file system");
        }
        whole &= opened.is_ok_and(|fs| reads_all(&fs));
    }
    whole
}

fn reads_all(fs: &FileSystem) -> bool {
    let Ok(walk) = fs.walk("/") else { return false };
    let mut whole = true;
    // A tree that somebody made up may be large.
    for entry in walk.take(100) {
        let Ok(entry) = entry else { return false };
        let metadata = entry.inode.metadata();
        if metadata.is_file() && metadata.size() < LARGEST {
            whole &= entry.inode.open().and_then(|file| file.read_all()).is_ok();
        }
    }
    whole
}
