//! Inodes of XFS.
//!
//! Owns [`XfsInode`], its parser, and [`XfsFs::for_each_inode`], which walks the trees of inodes in
//! the order of numbers, the root directory first.
//!
//! Source: "XFS Algorithms & Data Structures", chapter "On-disk Inode".

use super::fields::{is_intact, u16_at, u32_at, u64_at};
use super::reader::{ROOT, XfsFs};
use super::used::Chunk;
use crate::error::Result;
use papilio_format::items::inode::{FileKind, Timespec};

/// Inode flags.
pub(crate) mod flag {
    pub(crate) const REALTIME: u16 = 0x1;
    pub(crate) const IMMUTABLE: u16 = 0x8;
    pub(crate) const APPEND: u16 = 0x10;
    pub(crate) const SYNC: u16 = 0x20;
    pub(crate) const NOATIME: u16 = 0x40;
    pub(crate) const NODUMP: u16 = 0x80;
    pub(crate) const PROJINHERIT: u16 = 0x200;
    /// Flags that only direct the allocation of XFS, or limit a directory.
    pub(crate) const HINTS: u16 = 0x100 | 0x400 | 0x800 | 0x1000 | 0x2000 | 0x4000;
}

/// The second word of flags.
mod flag2 {
    pub(crate) const DAX: u64 = 0x1;
    pub(crate) const REFLINK: u64 = 0x2;
    pub(crate) const COW_SIZE: u64 = 0x4;
    pub(crate) const LONG_TIMES: u64 = 0x8;
    pub(crate) const LONG_COUNTS: u64 = 0x10;
}

/// How a fork keeps its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Device,
    Local,
    Extents,
    Tree,
}

/// A fork of an inode: its content or its attributes.
#[derive(Clone, Debug)]
pub(crate) struct Fork {
    pub(crate) format: Format,
    pub(crate) bytes: Vec<u8>,
    /// Extents that it has.
    pub(crate) extents: u64,
}

/// An inode.
#[derive(Clone, Debug)]
pub(crate) struct XfsInode {
    /// As the conversion counts, and as the source does.
    pub(crate) number: u64,
    pub(crate) own: u64,
    pub(crate) mode: u16,
    pub(crate) kind: FileKind,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) size: u64,
    pub(crate) links: u32,
    pub(crate) flags: u16,
    pub(crate) flags2: u64,
    pub(crate) project: u32,
    /// Blocks of all forks, with those of their trees.
    pub(crate) blocks: u64,
    pub(crate) atime: Timespec,
    pub(crate) ctime: Timespec,
    pub(crate) mtime: Timespec,
    /// The time of creation, in version 5.
    pub(crate) otime: Option<Timespec>,
    pub(crate) data: Fork,
    pub(crate) attributes: Option<Fork>,
}

impl XfsInode {
    /// Whether a flag of [`flag`] is set.
    pub(crate) fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Whether the file may share blocks.
    pub(crate) fn may_share(&self) -> bool {
        self.flags2 & flag2::REFLINK != 0
    }

    /// Whether there are hints for the allocation of XFS.
    pub(crate) fn has_hints(&self) -> bool {
        self.has(flag::HINTS) || self.flags2 & (flag2::DAX | flag2::COW_SIZE) != 0
    }

    /// Major and minor number of a device.
    pub(crate) fn device_number(&self) -> (u32, u32) {
        let number = u32_at(&self.data.bytes, 0);
        (number >> 18 & 0x3fff, number & 0x3_ffff)
    }
}

/// Returns a time.
fn time(bytes: &[u8], at: usize, is_long: bool) -> Timespec {
    if is_long {
        // Nanoseconds since the first moment that 32 bits could express.
        let stored = u64_at(bytes, at);
        let seconds = (stored / 1_000_000_000) as i64 + i64::from(i32::MIN);
        return Timespec { seconds, nanoseconds: (stored % 1_000_000_000) as u32 };
    }
    let seconds = i64::from(u32_at(bytes, at) as i32);
    Timespec { seconds, nanoseconds: u32_at(bytes, at + 4).min(999_999_999) }
}

