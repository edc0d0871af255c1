//! `MemoryDevice`: a sparse device in memory whose snapshots share unchanged chunks.
//!
//! It owns chunks of 64 KiB, created by the first write to them; unwritten ranges read as zeros. A
//! chunk is an `Arc`: a snapshot copies only the tables, and a write copies a chunk that a snapshot
//! shares.
//!
//! **Locks**
//! - `shards`: chunks are distributed over shards by number, and each shard has a lock. A read or
//!   write holds one shard at a time. A snapshot or resize holds all, acquired in index order.
//!
//! A single request is therefore not atomic against overlapping requests, as on a disk.

use crate::device::{Access, Device, check_read, check_write};
use papilio_format::PhysicalAddress;
use papilio_locks::{RwLock, in_order};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes per chunk.
const CHUNK_SIZE: usize = 64 * 1024;
const SHARD_COUNT: usize = 32;

type Chunks = HashMap<u64, Arc<[u8]>>;

/// A sparse device in memory. Flushes do nothing; the content ends with the process.
pub struct MemoryDevice {
    name: String,
    size: AtomicU64,
    access: Access,
    shards: Box<[RwLock<Chunks>]>,
}

impl MemoryDevice {
    /// Creates a writable device of `size` bytes, all zero.
    pub fn new(size: u64) -> Self {
        Self::from_tables(size, (0..SHARD_COUNT).map(|_| Chunks::new()).collect())
    }

    fn from_tables(size: u64, tables: Vec<Chunks>) -> Self {
        let shards = tables.into_iter().map(RwLock::new).collect();
        Self { name: "memory".to_owned(), size: AtomicU64::new(size), access: Access::ReadWrite, shards }
    }

    /// Returns the device with another name for messages.
    pub fn with_name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Returns the device with writes refused or allowed.
    pub fn with_access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Reads a whole image file; its holes stay holes.
    ///
    /// # Errors
    /// The host's error.
    pub fn from_image(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let size = file.metadata()?.len();
        let device = Self::new(size);
        let mut buffer = vec![0; CHUNK_SIZE];
        let mut offset = 0;
        while let Some(data) = seek_data(&file, offset)?.filter(|data| *data < size) {
            let start = data - data % CHUNK_SIZE as u64;
            let length = (size - start).min(CHUNK_SIZE as u64) as usize;
            file.read_exact_at(&mut buffer[..length], start)?;
            device.write_at(&buffer[..length], PhysicalAddress(start))?;
            offset = start + length as u64;
        }
        Ok(device)
    }

    /// Writes the content to a file, which is created or replaced. Unwritten chunks become holes.
    ///
    /// # Errors
    /// The host's error; the file may be partly written.
    pub fn write_image(&self, path: &Path) -> io::Result<()> {
        let snapshot = self.snapshot();
        let file = File::create(path)?;
        let size = snapshot.size();
        file.set_len(size)?;
        for shard in &snapshot.shards {
            for (number, chunk) in shard.read().iter() {
                let start = number * CHUNK_SIZE as u64;
                let length = size.saturating_sub(start).min(CHUNK_SIZE as u64) as usize;
                file.write_all_at(&chunk[..length], start)?;
            }
        }
        Ok(())
    }

    /// Returns an independent device with the content of this moment. Copies one table entry per
    /// chunk; data is copied only when either device writes it.
    pub fn snapshot(&self) -> Self {
        let _order = in_order("shards, by index");
        let held: Vec<_> = self.shards.iter().map(|shard| shard.read()).collect();
        let tables = held.iter().map(|shard| (**shard).clone()).collect();
        let mut snapshot = Self::from_tables(self.size.load(Ordering::Acquire), tables);
        snapshot.name.clone_from(&self.name);
        snapshot.access = self.access;
        snapshot
    }

