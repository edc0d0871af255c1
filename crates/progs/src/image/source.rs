//! A dump that is read.
//!
//! Owns [`Source`], the index of a dump, and its items. Nothing in a dump is trusted: the memory
//! that reading takes is bounded by the bytes that are there and by the limits below.

use flate2::read::ZlibDecoder;
use papilio_engine::errors::{Error, Result};
use papilio_format::checksum::CHECKSUM_SIZE;
use papilio_format::metadump::{CLUSTER_ALIGNMENT, Cluster, DumpVersion, SUPERBLOCK_ADDRESS};
use papilio_format::superblock::{SUPERBLOCK_SIZE, superblock_offset};
use papilio_format::{ChecksumType, LogicalAddress, Superblock};
use std::fmt::Display;
use std::io::{Read, Seek, SeekFrom};

/// The bytes of an item that are in memory at once: a multiple of every node size.
const PIECE: usize = 256 << 10;

/// Returns the most bytes of an item that is read, uncompressed. `btrfs-image` makes larger ones
/// than the limit for writers where an extent of a v1 free-space cache is larger.
fn item_limit(version: DumpVersion) -> u64 {
    match version {
        DumpVersion::Metadata => 16 << 20,
        DumpVersion::Data => 256 << 20,
    }
}

/// Returns the error for a dump with a fault.
pub(super) fn fault<T>(text: impl Display) -> Result<T> {
    Err(Error::Invalid(format!("the dump: {text}")))
}

#[derive(Clone, Copy, Debug)]
struct Item {
    address: LogicalAddress,
    /// Where its bytes are in the dump.
    at: u64,
    size: u32,
    compressed: bool,
}

/// The index of a dump.
#[derive(Debug)]
pub(super) struct Source<R> {
    input: R,
    version: DumpVersion,
    /// In the order of the dump, without the superblock.
    items: Vec<Item>,
    /// The numbers of the items by address.
    by_address: Vec<usize>,
    superblock: Superblock,
    /// The item that was read last to find a block.
    last: Option<(usize, Vec<u8>)>,
}

