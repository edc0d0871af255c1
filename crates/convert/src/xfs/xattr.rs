//! Extended attributes of XFS: in the inode, in leaves, in trees of leaves, and values in blocks of
//! their own; and targets of symbolic links, which have the same two forms.
//!
//! Owns [`XfsFs::read_xattrs`] and [`XfsFs::read_target`]. Names get the prefix of their namespace,
//! and access control lists the format that system calls have.
//!
//! Source: "XFS Algorithms & Data Structures", chapters "Extended Attributes" and "Symbolic Links".

use super::fields::{u16_at, u32_at};
use super::inode::{Fork, Format, XfsInode};
use super::reader::XfsFs;
use crate::error::Result;
use crate::source::{Extent, Xattr};

/// Flags of an entry.
const LOCAL: u8 = 0x1;
const TRUSTED: u8 = 0x2;
const SECURE: u8 = 0x4;
/// The entry is a pointer to the parent directory, which no system call shows.
const PARENT: u8 = 0x8;
/// The entry is being made or removed: it does not count.
const INCOMPLETE: u8 = 0x80;
/// The longest value.
const VALUE_MAX: usize = 65536;
/// The longest target of a symbolic link.
const TARGET_MAX: u64 = 1024;
/// The most levels of a tree of leaves.
const LEVELS_MAX: u16 = 5;
/// Bytes before each block's part of a value or a target, in version 5.
const PART_HEADER: usize = 56;
/// The most extents of the attributes of one inode.
const EXTENTS_MAX: u64 = 1 << 20;

/// An entry before it has its name in full.
struct RawXattr<'a> {
    flags: u8,
    name: &'a [u8],
    value: Value<'a>,
}

enum Value<'a> {
    Here(&'a [u8]),
    /// Block of the fork, and bytes.
    Remote(u64, usize),
}

/// Splits attributes in an inode.
fn short_entries(bytes: &[u8]) -> Result<Vec<RawXattr<'_>>, &'static str> {
    let size = usize::from(u16_at(bytes, 0));
    let whole = bytes.get(..size).filter(|whole| whole.len() >= 4);
    let whole = whole.ok_or("its attributes have an impossible size")?;
    let mut rest = &whole[4..];
    let mut found = Vec::new();
    for _ in 0..whole[2] {
        let [name, value, flags, ..] = *rest else { return Err("an extended attribute is cut") };
        let (name, value) = (usize::from(name), usize::from(value));
        let body = rest.get(3..3 + name + value).ok_or("an extended attribute is cut")?;
        found.push(RawXattr { flags, name: &body[..name], value: Value::Here(&body[name..]) });
        rest = &rest[3 + name + value..];
    }
    Ok(found)
}

/// Splits a leaf. `base` is the size of its header.
fn leaf_entries(block: &[u8], base: usize, count: usize) -> Result<Vec<RawXattr<'_>>, &'static str> {
    let mut found = Vec::new();
    let entries = block.get(base..base + count * 8).ok_or("a leaf of its attributes has too many")?;
    let mut last = 0;
    for entry in entries.chunks_exact(8) {
        let (hash, at, flags) = (u32_at(entry, 0), usize::from(u16_at(entry, 4)), entry[6]);
        if hash < last || at < base + count * 8 {
            return Err("a leaf of its attributes is not sorted, or overlaps");
        }
        last = hash;
        let cut = "an extended attribute is cut";
        let body = block.get(at..).ok_or(cut)?;
        if flags & LOCAL != 0 {
            let (value, name) = (usize::from(u16_at(body, 0)), usize::from(*body.get(2).ok_or(cut)?));
            let bytes = body.get(3..3 + name + value).ok_or(cut)?;
            found.push(RawXattr { flags, name: &bytes[..name], value: Value::Here(&bytes[name..]) });
        } else {
            let length = usize::from(*body.get(8).ok_or(cut)?);
            let name = body.get(9..9 + length).ok_or(cut)?;
            let value = Value::Remote(u32_at(body, 0).into(), u32_at(body, 4) as usize);
            found.push(RawXattr { flags, name, value });
        }
    }
    Ok(found)
}