    /// Returns the bytes of memory that hold data. A shared chunk counts in every device that has
    /// it.
    pub fn resident(&self) -> u64 {
        self.shards.iter().map(|shard| shard.read().len() as u64 * CHUNK_SIZE as u64).sum()
    }

    /// Whether two devices have the same size and content. Chunks that snapshots share are not
    /// read.
    pub fn same_content(&self, other: &Self) -> bool {
        let (one, other) = (self.snapshot(), other.snapshot());
        let is_zero = |chunk: &[u8]| chunk.iter().all(|byte| *byte == 0);
        let same = |left: &Chunks, right: &Chunks| {
            let equal = left.iter().all(|(number, chunk)| match right.get(number) {
                Some(found) => Arc::ptr_eq(chunk, found) || chunk == found,
                None => is_zero(chunk),
            });
            equal && right.iter().all(|(number, chunk)| left.contains_key(number) || is_zero(chunk))
        };
        let mut shards = one.shards.iter().zip(&other.shards);
        one.size() == other.size() && shards.all(|(left, right)| same(&left.read(), &right.read()))
    }

    /// Grows or shrinks the device. A truncated part reads as zeros after growing again.
    pub fn resize(&self, size: u64) {
        let _order = in_order("shards, by index");
        let mut held: Vec<_> = self.shards.iter().map(|shard| shard.write()).collect();
        self.size.store(size, Ordering::Release);
        let (last, used) = (size / CHUNK_SIZE as u64, (size % CHUNK_SIZE as u64) as usize);
        for shard in &mut held {
            shard.retain(|number, _| *number < last || (*number == last && used > 0));
            if let Some(chunk) = shard.get_mut(&last) {
                Arc::make_mut(chunk)[used..].fill(0);
            }
        }
    }

    fn shard(&self, chunk: u64) -> &RwLock<Chunks> {
        &self.shards[(chunk % SHARD_COUNT as u64) as usize]
    }

    fn zero(&self, piece: &ChunkPiece) {
        let mut shard = self.shard(piece.chunk).write();
        if piece.length == CHUNK_SIZE {
            shard.remove(&piece.chunk);
        } else if let Some(chunk) = shard.get_mut(&piece.chunk) {
            Arc::make_mut(chunk)[piece.start..piece.start + piece.length].fill(0);
        }
    }
}

/// The part of a range within one chunk.
struct ChunkPiece {
    chunk: u64,
    start: usize,
    length: usize,
}

/// Splits a range, already checked against the size, at chunk borders.
fn pieces(offset: PhysicalAddress, length: u64) -> impl Iterator<Item = ChunkPiece> {
    let (mut at, end) = (offset.get(), offset.get() + length);
    std::iter::from_fn(move || {
        if at == end {
            return None;
        }
        let start = (at % CHUNK_SIZE as u64) as usize;
        let length = (end - at).min((CHUNK_SIZE - start) as u64) as usize;
        let piece = ChunkPiece { chunk: at / CHUNK_SIZE as u64, start, length };
        at += length as u64;
        Some(piece)
    })
}