/// Returns the forks of an inode, of which `body` is the part behind its fields. `counts` are the
/// extents of both.
fn forks(
    bytes: &[u8],
    body: &[u8],
    kind: FileKind,
    counts: (u64, u64),
) -> Result<(Fork, Option<Fork>), &'static str> {
    let offset = usize::from(bytes[82]) * 8;
    if offset >= body.len() {
        return Err("its attributes begin outside");
    }
    let format = |byte: u8| match byte {
        0 => Some(Format::Device),
        1 => Some(Format::Local),
        2 => Some(Format::Extents),
        3 => Some(Format::Tree),
        _ => None,
    };
    let is_device =
        matches!(kind, FileKind::CharacterDevice | FileKind::BlockDevice | FileKind::Fifo | FileKind::Socket);
    let fits = |format: &Format| match format {
        Format::Device => is_device,
        Format::Local => matches!(kind, FileKind::Directory | FileKind::Symlink),
        Format::Extents => !is_device,
        Format::Tree => matches!(kind, FileKind::Regular | FileKind::Directory),
    };
    let data_format = format(bytes[5]).filter(fits).ok_or("its content has an impossible form")?;
    let (data, rest) = if offset == 0 { (body, None) } else { (&body[..offset], Some(&body[offset..])) };
    let attributes = match (rest, format(bytes[83])) {
        (None, _) if counts.1 != 0 => return Err("it counts extents of attributes, and has none"),
        (None, _) => None,
        (Some(_), None | Some(Format::Device)) => return Err("its attributes have an impossible form"),
        (Some(rest), Some(format)) => Some(Fork { format, bytes: rest.to_vec(), extents: counts.1 }),
    };
    Ok((Fork { format: data_format, bytes: data.to_vec(), extents: counts.0 }, attributes))
}

