//! Directories of XFS: in the inode, in one block, and in many.
//!
//! Owns [`XfsFs::for_each_xfs_entry`]. Entries lie in the first 32 GiB of a directory. The indexes
//! behind them, by hash and by free space, are read for their checksums only: entries alone say
//! everything that Btrfs needs.
//!
//! Source: "XFS Algorithms & Data Structures", chapter "Directories".

use super::fields::{is_intact, u16_at, u32_at, u64_at};
use super::inode::{Format, XfsInode};
use super::reader::XfsFs;
use crate::error::Result;
use crate::source::{Extent, SourceEntry};
use papilio_format::items::dir_item::is_file_name;
use papilio_format::items::inode::FileKind;

/// The byte of a directory at which the index by hash begins, and that by free space.
const INDEX: u64 = 32 << 30;
const FREE_INDEX: u64 = 64 << 30;
/// The tag of unused space.
const UNUSED: u16 = 0xffff;
/// The unit of entries in a block.
const UNIT: usize = 8;

/// An entry as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RawEntry<'a> {
    inode: u64,
    name: &'a [u8],
    /// 0 if the entry does not say it.
    kind: u8,
}

/// Splits a directory in an inode. Returns the parent.
fn short_entries<'a>(
    bytes: &'a [u8],
    has_kinds: bool,
    act: &mut dyn FnMut(RawEntry<'a>) -> Result<(), String>,
) -> Result<u64, String> {
    let cut = || "an entry is cut".to_owned();
    let [count, long, ..] = *bytes else { return Err(cut()) };
    let width = if long > 0 { 8 } else { 4 };
    let number = |bytes: &[u8]| if width == 8 { u64_at(bytes, 0) } else { u32_at(bytes, 0).into() };
    let parent = bytes.get(2..2 + width).map(number).ok_or_else(cut)?;
    let mut rest = &bytes[2 + width..];
    for _ in 0..count {
        let length = usize::from(*rest.first().ok_or_else(cut)?);
        let kind_at = 3 + length;
        let inode_at = kind_at + usize::from(has_kinds);
        let entry = rest.get(..inode_at + width).ok_or_else(cut)?;
        act(RawEntry {
            inode: number(&entry[inode_at..]),
            name: &entry[3..kind_at],
            kind: if has_kinds { entry[kind_at] } else { 0 },
        })?;
        rest = &rest[inode_at + width..];
    }
    Ok(parent)
}

/// Splits a block of a directory. `start` is the byte behind its header.
fn block_entries<'a>(
    block: &'a [u8],
    start: usize,
    has_kinds: bool,
    act: &mut dyn FnMut(RawEntry<'a>) -> Result<(), String>,
) -> Result<(), String> {
    let mut end = block.len();
    if matches!(&block[..4], b"XD2B" | b"XDB3") {
        // The only block has its index at its end.
        let count = u32_at(block, end - 8) as usize;
        let index = count.checked_mul(8).and_then(|bytes| (end - 8).checked_sub(bytes));
        end = index.filter(|index| *index >= start).ok_or("its index does not fit")?;
    }
    let mut at = start;
    while at < end {
        let rest = &block[at..end];
        if u16_at(rest, 0) == UNUSED {
            let length = usize::from(u16_at(rest, 2));
            if length < UNIT || length % UNIT != 0 || length > rest.len() {
                return Err(format!("{length} bytes of unused space"));
            }
            at += length;
            continue;
        }
        if rest.len() < 2 * UNIT {
            return Err("an entry is cut".to_owned());
        }
        let name_end = 9 + usize::from(rest[8]);
        let length = (name_end + usize::from(has_kinds) + 2).next_multiple_of(UNIT);
        if length > rest.len() {
            return Err("a name is longer than its block".to_owned());
        }
        if usize::from(u16_at(rest, length - 2)) != at {
            return Err(format!("the entry at byte {at} says that it is elsewhere"));
        }
        act(RawEntry {
            inode: u64_at(rest, 0),
            name: &rest[9..name_end],
            kind: if has_kinds { rest[name_end] } else { 0 },
        })?;
        at += length;
    }
    Ok(())
}

/// Returns the kind that an entry says; `Err` if there is no such kind.
fn kind_of(kind: u8) -> Result<Option<FileKind>, String> {
    Ok(Some(match kind {
        0 => return Ok(None),
        1 => FileKind::Regular,
        2 => FileKind::Directory,
        // Overlay file systems mark deleted names with devices (8).
        3 | 8 => FileKind::CharacterDevice,
        4 => FileKind::BlockDevice,
        5 => FileKind::Fifo,
        6 => FileKind::Socket,
        7 => FileKind::Symlink,
        other => return Err(format!("an entry of the unknown kind {other}")),
    }))
}

