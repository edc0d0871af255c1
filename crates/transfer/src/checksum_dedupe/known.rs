//! The state file: the checksums that one run knows, so that the next one looks at newer ones.
//!
//! Owns [`StateKey`], [`KnownState`] and [`NewState`].
//!
//! | bytes | content |
//! |---|---|
//! | 8 | `PAPDDUP1` |
//! | 16 | UUID of the file system |
//! | 8 | the transaction up to which all checksums are known |
//! | 4, 4, 4, 4 | sector size, number of the checksum's type, sectors of a seed, 0 |
//! | 8, 8 | numbers of extents and of seeds |
//! | 8 | hash of the bytes before |
//! | 16 each | extents: hash of all checksums, address; sorted |
//! | 16 each | seeds: hash of the checksums of a few sectors, address of the first; sorted |
//! | 8 | hash of extents and seeds, by blocks of 1 MiB, each with the hash before it |
//!
//! All numbers are little endian, and all hashes XXH64.
//!
//! **Invariants**
//! - A file that is not one of this file system is never replaced.
//! - Nothing in the file is trusted: each name in it is looked up again before it counts.

use super::pairs::{PAIR_BYTES, Pair, StoredPairs, write_pair};
use papilio_format::{ChecksumType, Uuid};
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

const MAGIC: &[u8; 8] = b"PAPDDUP1";
const HEADER: usize = 72;
const HASHED_HEADER: usize = HEADER - 8;
const HASH_BLOCK: usize = 1 << 20;

/// The file system that a state file is valid for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StateKey {
    pub(super) fsid: Uuid,
    pub(super) sector_size: u32,
    pub(super) checksum_type: u32,
    /// Sectors of a seed.
    pub(super) seed_sectors: u32,
}

/// An opened state file.
pub(super) struct KnownState {
    pub(super) generation: u64,
    pub(super) extents: KnownPairs,
    pub(super) seeds: KnownPairs,
}

/// Pairs of a state file, the next one known.
pub(super) struct KnownPairs {
    stored: StoredPairs<File>,
    next: Option<Pair>,
}

/// A state file that cannot be used.
pub(super) enum BadState {
    /// It is not one of this file system, and must stay.
    Refused(String),
    /// It can be replaced by a new one.
    Outdated(String),
    /// It cannot be read.
    Unreadable(io::Error),
}

/// A state file that is being written.
pub(super) struct NewState {
    path: PathBuf,
    file: BufWriter<NamedTempFile>,
    key: StateKey,
    counts: [u64; 2],
    hash: BlockHash,
}

/// A hash over blocks.
#[derive(Default)]
struct BlockHash {
    hash: u64,
    block: Vec<u8>,
}

impl BlockHash {
    fn add(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.block.is_empty() {
                self.block.extend(self.hash.to_le_bytes());
            }
            let (now, later) = bytes.split_at(bytes.len().min(HASH_BLOCK + 8 - self.block.len()));
            self.block.extend(now);
            bytes = later;
            if self.block.len() == HASH_BLOCK + 8 {
                self.hash = hash_of(&self.block);
                self.block.clear();
            }
        }
    }

    fn finish(self) -> u64 {
        if self.block.is_empty() { self.hash } else { hash_of(&self.block) }
    }
}

/// Returns the XXH64 of bytes.
pub(super) fn hash_of(bytes: &[u8]) -> u64 {
    let sum = ChecksumType::XxHash64.compute(bytes);
    u64::from_le_bytes(*sum.as_bytes().first_chunk().expect("XxHash64 has 8 bytes"))
}

fn header(key: &StateKey, generation: u64, counts: [u64; 2]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(key.fsid.as_bytes());
    bytes.extend(generation.to_le_bytes());
    for number in [key.sector_size, key.checksum_type, key.seed_sectors, 0] {
        bytes.extend(number.to_le_bytes());
    }
    for count in counts {
        bytes.extend(count.to_le_bytes());
    }
    bytes.extend(hash_of(&bytes).to_le_bytes());
    bytes
}

