//! Directories of ext file systems: linear, with a hash tree, and inline.
//!
//! Owns [`ExtFs::for_each_ext_entry`]. A hash tree's inner blocks look like empty
//! blocks of entries, so that reading all blocks in order finds every entry.
//!
//! Source: `Documentation/filesystems/ext4/directory.rst`.

use super::checksum::{Seed, crc};
use super::fields::{u16_at, u32_at};
use super::inode::{ExtInode, flag};
use super::reader::ExtFs;
use super::superblock::incompat;
use crate::error::Result;
use crate::source::{Extent, SourceEntry};
use papilio_format::items::dir_item::is_file_name;
use papilio_format::items::inode::FileKind;

/// Bytes of an entry before its name.
const HEADER: usize = 8;
/// The kind of the last entry of a block, which holds its checksum.
const CHECKSUM_KIND: u8 = 0xde;
/// Bytes of that entry.
const TAIL: usize = 12;
/// Blocks that are read at once.
const STEP: u64 = 16;

/// An entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ExtEntry<'a> {
    inode: u32,
    name: &'a [u8],
    /// The kind of file, as the entry says it; 0 if it does not.
    kind: u8,
}

/// Splits a block into entries.
fn entries<'a>(
    block: &'a [u8],
    has_kinds: bool,
    act: &mut dyn FnMut(ExtEntry<'a>) -> Result<(), String>,
) -> Result<(), String> {
    let mut rest = block;
    while !rest.is_empty() {
        if rest.len() < HEADER {
            return Err("an entry is cut".to_owned());
        }
        let stored = u16_at(rest, 4);
        // With blocks of 64 KiB, the low bits hold what a length of 16 bits cannot.
        let length = match stored {
            0 | 0xffff if block.len() >= 65536 => block.len(),
            _ if block.len() >= 65536 => usize::from(stored & 0xfffc) | usize::from(stored & 3) << 16,
            _ => usize::from(stored),
        };
        if length < HEADER || length % 4 != 0 || length > rest.len() {
            return Err(format!("an entry of {length} bytes"));
        }
        let inode = u32_at(rest, 0);
        let name_length = match has_kinds {
            true => rest[6].into(),
            false => usize::from(u16_at(rest, 6)),
        };
        if inode != 0 {
            let Some(name) =
                rest.get(HEADER..HEADER + name_length).filter(|_| HEADER + name_length <= length)
            else {
                return Err("a name is longer than its entry".to_owned());
            };
            act(ExtEntry { inode, name, kind: if has_kinds { rest[7] } else { 0 } })?;
        }
        rest = &rest[length..];
    }
    Ok(())
}

/// Returns whether the checksum of a block matches. `is_indexed` says that inner blocks of a hash
/// tree may be there.
fn is_intact(block: &[u8], seed: u32, is_indexed: bool) -> bool {
    let first = usize::from(u16_at(block, 4));
    let index = match first {
        // An inner block is one empty entry; the root has two entries and 8 bytes of information.
        _ if is_indexed && first == block.len() && u32_at(block, 0) == 0 => Some(8),
        12 if is_indexed && usize::from(u16_at(block, 16)) == block.len() - 12 => {
            Some(24 + usize::from(block[29]).max(8))
        }
        _ => None,
    };
    if let Some(counts) = index {
        let [most, count] = [0, 2].map(|at| usize::from(u16_at(block, counts + at)));
        let tail = counts + 8 * most;
        if count > most || tail + 8 > block.len() {
            return false;
        }
        let sum = crc(crc(seed, &block[..counts + 8 * count]), &block[tail..tail + 4]);
        return crc(sum, &[0; 4]) == u32_at(block, tail + 4);
    }
    let tail = block.len() - TAIL;
    let is_tail = u32_at(block, tail) == 0
        && usize::from(u16_at(block, tail + 4)) == TAIL
        && u16_at(block, tail + 6) == u16::from(CHECKSUM_KIND) << 8;
    is_tail && crc(seed, &block[..tail]) == u32_at(block, tail + 8)
}

/// Returns the kind that an entry says; `Err` if there is no such kind.
fn kind_of(kind: u8) -> Result<Option<FileKind>, String> {
    Ok(Some(match kind {
        0 => return Ok(None),
        1 => FileKind::Regular,
        2 => FileKind::Directory,
        3 => FileKind::CharacterDevice,
        4 => FileKind::BlockDevice,
        5 => FileKind::Fifo,
        6 => FileKind::Socket,
        7 => FileKind::Symlink,
        other => return Err(format!("an entry of the unknown kind {other}")),
    }))
}