impl XfsFs {
    /// Calls `act` with the entries of a directory, in the order of their places, except for `.`
    /// and `..`. Returns the parent.
    ///
    /// # Errors
    /// Damage; errors of `act`; the device's.
    pub(crate) fn for_each_xfs_entry(
        &self,
        inode: &XfsInode,
        act: &mut dyn FnMut(SourceEntry<'_>) -> Result<()>,
    ) -> Result<u64> {
        let place = || format!("directory {}", inode.own);
        let is_short = inode.data.format == Format::Local;
        let (mut parent, mut dots) = (0, 0);
        let mut failed = None;
        let mut take = |raw: RawEntry<'_>| -> Result<(), String> {
            match raw.name {
                b"." if !is_short && dots == 0 => {
                    dots = 1;
                    let is_own = raw.inode == inode.own;
                    return if is_own { Ok(()) } else { Err("its entry . is another directory".to_owned()) };
                }
                b".." if !is_short && dots == 1 => {
                    (parent, dots) = (raw.inode, 2);
                    return Ok(());
                }
                name if !is_file_name(name) => return Err("it has an invalid name".to_owned()),
                _ if !is_short && dots < 2 => return Err("it does not begin with . and ..".to_owned()),
                _ => {}
            }
            if self.superblock.place_of_inode(raw.inode).is_none() || raw.inode == self.superblock.root {
                return Err(format!("an entry leads to inode {}, which cannot have one", raw.inode));
            }
            let entry = SourceEntry { inode: raw.inode, name: raw.name, kind: kind_of(raw.kind)? };
            act(entry).map_err(|error| {
                failed = Some(error);
                String::new()
            })
        };
        let has_kinds = self.superblock.has_kinds;
        let result = match is_short {
            true => {
                let size = inode.size as usize;
                match inode.data.bytes.get(..size) {
                    Some(bytes) => short_entries(bytes, has_kinds, &mut take)
                        .map_err(|reason| self.damaged(place(), reason))
                        .map(|found| (parent, dots) = (found, 2)),
                    None => Err(self.damaged(place(), format!("its size is {size} bytes"))),
                }
            }
            false => self.directory_blocks(inode, &mut |block| {
                let start = if self.superblock.is_v5 { 64 } else { 16 };
                block_entries(block, start, has_kinds, &mut take)
                    .map_err(|reason| self.damaged(place(), reason))
            }),
        };
        if let Some(error) = failed {
            return Err(error);
        }
        result?;
        if dots < 2 {
            return Err(self.damaged(place(), "it does not begin with . and .."));
        }
        if self.superblock.place_of_inode(parent).is_none() {
            return Err(self.damaged(place(), format!("its parent is inode {parent}, which cannot be")));
        }
        Ok(self.counted(parent))
    }

    /// Calls `act` with the blocks of a directory that hold entries, and verifies all others.
    fn directory_blocks(&self, inode: &XfsInode, act: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let bad = |reason: String| Err(self.damaged(format!("directory {}", inode.own), reason));
        let size = self.superblock.block_size;
        let whole = self.superblock.directory_block;
        let mut block: Vec<u8> = Vec::with_capacity(whole);
        // The byte of the directory that comes next in `block`, and its place on the device.
        let (mut next, mut first_place) = (0, 0);
        let mut walk = |extent: Extent| {
            if !extent.written {
                return bad(format!("its block {} was not written", extent.logical));
            }
            for at in 0..extent.length {
                let byte = (extent.logical + at) * size;
                if block.is_empty() {
                    if !byte.is_multiple_of(whole as u64) {
                        return bad(format!("the block at byte {byte} has no beginning"));
                    }
                    (next, first_place) = (byte, extent.physical + at);
                } else if byte != next {
                    return bad(format!("byte {next} is missing"));
                }
                block.extend(self.blocks(extent.physical + at, 1)?);
                next += size;
                if block.len() == whole {
                    let start = next - whole as u64;
                    self.check_directory_block(inode, &block, start, first_place)?;
                    if start < INDEX {
                        act(&block)?;
                    }
                    block.clear();
                }
            }
            Ok(())
        };
        self.for_each_in_fork(inode, &inode.data, &mut walk, &mut |_| Ok(()))?;
        if block.is_empty() { Ok(()) } else { bad(format!("byte {next} is missing")) }
    }