impl XfsFs {
    /// Checks what an inode says of itself.
    fn check_identity(&self, own: u64, bytes: &[u8]) -> Result<(), &'static str> {
        let superblock = &self.superblock;
        if !bytes.starts_with(b"IN") || !matches!((superblock.is_v5, bytes[4]), (true, 3) | (false, 1 | 2)) {
            return Err("it does not say that it is an inode");
        }
        if superblock.is_v5 {
            if !is_intact(bytes, 100) {
                return Err("its checksum does not match");
            }
            if u64_at(bytes, 152) != own || bytes[160..176] != superblock.meta_uuid {
                return Err("it belongs to another place or file system");
            }
        }
        Ok(())
    }

    /// Parses the bytes of an inode that is in use.
    ///
    /// # Errors
    /// A checksum that does not match, or fields that contradict each other.
    pub(crate) fn parse_inode(&self, own: u64, bytes: &[u8]) -> Result<XfsInode> {
        let bad = |reason: &str| self.damaged(format!("inode {own}"), reason);
        let superblock = &self.superblock;
        self.check_identity(own, bytes).map_err(bad)?;
        let version = bytes[4];
        let mode = u16_at(bytes, 2);
        let Some(kind) = FileKind::from_mode(mode.into()) else {
            return Err(bad("its mode has no kind of file, or it is not in use"));
        };
        let size = u64_at(bytes, 56);
        if i64::try_from(size).is_err() {
            return Err(bad("its size exceeds that of any file"));
        }
        let flags2 = if superblock.is_v5 { u64_at(bytes, 120) } else { 0 };
        let counts = match flags2 & flag2::LONG_COUNTS {
            0 => (u32_at(bytes, 76).into(), u16_at(bytes, 80).into()),
            _ => (u64_at(bytes, 24), u32_at(bytes, 76).into()),
        };
        let body = &bytes[if superblock.is_v5 { 176 } else { 100 }..];
        let (data, attributes) = forks(bytes, body, kind, counts).map_err(bad)?;
        let is_long = flags2 & flag2::LONG_TIMES != 0;
        Ok(XfsInode {
            number: self.counted(own),
            own,
            mode,
            kind,
            uid: u32_at(bytes, 8),
            gid: u32_at(bytes, 12),
            size,
            links: if version == 1 { u16_at(bytes, 6).into() } else { u32_at(bytes, 16) },
            flags: u16_at(bytes, 90),
            flags2,
            project: match version {
                1 => 0,
                _ => u32::from(u16_at(bytes, 20)) | u32::from(u16_at(bytes, 22)) << 16,
            },
            blocks: u64_at(bytes, 64),
            atime: time(bytes, 32, is_long),
            mtime: time(bytes, 40, is_long),
            ctime: time(bytes, 48, is_long),
            otime: superblock.is_v5.then(|| time(bytes, 144, is_long)),
            data,
            attributes,
        })
    }

    /// Reads one inode, which must be in use. `own` is its number in the source.
    ///
    /// # Errors
    /// A number that does not exist; damage; the device's errors.
    pub(crate) fn read_inode(&self, own: u64) -> Result<XfsInode> {
        let Some(place) = self.superblock.place_of_inode(own) else {
            return Err(self.damaged(format!("inode {own}"), "there can be no such inode"));
        };
        let mut bytes = vec![0; self.superblock.inode_size];
        self.read(&mut bytes, place)?;
        self.parse_inode(own, &bytes)
    }

    /// Calls `act` with each inode in use from `first` on, in the order of numbers, until it
    /// returns false.
    ///
    /// # Errors
    /// Damage; errors of `act`; the device's.
    pub(crate) fn for_each_xfs_inode(
        &self,
        first: u64,
        act: &mut dyn FnMut(XfsInode) -> Result<bool>,
    ) -> Result<()> {
        let superblock = &self.superblock;
        if first <= ROOT && !act(self.read_inode(superblock.root)?)? {
            return Ok(());
        }
        let group_log = superblock.group_log + superblock.inodes_log;
        let from = u32::try_from(first >> group_log).unwrap_or(superblock.groups);
        let mut goes_on = true;
        for group in from..superblock.groups {
            let base = u64::from(group) << group_log;
            self.for_each_chunk(group, &mut |chunk| {
                let start = base + u64::from(chunk.first);
                if start + u64::from(super::used::CHUNK) > first {
                    goes_on = self.inodes_of(&chunk, start, first, act)?;
                }
                Ok(goes_on)
            })?;
            if !goes_on {
                break;
            }
        }
        Ok(())
    }

    /// Calls `act` with the inodes of a chunk that are in use. Returns whether to go on.
    fn inodes_of(
        &self,
        chunk: &Chunk,
        start: u64,
        first: u64,
        act: &mut dyn FnMut(XfsInode) -> Result<bool>,
    ) -> Result<bool> {
        let size = self.superblock.inode_size;
        for run in chunk.runs() {
            if !run.clone().any(|slot| chunk.uses(slot)) {
                continue;
            }
            let last = start + u64::from(run.end) - 1;
            let Some(place) = self
                .superblock
                .place_of_inode(start + u64::from(run.start))
                .filter(|_| self.superblock.place_of_inode(last).is_some())
            else {
                return Err(self.damaged(format!("the chunk at inode {start}"), "it lies outside"));
            };
            let mut bytes = vec![0; run.len() * size];
            self.read(&mut bytes, place)?;
            for (slot, bytes) in run.zip(bytes.chunks_exact(size)) {
                let own = start + u64::from(slot);
                if !chunk.uses(slot) || own < first || own == self.superblock.root {
                    continue;
                }
                if !act(self.parse_inode(own, bytes)?)? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::super::mapping::tests::bare;
    use super::*;
    use crate::source::Source;

    pub(crate) fn sample() -> Vec<u8> {
        let mut bytes = vec![0; 512];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, b"IN");
        put(2, &0o100_644u16.to_be_bytes());
        put(4, &[2, 2]);
        put(8, &131_072u32.to_be_bytes());
        put(16, &3u32.to_be_bytes());
        put(20, &[0, 7, 0, 1]);
        put(32, &(-1i32).to_be_bytes());
        put(36, &5u32.to_be_bytes());
        put(56, &5000u64.to_be_bytes());
        put(64, &2u64.to_be_bytes());
        put(76, &1u32.to_be_bytes());
        put(82, &[15, 1]);
        put(90, &0x88u16.to_be_bytes());
        bytes
    }

    #[test]
    fn fields_of_an_inode_are_read() {
        let (fs, _) = bare();
        let inode = fs.parse_inode(131, &sample()).unwrap();
        assert_eq!((inode.uid, inode.size, inode.links, inode.project), (131_072, 5000, 3, 0x1_0007));
        assert_eq!(inode.atime, Timespec { seconds: -1, nanoseconds: 5 });
        assert!(inode.has(flag::NODUMP) && inode.has(flag::IMMUTABLE) && !inode.has_hints());
        assert_eq!(
            (inode.data.format, inode.data.bytes.len(), inode.data.extents),
            (Format::Extents, 120, 1)
        );
        let attributes = inode.attributes.unwrap();
        assert_eq!((attributes.format, attributes.bytes.len()), (Format::Local, 412 - 120));
    }

    #[test]
    fn long_times_begin_before_1970() {
        let stored = (1u64 << 33) * 1_000_000_000 + 17;
        let seconds = (1i64 << 33) - (1 << 31);
        assert_eq!(time(&stored.to_be_bytes(), 0, true), Timespec { seconds, nanoseconds: 17 });
        assert_eq!(time(&[0; 8], 0, true).seconds, i64::from(i32::MIN));
    }

    #[test]
    fn any_byte_of_an_inode_may_be_damaged() {
        let (fs, _) = bare();
        for at in 0..512 {
            for value in [0, 1, 3, 0x7f, 0xff] {
                let mut bytes = sample();
                bytes[at] = value;
                if let Ok(inode) = fs.parse_inode(131, &bytes) {
                    let _ = (inode.device_number(), inode.has_hints(), inode.may_share());
                    let _ = fs.read_xattrs(&inode);
                    let _ = fs.read_start(&inode, 4096);
                }
            }
        }
    }
}