impl ExtFs {
    /// Calls `act` with the entries of a directory, in the order of their places, except for `.`
    /// and `..`. Returns the parent.
    ///
    /// # Errors
    /// Damage; errors of `act`; the device's.
    pub(crate) fn for_each_ext_entry(
        &self,
        inode: &ExtInode,
        inline_data: &[u8],
        act: &mut dyn FnMut(SourceEntry<'_>) -> Result<()>,
    ) -> Result<u64> {
        let mut parent = 0;
        let place = || format!("directory {}", inode.number);
        let has_kinds = self.superblock.has(incompat::FILETYPE);
        let mut failed = None;
        let mut dots = 0;
        let mut take = |entry: ExtEntry<'_>, is_inline: bool| -> Result<(), String> {
            match entry.name {
                b"." if !is_inline && dots == 0 => {
                    if entry.inode != inode.number {
                        return Err("its entry . is another directory".to_owned());
                    }
                    dots = 1;
                    return Ok(());
                }
                b".." if !is_inline && dots == 1 => {
                    parent = entry.inode;
                    dots = 2;
                    return Ok(());
                }
                name if !is_file_name(name) => return Err("it has an invalid name".to_owned()),
                _ if !is_inline && dots < 2 => return Err("it does not begin with . and ..".to_owned()),
                _ => {}
            }
            if entry.inode > self.superblock.inodes || entry.inode < self.superblock.first_inode {
                return Err(format!("an entry leads to inode {}, which cannot have one", entry.inode));
            }
            let entry =
                SourceEntry { inode: entry.inode.into(), name: entry.name, kind: kind_of(entry.kind)? };
            match act(entry) {
                Ok(()) => Ok(()),
                Err(error) => {
                    failed = Some(error);
                    Err(String::new())
                }
            }
        };
        let result = if inode.has(flag::INLINE_DATA) {
            let first = entries(&inode.root[4..], has_kinds, &mut |entry| take(entry, true));
            let found = first.and_then(|()| entries(inline_data, has_kinds, &mut |entry| take(entry, true)));
            parent = u32_at(&inode.root, 0);
            dots = 2;
            found.map_err(|reason| self.damaged(place(), reason))
        } else {
            self.directory_blocks(inode, &mut |block| {
                entries(block, has_kinds, &mut |entry| take(entry, false))
                    .map_err(|reason| self.damaged(place(), reason))
            })
        };
        if let Some(error) = failed {
            return Err(error);
        }
        result?;
        if dots < 2 {
            return Err(self.damaged(place(), "it does not begin with . and .."));
        }
        Ok(parent.into())
    }

    /// Calls `act` with the blocks of a directory.
    fn directory_blocks(&self, inode: &ExtInode, act: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let size = self.superblock.block_size;
        let place = || format!("directory {}", inode.number);
        let seed: Seed = self.inode_seed(inode.number, inode.generation);
        let is_indexed = inode.has(flag::INDEX);
        if !inode.size.is_multiple_of(size) {
            return Err(self.damaged(place(), format!("its size is {} bytes", inode.size)));
        }
        let count = inode.size / size;
        let mut next = 0;
        let mut walk = |extent: Extent| {
            let end = (extent.logical + extent.length).min(count);
            if extent.logical >= count {
                return Ok(());
            }
            if extent.logical != next || !extent.written {
                return Err(self.damaged(place(), format!("block {next} is missing")));
            }
            let mut at = extent.logical;
            while at < end {
                let steps = STEP.min(end - at);
                let first = extent.physical + (at - extent.logical);
                for block in self.blocks(first..first + steps, "a directory")?.chunks_exact(size as usize) {
                    if seed.is_some_and(|seed| !is_intact(block, seed, is_indexed)) {
                        return Err(self.damaged(place(), "the checksum of a block does not match"));
                    }
                    act(block)?;
                }
                at += steps;
            }
            next = end;
            Ok(())
        };
        self.for_each_ext_extent(inode, &mut walk, &mut |_| Ok(()))?;
        if next < count {
            return Err(self.damaged(place(), format!("block {next} is missing")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block() -> Vec<u8> {
        let mut bytes = Vec::new();
        for (inode, name, length) in
            [(2u32, &b"."[..], 12u16), (2, b"..", 12), (12, b"file", 16), (0, b"gone", 24)]
        {
            let start = bytes.len();
            bytes.extend(inode.to_le_bytes());
            bytes.extend(length.to_le_bytes());
            bytes.extend([name.len() as u8, 1]);
            bytes.extend(name);
            bytes.resize(start + usize::from(length), 0);
        }
        bytes
    }

    #[test]
    fn entries_in_use_are_found() {
        let block = block();
        let mut found = Vec::new();
        entries(&block, true, &mut |entry| {
            found.push((entry.inode, entry.name.to_vec()));
            Ok(())
        })
        .unwrap();
        assert_eq!(found, [(2, b".".to_vec()), (2, b"..".to_vec()), (12, b"file".to_vec())]);
    }

    #[test]
    fn any_byte_may_be_damaged() {
        for at in 0..block().len() {
            for value in [0, 1, 3, 0x7f, 0xff] {
                let mut bytes = block();
                bytes[at] = value;
                let _ = entries(&bytes, true, &mut |_| Ok(()));
                let _ = entries(&bytes, false, &mut |_| Ok(()));
                let _ = is_intact(&bytes, 7, true);
            }
        }
    }
}