impl<R: Read + Seek> Source<R> {
    /// Reads the headers of all clusters, and the superblock.
    ///
    /// # Errors
    /// [`Error::Invalid`] for anything that is no dump, is cut short, or has no good superblock.
    pub(super) fn open(mut input: R) -> Result<Self> {
        let length = input.seek(SeekFrom::End(0)).or_else(fault)?;
        let (mut items, mut version, mut at) = (Vec::new(), None, 0);
        while at < length {
            let mut header = [0; CLUSTER_ALIGNMENT];
            input.seek(SeekFrom::Start(at)).or_else(fault)?;
            if length - at < CLUSTER_ALIGNMENT as u64 {
                return fault(format_args!("it is cut short in the header at {at}"));
            }
            input.read_exact(&mut header).or_else(fault)?;
            let cluster =
                Cluster::parse(&header, at).or_else(|reason| fault(format_args!("at {at}: {reason}")))?;
            if *version.get_or_insert(cluster.version) != cluster.version {
                return fault(format_args!("at {at}: a cluster of another version"));
            }
            let mut place = at + CLUSTER_ALIGNMENT as u64;
            for item in &cluster.items {
                let (address, size) = (item.address, item.size);
                if u64::from(size) > item_limit(cluster.version) {
                    return fault(format_args!("at {at}: an item of {size} bytes, which is too long"));
                }
                items.push(Item { address, at: place, size, compressed: cluster.compressed });
                place += u64::from(size);
            }
            if place > length {
                return fault(format_args!("it is cut short in the cluster at {at}"));
            }
            at = place.next_multiple_of(CLUSTER_ALIGNMENT as u64);
        }
        let Some(version) = version else { return fault("it is empty") };
        let Some(first) = items.iter().position(|item| item.address == SUPERBLOCK_ADDRESS) else {
            return fault("it has no superblock");
        };
        let superblock = items.remove(first);
        let mut bytes = Vec::new();
        read_item(&mut input, &superblock, SUPERBLOCK_SIZE as u64, &mut |_, piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        let superblock = parse_superblock(bytes)?;
        let mut by_address: Vec<_> = (0..items.len()).collect();
        by_address.sort_by_key(|&number| items[number].address);
        Ok(Self { input, version, items, by_address, superblock, last: None })
    }

    pub(super) fn version(&self) -> DumpVersion {
        self.version
    }

    pub(super) fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Returns the number of items, without the superblock.
    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    /// Calls `each` with the bytes of an item, in pieces that are multiples of every node size,
    /// except for the last.
    ///
    /// # Errors
    /// The item is not what zlib made, or is too long; `each` fails.
    pub(super) fn read(
        &mut self,
        number: usize,
        each: &mut dyn FnMut(LogicalAddress, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        read_item(&mut self.input, &self.items[number], item_limit(self.version), each)
    }

    /// Returns the tree block of `length` bytes at `address`, if the dump has it.
    ///
    /// # Errors
    /// As [`Source::read`].
    pub(super) fn block(&mut self, address: LogicalAddress, length: usize) -> Result<Option<Vec<u8>>> {
        let after = self.by_address.partition_point(|&number| self.items[number].address <= address);
        let Some(&number) = after.checked_sub(1).and_then(|at| self.by_address.get(at)) else {
            return Ok(None);
        };
        if self.last.as_ref().is_none_or(|(last, _)| *last != number) {
            let mut bytes = Vec::new();
            let limit = item_limit(DumpVersion::Metadata);
            read_item(&mut self.input, &self.items[number], limit, &mut |_, piece| {
                bytes.extend_from_slice(piece);
                Ok(())
            })?;
            self.last = Some((number, bytes));
        }
        let (_, bytes) = self.last.as_ref().expect("set just before");
        let Ok(offset) = usize::try_from(address.0 - self.items[number].address.0) else { return Ok(None) };
        let range = offset.checked_add(length).and_then(|end| bytes.get(offset..end));
        Ok(range.map(<[u8]>::to_vec))
    }
}

fn read_item(
    input: &mut (impl Read + Seek),
    item: &Item,
    limit: u64,
    each: &mut dyn FnMut(LogicalAddress, &mut [u8]) -> Result<()>,
) -> Result<()> {
    let address = item.address;
    input.seek(SeekFrom::Start(item.at)).or_else(fault)?;
    let raw = input.take(item.size.into());
    let mut reader: Box<dyn Read + '_> =
        if item.compressed { Box::new(ZlibDecoder::new(raw)) } else { Box::new(raw) };
    let (mut piece, mut done) = (Vec::new(), 0);
    loop {
        piece.clear();
        let read = reader.by_ref().take(PIECE as u64).read_to_end(&mut piece);
        let read = read.or_else(|error| fault(format_args!("the item of address {address}: {error}")))?;
        if read == 0 {
            return Ok(());
        }
        if done + read as u64 > limit {
            return fault(format_args!("the item of address {address} has more than {limit} bytes"));
        }
        let Some(start) =
            address.0.checked_add(done).filter(|start| start.checked_add(read as u64).is_some())
        else {
            return fault(format_args!("the item of address {address} reaches past the address space"));
        };
        each(LogicalAddress(start), &mut piece)?;
        done += read as u64;
    }
}

/// Parses the superblock. `btrfs-image` stores a CRC-32C in it, whatever its algorithm is.
fn parse_superblock(mut bytes: Vec<u8>) -> Result<Superblock> {
    if bytes.len() != SUPERBLOCK_SIZE {
        let length = bytes.len();
        return fault(format_args!("its superblock has {length} bytes, not {SUPERBLOCK_SIZE}"));
    }
    mend_checksum(&mut bytes, |bytes| Some(Superblock::parse_unverified(bytes).ok()?.checksum_type()));
    Superblock::parse(&bytes, superblock_offset(0))
        .or_else(|reason| fault(format_args!("superblock: {reason}")))
}

/// Computes the checksum of a block anew if it has a CRC-32C in the place of another.
pub(super) fn mend_checksum(bytes: &mut [u8], algorithm: impl Fn(&[u8]) -> Option<ChecksumType>) {
    let Some(algorithm) = algorithm(bytes).filter(|found| *found != ChecksumType::Crc32c) else { return };
    let (sum, content) = bytes.split_at(CHECKSUM_SIZE);
    if !algorithm.verify(content, sum) && ChecksumType::Crc32c.verify(content, sum) {
        let new = algorithm.compute(content);
        bytes[..CHECKSUM_SIZE].copy_from_slice(new.padded());
    }
}