/// Converts an access control list from the format on disk to that of system calls.
fn acl(value: &[u8]) -> Option<Vec<u8>> {
    const USER: u32 = 2;
    const GROUP: u32 = 8;
    let entries = value.get(4..)?;
    if entries.len() != (u32_at(value, 0) as usize).checked_mul(12)? {
        return None;
    }
    let mut converted = 2u32.to_le_bytes().to_vec();
    for entry in entries.chunks_exact(12) {
        let (tag, id) = (u32_at(entry, 0), u32_at(entry, 4));
        converted.extend(u16::try_from(tag).ok()?.to_le_bytes());
        converted.extend(u16_at(entry, 8).to_le_bytes());
        converted.extend(if matches!(tag, USER | GROUP) { id } else { u32::MAX }.to_le_bytes());
    }
    Some(converted)
}

impl XfsFs {
    /// Reads the extended attributes of an inode.
    ///
    /// # Errors
    /// Damage; the device's errors.
    pub(crate) fn read_xattrs(&self, inode: &XfsInode) -> Result<Vec<Xattr>> {
        let mut found = Vec::new();
        let Some(fork) = &inode.attributes else { return Ok(found) };
        let fail = |reason: &str| self.damaged(format!("inode {}", inode.own), reason);
        if fork.format == Format::Local {
            for raw in short_entries(&fork.bytes).map_err(fail)? {
                self.add_xattr(inode, &raw, &[], &mut found)?;
            }
            return Ok(found);
        }
        let map = self.attribute_map(inode, fork)?;
        if !map.is_empty() {
            let mut left = inode.blocks;
            self.attribute_block(inode, &map, 0, None, &mut left, &mut found)?;
        }
        Ok(found)
    }

    /// Returns the extents of the attributes.
    fn attribute_map(&self, inode: &XfsInode, fork: &Fork) -> Result<Vec<Extent>> {
        let mut map = Vec::new();
        if fork.extents > EXTENTS_MAX {
            let reason = format!("inode {} has {} extents of attributes", inode.own, fork.extents);
            return Err(self.unsupported(reason));
        }
        let mut add = |extent: Extent| {
            map.push(extent);
            Ok(())
        };
        self.for_each_in_fork(inode, fork, &mut add, &mut |_| Ok(()))?;
        Ok(map)
    }

    /// Reads a block of the attributes. Returns its place, too.
    fn mapped_block(&self, inode: &XfsInode, map: &[Extent], block: u64) -> Result<(Vec<u8>, u64)> {
        let at = map.partition_point(|extent| extent.logical + extent.length <= block);
        match map.get(at) {
            Some(extent) if extent.logical <= block && extent.written => {
                let place = extent.physical + (block - extent.logical);
                Ok((self.blocks(place, 1)?, place))
            }
            _ => {
                Err(self
                    .damaged(format!("inode {}", inode.own), format!("its attributes lack block {block}")))
            }
        }
    }

    /// Reads a leaf or a node of the attributes, and all below. `level` is the one expected; `None`
    /// at the root. `left` counts the blocks that may still come.
    fn attribute_block(
        &self,
        inode: &XfsInode,
        map: &[Extent],
        block: u64,
        level: Option<u16>,
        left: &mut u64,
        found: &mut Vec<Xattr>,
    ) -> Result<()> {
        let fail = |reason: &str| self.damaged(format!("inode {}", inode.own), reason);
        *left = left.checked_sub(1).ok_or_else(|| fail("its attributes repeat themselves"))?;
        let (bytes, place) = self.mapped_block(inode, map, block)?;
        let is_v5 = self.superblock.is_v5;
        if is_v5 {
            self.check_v5(&bytes, [12, 16, 32, 48], inode.own, place)
                .map_err(|reason| fail(&format!("block {block} of its attributes {reason}")))?;
        }
        let header = if is_v5 { 56 } else { 12 };
        let count = usize::from(u16_at(&bytes, header));
        match (u16_at(&bytes, 8), is_v5, level) {
            (0xfbee, false, None | Some(0)) | (0x3bee, true, None | Some(0)) => {
                let base = if is_v5 { 80 } else { 32 };
                for raw in leaf_entries(&bytes, base, count).map_err(fail)? {
                    self.add_xattr(inode, &raw, map, found)?;
                }
                Ok(())
            }
            (0xfebe, false, _) | (0x3ebe, true, _) => {
                let own = u16_at(&bytes, header + 2);
                if own == 0 || own > LEVELS_MAX || level.is_some_and(|level| level != own) {
                    return Err(fail("a node of its attributes has a wrong level"));
                }
                let base = if is_v5 { 64 } else { 16 };
                let entries = bytes.get(base..base + count * 8).filter(|entries| !entries.is_empty());
                let entries = entries.ok_or_else(|| fail("a node of its attributes has a wrong length"))?;
                for entry in entries.chunks_exact(8) {
                    let child = u32_at(entry, 4).into();
                    self.attribute_block(inode, map, child, Some(own - 1), left, found)?;
                }
                Ok(())
            }
            _ => Err(fail(&format!("block {block} of its attributes does not say what it is"))),
        }
    }