impl KnownState {
    /// Opens the state file; `None` if there is none. `newest` is the file system's last
    /// transaction.
    pub(super) fn open(path: &Path, key: &StateKey, newest: u64) -> Result<Option<Self>, BadState> {
        let mut file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(BadState::Unreadable(error)),
        };
        let size = file.metadata().map_err(BadState::Unreadable)?.len();
        if size == 0 {
            return Ok(None);
        }
        let mut bytes = [0; HEADER];
        let outdated = |reason: &str| Err(BadState::Outdated(reason.to_owned()));
        let mut read = Vec::new();
        (&file).take(HEADER as u64).read_to_end(&mut read).map_err(BadState::Unreadable)?;
        if read.len() < MAGIC.len() || read[..8] != MAGIC[..] {
            return Err(BadState::Refused("it is no state file of dedupe".to_owned()));
        }
        if read.len() < HEADER {
            return outdated("it was cut off");
        }
        bytes.copy_from_slice(&read);
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        if number(HASHED_HEADER) != hash_of(&bytes[..HASHED_HEADER]) {
            return outdated("it is damaged");
        }
        let fsid: [u8; 16] = bytes[8..24].try_into().expect("16 bytes");
        if fsid != *key.fsid.as_bytes() {
            let owner = Uuid::from_bytes(fsid);
            return Err(BadState::Refused(format!("it belongs to the file system {owner}")));
        }
        let (generation, counts) = (number(24), [number(48), number(56)]);
        if bytes[..] != header(key, generation, counts)[..] {
            return outdated("it was made with other options");
        }
        if generation > newest {
            return outdated("it is newer than the file system");
        }
        let pairs = counts[0].checked_add(counts[1]);
        let body = pairs.and_then(|pairs| pairs.checked_mul(PAIR_BYTES as u64));
        let Some(body) = body.filter(|body| body.checked_add(HEADER as u64 + 8) == Some(size)) else {
            return outdated("it was cut off");
        };
        if !is_whole(&mut file, body).map_err(BadState::Unreadable)? {
            return outdated("it is damaged");
        }
        let section = |start: u64, count: u64| {
            let open = || {
                let mut file = File::open(path)?;
                file.seek(SeekFrom::Start(start))?;
                KnownPairs::new(StoredPairs::new(file, count))
            };
            open().map_err(BadState::Unreadable)
        };
        let seeds = HEADER as u64 + counts[0] * PAIR_BYTES as u64;
        Ok(Some(Self {
            generation,
            extents: section(HEADER as u64, counts[0])?,
            seeds: section(seeds, counts[1])?,
        }))
    }
}

/// Reads the body, at which the file stands, and compares its hash.
fn is_whole(file: &mut File, body: u64) -> io::Result<bool> {
    let (mut left, mut hash, mut buffer) = (body, BlockHash::default(), vec![0; HASH_BLOCK]);
    while left > 0 {
        let part = left.min(HASH_BLOCK as u64) as usize;
        file.read_exact(&mut buffer[..part])?;
        hash.add(&buffer[..part]);
        left -= part as u64;
    }
    let mut stored = [0; 8];
    file.read_exact(&mut stored)?;
    Ok(u64::from_le_bytes(stored) == hash.finish())
}

impl KnownPairs {
    fn new(mut stored: StoredPairs<File>) -> io::Result<Self> {
        let next = stored.next()?;
        Ok(Self { stored, next })
    }

    /// Returns the next pair without removing it.
    pub(super) fn peek(&self) -> Option<Pair> {
        self.next
    }

    /// Removes the pairs with the number `number`, and appends their addresses to `into`.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(super) fn take(&mut self, number: u64, into: &mut Vec<u64>) -> io::Result<()> {
        while let Some((_, address)) = self.next.filter(|(next, _)| *next == number) {
            into.push(address);
            self.next = self.stored.next()?;
        }
        Ok(())
    }
}