    /// Checks what a block of a directory says of itself. `start` is its byte in the directory,
    /// `place` its block on the device.
    fn check_directory_block(&self, inode: &XfsInode, block: &[u8], start: u64, place: u64) -> Result<()> {
        let bad = |reason: &str| {
            let reason = format!("the block at byte {start} {reason}");
            Err(self.damaged(format!("directory {}", inode.own), reason))
        };
        let is_v5 = self.superblock.is_v5;
        let magic = &block[..4];
        if !(INDEX..FREE_INDEX).contains(&start) {
            let is_known = match (start < INDEX, is_v5) {
                (true, true) => matches!(magic, b"XDD3") || start == 0 && magic == b"XDB3",
                (true, false) => matches!(magic, b"XD2D") || start == 0 && magic == b"XD2B",
                (false, true) => magic == b"XDF3",
                (false, false) => magic == b"XD2F",
            };
            if !is_known {
                return bad("does not say what it is");
            }
            if is_v5 {
                return self.check_v5(block, [4, 8, 24, 40], inode.own, place).or_else(bad);
            }
            return Ok(());
        }
        let is_known = match is_v5 {
            true => matches!(u16_at(block, 8), 0x3df1 | 0x3dff | 0x3ebe),
            false => matches!(u16_at(block, 8), 0xd2f1 | 0xd2ff | 0xfebe),
        };
        match (is_known, is_v5) {
            (false, _) => bad("does not say what it is"),
            (true, true) => self.check_v5(block, [12, 16, 32, 48], inode.own, place).or_else(bad),
            (true, false) => Ok(()),
        }
    }

    /// Checks a block of version 5: checksum, place, UUID and owner lie at these bytes.
    ///
    /// # Errors
    /// The first fault.
    pub(crate) fn check_v5(
        &self,
        block: &[u8],
        [sum, address, uuid, owner]: [usize; 4],
        own: u64,
        place: u64,
    ) -> Result<(), &'static str> {
        if !is_intact(block, sum) {
            return Err("has a checksum that does not match");
        }
        // Addresses count units of 512 bytes.
        if u64_at(block, address) != place * (self.superblock.block_size / 512) {
            return Err("belongs to another place");
        }
        if block[uuid..uuid + 16] != self.superblock.meta_uuid || u64_at(block, owner) != own {
            return Err("belongs to another inode or file system");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block() -> Vec<u8> {
        let mut bytes = b"XD2B".to_vec();
        bytes.resize(16, 0);
        for (inode, name) in [(131u64, &b"."[..]), (128, b".."), (140, b"file"), (141, b"another name")] {
            let start = bytes.len();
            bytes.extend(inode.to_be_bytes());
            bytes.push(name.len() as u8);
            bytes.extend(name);
            bytes.push(1);
            bytes.resize((bytes.len() + 2).next_multiple_of(8) - 2, 0);
            bytes.extend((start as u16).to_be_bytes());
        }
        let unused = 512 - 8 - 4 * 8 - bytes.len();
        bytes.extend(UNUSED.to_be_bytes());
        bytes.extend((unused as u16).to_be_bytes());
        bytes.resize(512 - 8, 0);
        bytes.extend([4u32.to_be_bytes(), 0u32.to_be_bytes()].concat());
        bytes
    }

    #[test]
    fn entries_of_a_block_are_found() {
        let block = block();
        let mut found = Vec::new();
        block_entries(&block, 16, true, &mut |entry| {
            found.push((entry.inode, entry.name.to_vec(), entry.kind));
            Ok(())
        })
        .unwrap();
        assert_eq!(found.len(), 4);
        assert_eq!(found[3], (141, b"another name".to_vec(), 1));
    }

    #[test]
    fn entries_in_an_inode_have_numbers_of_two_sizes() {
        for long in [0u8, 1] {
            let number = |value: u64| match long {
                0 => (value as u32).to_be_bytes().to_vec(),
                _ => value.to_be_bytes().to_vec(),
            };
            let mut bytes = vec![2, long];
            bytes.extend(number(128));
            for (at, name) in [&b"one"[..], b"three"].into_iter().enumerate() {
                bytes.extend([name.len() as u8, 0, 0]);
                bytes.extend(name);
                bytes.push(2);
                bytes.extend(number(150 + at as u64));
            }
            let mut found = Vec::new();
            let parent = short_entries(&bytes, true, &mut |entry| {
                found.push((entry.inode, entry.name.to_vec(), entry.kind));
                Ok(())
            });
            assert_eq!(parent, Ok(128));
            assert_eq!(found, [(150, b"one".to_vec(), 2), (151, b"three".to_vec(), 2)]);
            for length in 0..bytes.len() {
                assert!(short_entries(&bytes[..length], true, &mut |_| Ok(())).is_err());
            }
        }
    }

    #[test]
    fn any_byte_may_be_damaged() {
        for at in 0..block().len() {
            for value in [0, 1, 3, 0x7f, 0xff] {
                let mut bytes = block();
                bytes[at] = value;
                let _ = block_entries(&bytes, 16, true, &mut |_| Ok(()));
                let _ = block_entries(&bytes, 16, false, &mut |_| Ok(()));
                let _ = short_entries(&bytes[at..], false, &mut |_| Ok(()));
            }
        }
    }
}