    /// Adds an entry with its whole name, unless system calls do not show it.
    fn add_xattr(
        &self,
        inode: &XfsInode,
        raw: &RawXattr<'_>,
        map: &[Extent],
        to: &mut Vec<Xattr>,
    ) -> Result<()> {
        let fail = |reason: String| self.damaged(format!("inode {}", inode.own), reason);
        if raw.flags & (PARENT | INCOMPLETE) != 0 {
            return Ok(());
        }
        let value = match raw.value {
            Value::Here(value) => value.to_vec(),
            Value::Remote(_, length) if length > VALUE_MAX => {
                return Err(fail(format!("an extended attribute of {length} bytes")));
            }
            Value::Remote(block, length) => self.read_parts(inode, map, block, length, b"XARM")?,
        };
        let (prefix, name): (&[u8], &[u8]) = match (raw.flags & (TRUSTED | SECURE), raw.name) {
            (TRUSTED, b"SGI_ACL_FILE") => (b"system.posix_acl_access", b""),
            (TRUSTED, b"SGI_ACL_DEFAULT") => (b"system.posix_acl_default", b""),
            (TRUSTED, name) => (b"trusted.", name),
            (SECURE, name) => (b"security.", name),
            (0, name) => (b"user.", name),
            _ => return Err(fail("an extended attribute has two namespaces".to_owned())),
        };
        let is_acl = name.is_empty() && prefix.starts_with(b"system.");
        let value = match is_acl {
            true => acl(&value).ok_or_else(|| fail("an access control list is damaged".to_owned()))?,
            false => value,
        };
        let name = [prefix, name].concat();
        if name.len() > 255 || name.len() == prefix.len() && !is_acl {
            return Err(fail("the name of an extended attribute is too long, or empty".to_owned()));
        }
        if to.iter().any(|other| other.name == name) {
            let name = String::from_utf8_lossy(&name).into_owned();
            return Err(fail(format!("the extended attribute {name} is there twice")));
        }
        to.push(Xattr { name, value });
        Ok(())
    }

    /// Reads what lies in blocks of its own, from `block` of the fork on: a value or a target.
    fn read_parts(
        &self,
        inode: &XfsInode,
        map: &[Extent],
        block: u64,
        length: usize,
        magic: &[u8; 4],
    ) -> Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(length);
        let mut at = block;
        while bytes.len() < length {
            let (part, place) = self.mapped_block(inode, map, at)?;
            let left = length - bytes.len();
            if !self.superblock.is_v5 {
                bytes.extend_from_slice(&part[..left.min(part.len())]);
                at += 1;
                continue;
            }
            let here = left.min(part.len() - PART_HEADER);
            let fail = |reason: &str| {
                let reason = format!("block {at} of a value or a target {reason}");
                self.damaged(format!("inode {}", inode.own), reason)
            };
            self.check_v5(&part, [12, 40, 16, 32], inode.own, place).map_err(fail)?;
            if !part.starts_with(magic)
                || u32_at(&part, 4) as usize != bytes.len()
                || u32_at(&part, 8) as usize != here
            {
                return Err(fail("is another part"));
            }
            bytes.extend_from_slice(&part[PART_HEADER..PART_HEADER + here]);
            at += 1;
        }
        Ok(bytes)
    }

    /// Reads the target of a symbolic link.
    ///
    /// # Errors
    /// Damage; the device's errors.
    pub(crate) fn read_target(&self, inode: &XfsInode) -> Result<Vec<u8>> {
        let fail = |reason: String| self.damaged(format!("inode {}", inode.own), reason);
        if inode.size > TARGET_MAX {
            return Err(fail(format!("a target of {} bytes", inode.size)));
        }
        let length = inode.size as usize;
        if inode.data.format == Format::Local {
            let target = inode.data.bytes.get(..length);
            return target.map(<[u8]>::to_vec).ok_or_else(|| fail(format!("a target of {length} bytes")));
        }
        let map = self.attribute_map(inode, &inode.data)?;
        self.read_parts(inode, &map, 0, length, b"XSLM")
    }
}