/// Returns the next offset at or after `offset` that holds data, if any.
fn seek_data(file: &File, offset: u64) -> io::Result<Option<u64>> {
    match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(offset)) {
        Ok(data) => Ok(Some(data)),
        Err(rustix::io::Errno::NXIO) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

impl Device for MemoryDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    fn access(&self) -> Access {
        self.access
    }

    fn read_at(&self, buffer: &mut [u8], offset: PhysicalAddress) -> io::Result<()> {
        check_read(self.size(), offset, buffer.len())?;
        let mut rest = buffer;
        for piece in pieces(offset, rest.len() as u64) {
            let (part, tail) = rest.split_at_mut(piece.length);
            match self.shard(piece.chunk).read().get(&piece.chunk) {
                Some(chunk) => part.copy_from_slice(&chunk[piece.start..piece.start + piece.length]),
                None => part.fill(0),
            }
            rest = tail;
        }
        Ok(())
    }

    fn write_at(&self, buffer: &[u8], offset: PhysicalAddress) -> io::Result<()> {
        check_write(self.access, self.size(), offset, buffer.len() as u64)?;
        let mut rest = buffer;
        for piece in pieces(offset, buffer.len() as u64) {
            let (part, tail) = rest.split_at(piece.length);
            let mut shard = self.shard(piece.chunk).write();
            let chunk = shard.entry(piece.chunk).or_insert_with(|| Arc::from(vec![0; CHUNK_SIZE]));
            Arc::make_mut(chunk)[piece.start..piece.start + piece.length].copy_from_slice(part);
            rest = tail;
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        check_write(self.access, 0, PhysicalAddress(0), 0)
    }

    /// Holes are known in chunks. The cost depends on the number of existing ones.
    fn next_data(&self, offset: PhysicalAddress) -> Option<PhysicalAddress> {
        let first = offset.get() / CHUNK_SIZE as u64;
        if self.shard(first).read().contains_key(&first) {
            return (offset.get() < self.size()).then_some(offset);
        }
        let next = |shard: &RwLock<Chunks>| shard.read().keys().copied().filter(|at| *at > first).min();
        let at = self.shards.iter().filter_map(next).min()? * CHUNK_SIZE as u64;
        (at < self.size()).then_some(PhysicalAddress(at))
    }

    /// Zeroes the range. The cost depends on the number of existing chunks, not on `length`.
    fn discard(&self, offset: PhysicalAddress, length: u64) -> io::Result<()> {
        check_write(self.access, self.size(), offset, length)?;
        let end = offset.get() + length;
        let whole = offset.get().div_ceil(CHUNK_SIZE as u64)..end / CHUNK_SIZE as u64;
        if whole.is_empty() {
            pieces(offset, length).for_each(|piece| self.zero(&piece));
            return Ok(());
        }
        for shard in &self.shards {
            shard.write().retain(|number, _| !whole.contains(number));
        }
        let head = whole.start * CHUNK_SIZE as u64 - offset.get();
        let tail = whole.end * CHUNK_SIZE as u64;
        pieces(offset, head).for_each(|piece| self.zero(&piece));
        pieces(PhysicalAddress(tail), end - tail).for_each(|piece| self.zero(&piece));
        Ok(())
    }
}

impl std::fmt::Debug for MemoryDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryDevice")
            .field("name", &self.name)
            .field("size", &self.size())
            .field("access", &self.access)
            .field("resident", &self.resident())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(device: &MemoryDevice, offset: u64, length: usize) -> Vec<u8> {
        let mut buffer = vec![0xee; length];
        device.read_at(&mut buffer, PhysicalAddress(offset)).unwrap();
        buffer
    }

    #[test]
    fn huge_and_sparse() {
        let device = MemoryDevice::new(10 << 40);
        let border = (5 << 40) - 3;
        device.write_at(b"across", PhysicalAddress(border)).unwrap();
        assert_eq!(read(&device, border - 1, 8), b"\0across\0");
        assert_eq!(read(&device, 0, 100), [0; 100]);
        assert_eq!(device.resident(), 2 * CHUNK_SIZE as u64);
        device.discard(PhysicalAddress(0), 10 << 40).unwrap();
        assert_eq!(device.resident(), 0);
        assert_eq!(read(&device, border, 6), [0; 6]);
    }

    #[test]
    fn discard_keeps_neighbouring_bytes() {
        let device = MemoryDevice::new(1 << 20);
        let content = vec![1; 1 << 20];
        for (start, length) in
            [(10, 20), (65_530, 10), (100, 200_000), (65_536, 65_536), (5, 0), (0, 1 << 20)]
        {
            device.write_at(&content, PhysicalAddress(0)).unwrap();
            device.discard(PhysicalAddress(start as u64), length as u64).unwrap();
            let mut expected = content.clone();
            expected[start..start + length].fill(0);
            assert_eq!(read(&device, 0, 1 << 20), expected, "{start}+{length}");
        }
    }

    #[test]
    fn holes_are_known() {
        let device = MemoryDevice::new(10 << 40);
        assert_eq!(device.next_data(PhysicalAddress(0)), None);
        device.write_at(b"x", PhysicalAddress(5 << 40)).unwrap();
        device.write_at(b"x", PhysicalAddress(100_000)).unwrap();
        let next = |at| device.next_data(PhysicalAddress(at)).map(|found| found.get());
        assert_eq!(next(0), Some(65_536));
        assert_eq!(next(65_600), Some(65_600));
        assert_eq!(next(131_072), Some(5 << 40));
        assert_eq!(next((5 << 40) + 65_536), None);
    }

    #[test]
    fn content_is_compared_by_bytes() {
        let device = MemoryDevice::new(1 << 20);
        device.write_at(b"old", PhysicalAddress(7)).unwrap();
        let copy = device.snapshot();
        assert!(device.same_content(&copy));
        copy.write_at(b"old", PhysicalAddress(7)).unwrap();
        copy.write_at(&[0; 5], PhysicalAddress(500_000)).unwrap();
        assert!(device.same_content(&copy) && copy.same_content(&device));
        copy.write_at(b"x", PhysicalAddress(500_003)).unwrap();
        assert!(!device.same_content(&copy) && !copy.same_content(&device));
        assert!(!device.same_content(&MemoryDevice::new(2 << 20)));
    }

    #[test]
    fn snapshot_is_independent() {
        let device = MemoryDevice::new(1 << 20);
        device.write_at(b"old", PhysicalAddress(7)).unwrap();
        let snapshot = device.snapshot();
        device.write_at(b"new", PhysicalAddress(7)).unwrap();
        assert_eq!(read(&snapshot, 7, 3), b"old");
        snapshot.write_at(b"own", PhysicalAddress(7)).unwrap();
        assert_eq!(read(&device, 7, 3), b"new");
        assert_eq!(read(&snapshot, 7, 3), b"own");
    }

    #[test]
    fn size_and_access_are_enforced() {
        let device = MemoryDevice::new(100);
        let error = device.read_at(&mut [0; 2], PhysicalAddress(99)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        let error = device.write_at(&[0; 2], PhysicalAddress(99)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        let device = device.with_access(Access::ReadOnly);
        for result in [
            device.write_at(&[0], PhysicalAddress(0)),
            device.flush(),
            device.discard(PhysicalAddress(0), 1),
            device.write_fua(&[0], PhysicalAddress(0)),
        ] {
            assert_eq!(result.unwrap_err().kind(), io::ErrorKind::ReadOnlyFilesystem);
        }
    }

    #[test]
    fn truncated_bytes_read_as_zeros_after_growing() {
        let device = MemoryDevice::new(200_000);
        device.write_at(&[1; 200_000], PhysicalAddress(0)).unwrap();
        device.resize(70_000);
        device.resize(200_000);
        let content = read(&device, 0, 200_000);
        assert!(content[..70_000].iter().all(|byte| *byte == 1));
        assert!(content[70_000..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn image_round_trips() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        let device = MemoryDevice::new((1 << 30) + 5);
        device.write_at(b"first", PhysicalAddress(70_000)).unwrap();
        device.write_at(b"last!", PhysicalAddress(1 << 30)).unwrap();
        device.write_image(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), (1 << 30) + 5);
        let again = MemoryDevice::from_image(&path).unwrap();
        assert_eq!(again.size(), device.size());
        assert_eq!(read(&again, 70_000, 5), b"first");
        assert_eq!(read(&again, 1 << 30, 5), b"last!");
        assert!(again.resident() <= 4 * CHUNK_SIZE as u64, "{} bytes", again.resident());
    }
}