impl NewState {
    /// Begins a state file beside the old one.
    pub(super) fn create(path: &Path, key: StateKey) -> io::Result<Self> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let mut file = NamedTempFile::new_in(folder.unwrap_or(Path::new(".")))?;
        file.write_all(&[0; HEADER])?;
        let file = BufWriter::with_capacity(1 << 18, file);
        Ok(Self { path: path.to_owned(), file, key, counts: [0; 2], hash: BlockHash::default() })
    }

    /// Adds an extent. They come in order, and all before the first seed.
    pub(super) fn extent(&mut self, pair: Pair) -> io::Result<()> {
        self.counts[0] += 1;
        self.pair(pair)
    }

    /// Adds a seed. They come in order.
    pub(super) fn seed(&mut self, pair: Pair) -> io::Result<()> {
        self.counts[1] += 1;
        self.pair(pair)
    }

    fn pair(&mut self, pair: Pair) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(PAIR_BYTES);
        write_pair(&mut bytes, pair)?;
        self.hash.add(&bytes);
        self.file.write_all(&bytes)
    }

    /// Puts the file in the place of the old one.
    pub(super) fn finish(mut self, generation: u64) -> io::Result<()> {
        self.file.write_all(&self.hash.finish().to_le_bytes())?;
        let mut file = self.file.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.rewind()?;
        file.write_all(&header(&self.key, generation, self.counts))?;
        file.as_file().sync_all()?;
        file.persist(&self.path).map_err(|error| error.error)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: StateKey =
        StateKey { fsid: Uuid::from_bytes([7; 16]), sector_size: 4096, checksum_type: 0, seed_sectors: 4 };

    fn write(path: &Path, pairs: u64) {
        let mut state = NewState::create(path, KEY).unwrap();
        for number in 0..pairs {
            state.extent((number, number * 2)).unwrap();
        }
        for number in 0..2 * pairs {
            state.seed((number, number * 3)).unwrap();
        }
        state.finish(30).unwrap();
    }

    fn reason(found: Result<Option<KnownState>, BadState>) -> String {
        match found {
            Ok(found) => format!("used: {}", found.is_some()),
            Err(BadState::Refused(reason)) => format!("refused: {reason}"),
            Err(BadState::Outdated(reason)) => format!("outdated: {reason}"),
            Err(BadState::Unreadable(error)) => format!("unreadable: {error}"),
        }
    }

    #[test]
    fn a_state_comes_back_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        assert_eq!(reason(KnownState::open(&path, &KEY, 30)), "used: false");
        write(&path, 100_000);
        let mut known = KnownState::open(&path, &KEY, 30).ok().flatten().unwrap();
        assert_eq!((known.generation, known.extents.peek()), (30, Some((0, 0))));
        let mut addresses = Vec::new();
        known.extents.take(0, &mut addresses).unwrap();
        known.extents.take(1, &mut addresses).unwrap();
        assert_eq!((addresses, known.extents.peek()), (vec![0, 2], Some((2, 4))));
        let mut seeds = 0;
        while let Some((number, address)) = known.seeds.peek() {
            assert_eq!((number, address), (seeds, seeds * 3));
            known.seeds.take(number, &mut Vec::new()).unwrap();
            seeds += 1;
        }
        assert_eq!(seeds, 200_000);
    }

    #[test]
    fn every_wrong_state_is_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        write(&path, 1000);
        let good = std::fs::read(&path).unwrap();
        let open = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            reason(KnownState::open(&path, &KEY, 30))
        };
        assert_eq!(open(&good), "used: true");
        assert_eq!(open(b""), "used: false");
        assert_eq!(open(b"#!/bin/sh\n"), "refused: it is no state file of dedupe");
        for cut in [8, HEADER - 1, HEADER, HEADER + 20, good.len() - 1] {
            assert_eq!(open(&good[..cut]), "outdated: it was cut off", "{cut}");
        }
        for changed in [10, 30, 60, HEADER, HEADER + 16 * 1000 + 3, good.len() - 1] {
            let mut bad = good.clone();
            bad[changed] ^= 0x10;
            assert_eq!(open(&bad), "outdated: it is damaged", "{changed}");
        }
        std::fs::write(&path, &good).unwrap();
        let other = StateKey { fsid: Uuid::from_bytes([8; 16]), ..KEY };
        assert!(reason(KnownState::open(&path, &other, 30)).starts_with("refused: it belongs to"));
        let other = StateKey { seed_sectors: 8, ..KEY };
        assert_eq!(reason(KnownState::open(&path, &other, 30)), "outdated: it was made with other options");
        assert_eq!(reason(KnownState::open(&path, &KEY, 29)), "outdated: it is newer than the file system");
        assert!(reason(KnownState::open(folder.path(), &KEY, 30)).starts_with("unreadable"));
    }
}