#[cfg(test)]
mod tests {
    use super::super::mapping::tests::{bare, inode, record};
    use super::*;
    use papilio_device::Device;
    use papilio_format::PhysicalAddress;
    use papilio_format::items::inode::FileKind;

    fn short(entries: &[(u8, &[u8], &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0, 0, entries.len() as u8, 0];
        for (flags, name, value) in entries {
            bytes.extend([name.len() as u8, value.len() as u8, *flags]);
            bytes.extend([*name, *value].concat());
        }
        let size = bytes.len() as u16;
        bytes[..2].copy_from_slice(&size.to_be_bytes());
        bytes
    }

    fn with(fork: Fork) -> XfsInode {
        let data = Fork { format: Format::Extents, bytes: Vec::new(), extents: 0 };
        inode(FileKind::Regular, 0, data, Some(fork))
    }

    #[test]
    fn attributes_in_an_inode_get_their_names() {
        let (fs, _) = bare();
        let list: &[u8] = &[0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 3, 232, 0, 6, 0, 0];
        let bytes = short(&[
            (0, b"origin", b"disk"),
            (SECURE, b"selinux", b"ctx"),
            (TRUSTED, b"SGI_ACL_FILE", list),
            (PARENT, b"hidden", b"parent"),
            (INCOMPLETE, b"gone", b"x"),
        ]);
        let fork = Fork { format: Format::Local, bytes: bytes.clone(), extents: 0 };
        let found = fs.read_xattrs(&with(fork)).unwrap();
        let names: Vec<_> = found.iter().map(|xattr| String::from_utf8_lossy(&xattr.name)).collect();
        assert_eq!(names, ["user.origin", "security.selinux", "system.posix_acl_access"]);
        assert_eq!(found[2].value, [2, 0, 0, 0, 2, 0, 6, 0, 232, 3, 0, 0]);
        for at in 0..bytes.len() {
            for value in [0, 1, 2, 0x7f, 0xff] {
                let mut bytes = bytes.clone();
                bytes[at] = value;
                let _ = fs.read_xattrs(&with(Fork { format: Format::Local, bytes, extents: 0 }));
            }
        }
    }

    #[test]
    fn leaves_hold_values_or_lead_to_them() {
        let (fs, device) = bare();
        let mut leaf = vec![0; 4096];
        let mut put = |at: usize, field: &[u8]| leaf[at..at + field.len()].copy_from_slice(field);
        put(8, &0xfbeeu16.to_be_bytes());
        put(12, &2u16.to_be_bytes());
        put(32, &[0, 0, 0, 1, 0x0f, 0, LOCAL, 0]);
        put(40, &[0, 0, 0, 2, 0x0e, 0, SECURE, 0]);
        put(0xf00, &[0, 2, 1, b'a', 7, 8]);
        put(0xe00, &[0, 0, 0, 1, 0, 0, 0x13, 0x88, 1, b'b']);
        device.write_at(&leaf, PhysicalAddress(50 * 4096)).unwrap();
        device.write_at(&[5; 8192], PhysicalAddress(51 * 4096)).unwrap();
        let bytes = record(0, 50, 3, true);
        let attributed = with(Fork { format: Format::Extents, bytes, extents: 1 });
        let found = fs.read_xattrs(&attributed).unwrap();
        assert_eq!(found[0], Xattr { name: b"user.a".to_vec(), value: vec![7, 8] });
        assert_eq!(found[1], Xattr { name: b"security.b".to_vec(), value: vec![5; 5000] });
        for at in (0..48).chain(0xe00..0xe10).chain(0xf00..0xf08) {
            for value in [0, 1, 0x7f, 0xfe, 0xff] {
                let mut leaf = leaf.clone();
                leaf[at] = value;
                device.write_at(&leaf, PhysicalAddress(50 * 4096)).unwrap();
                let _ = fs.read_xattrs(&attributed);
            }
        }
    }
}
