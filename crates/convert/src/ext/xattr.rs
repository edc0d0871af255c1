//! Extended attributes of ext file systems, in the inode, in a block of their own, and values in
//! inodes of their own (`ea_inode`).
//!
//! Owns [`ExtFs::read_xattrs`]. Names get the prefix that stands for their index, and
//! access control lists the format that system calls have.
//!
//! Sources: `Documentation/filesystems/ext4/attributes.rst`,
//! `include/uapi/linux/posix_acl_xattr.h`.

use super::checksum::crc;
use super::fields::{u16_at, u32_at};
use super::inode::{ExtInode, flag};
use super::reader::ExtFs;
use crate::error::Result;
use crate::source::{Source, Xattr};

const MAGIC: u32 = 0xea02_0000;
/// Bytes of the header in a block, and in an inode.
const BLOCK_HEADER: usize = 32;
const INODE_HEADER: usize = 4;
const ENTRY: usize = 16;
/// The longest value.
const VALUE_MAX: usize = 65536;
/// The index and name of inline data.
const SYSTEM: u8 = 7;
const INLINE_DATA: &[u8] = b"data";

/// The extended attributes of an inode.
#[derive(Debug, Default)]
pub(crate) struct ExtXattrs {
    pub(crate) attributes: Vec<Xattr>,
    /// The end of inline data, which begins in the inode's block map.
    pub(crate) inline_data: Vec<u8>,
}

/// An entry before it has its name in full.
struct Raw<'a> {
    index: u8,
    name: &'a [u8],
    value: &'a [u8],
    /// The inode that has the value, and its length; 0 if the value is here.
    holder: (u32, usize),
}

/// Splits entries. `region` starts with the first one; offsets of values count from `base`.
fn parse<'a>(region: &'a [u8], base: &'a [u8]) -> Result<Vec<Raw<'a>>, String> {
    let mut found = Vec::new();
    let mut rest = region;
    loop {
        if rest.len() < 4 || u32_at(rest, 0) == 0 {
            return Ok(found);
        }
        if rest.len() < ENTRY {
            return Err("an extended attribute is cut".to_owned());
        }
        let name_length = usize::from(rest[0]);
        let (offset, holder, length) =
            (usize::from(u16_at(rest, 2)), u32_at(rest, 4), u32_at(rest, 8) as usize);
        let Some(name) = rest.get(ENTRY..ENTRY + name_length) else {
            return Err("the name of an extended attribute is cut".to_owned());
        };
        let is_here = holder == 0;
        let end = offset.checked_add(length);
        let value = match end.and_then(|end| base.get(offset..end)) {
            _ if length == 0 || !is_here => &[],
            Some(value) => value,
            None => return Err("the value of an extended attribute lies outside".to_owned()),
        };
        found.push(Raw { index: rest[1], name, value, holder: (holder, length) });
        rest = rest.get((ENTRY + name_length).next_multiple_of(4)..).unwrap_or_default();
    }
}

/// Converts an access control list from the format on disk to that of system calls.
fn acl(value: &[u8]) -> Option<Vec<u8>> {
    const USER: u16 = 2;
    const GROUP: u16 = 8;
    if u32_at(value, 0) != 1 || value.len() < 4 {
        return None;
    }
    let mut converted = 2u32.to_le_bytes().to_vec();
    let mut rest = &value[4..];
    while !rest.is_empty() {
        if rest.len() < 4 {
            return None;
        }
        let tag = u16_at(rest, 0);
        let has_id = matches!(tag, USER | GROUP);
        let size = if has_id { 8 } else { 4 };
        if rest.len() < size {
            return None;
        }
        converted.extend_from_slice(&rest[..4]);
        converted.extend_from_slice(&if has_id { u32_at(rest, 4) } else { u32::MAX }.to_le_bytes());
        rest = &rest[size..];
    }
    Some(converted)
}

/// Adds an entry with its whole name. Returns a fault, or the name of what cannot be kept.
fn add(raw: &Raw<'_>, to: &mut ExtXattrs) -> Result<(), String> {
    if raw.index == SYSTEM && raw.name == INLINE_DATA {
        to.inline_data = raw.value.to_vec();
        return Ok(());
    }
    let prefix: &[u8] = match raw.index {
        1 => b"user.",
        2 => b"system.posix_acl_access",
        3 => b"system.posix_acl_default",
        4 => b"trusted.",
        6 => b"security.",
        SYSTEM => b"system.",
        other => return Err(format!("an extended attribute of the unknown kind {other}")),
    };
    let value = match raw.index {
        2 | 3 => acl(raw.value).ok_or("an access control list is damaged")?,
        _ => raw.value.to_vec(),
    };
    let name = [prefix, raw.name].concat();
    if name.len() > 255 {
        return Err("the name of an extended attribute is too long".to_owned());
    }
    if to.attributes.iter().any(|other| other.name == name) {
        return Err(format!("the extended attribute {} is there twice", String::from_utf8_lossy(&name)));
    }
    to.attributes.push(Xattr { name, value });
    Ok(())
}

impl ExtFs {
    /// Reads the extended attributes of an inode.
    ///
    /// # Errors
    /// Damage; the device's errors.
    pub(crate) fn read_xattrs(&self, inode: &ExtInode) -> Result<ExtXattrs> {
        let mut found = ExtXattrs::default();
        let fail = |reason: String| self.damaged(format!("inode {}", inode.number), reason);
        let mut add_whole = |raw: Raw<'_>| match raw.holder {
            (0, _) => add(&raw, &mut found).map_err(fail),
            (holder, length) => {
                let value = self.held_value(inode.number, holder, length)?;
                add(&Raw { value: &value, ..raw }, &mut found).map_err(fail)
            }
        };
        let own = &inode.xattr_bytes;
        if own.len() >= INODE_HEADER && u32_at(own, 0) == MAGIC {
            let region = &own[INODE_HEADER..];
            for raw in parse(region, region).map_err(fail)? {
                add_whole(raw)?;
            }
        }
        if inode.xattr_block != 0 {
            let place = format!("the extended attributes of inode {}", inode.number);
            let block = self.block(inode.xattr_block, &place)?;
            if u32_at(&block, 0) != MAGIC || u32_at(&block, 8) != 1 {
                return Err(self.damaged(place, "their block has a wrong header"));
            }
            if let Some(seed) = self.superblock.seed {
                let sum = crc(crc(seed, &inode.xattr_block.to_le_bytes()), &block[..0x10]);
                if crc(crc(sum, &[0; 4]), &block[0x14..]) != u32_at(&block, 0x10) {
                    return Err(self.damaged(place, "the checksum of their block does not match"));
                }
            }
            for raw in parse(&block[BLOCK_HEADER..], &block).map_err(fail)? {
                add_whole(raw)?;
            }
        }
        Ok(found)
    }

    /// Reads the value of an attribute of inode `owner` that is the content of inode `holder`.
    fn held_value(&self, owner: u32, holder: u32, length: usize) -> Result<Vec<u8>> {
        let value = self.read_inode(holder)?;
        if !value.has(flag::EA_INODE)
            || value.has(flag::INLINE_DATA)
            || value.size != length as u64
            || length > VALUE_MAX
        {
            let reason = format!("the value of an extended attribute is to be in inode {holder}, and is not");
            return Err(self.damaged(format!("inode {owner}"), reason));
        }
        self.read_start(&value, value.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u8, name: &[u8], offset: u16, length: u32) -> Vec<u8> {
        let mut bytes = vec![name.len() as u8, index];
        bytes.extend(offset.to_le_bytes());
        bytes.extend(0u32.to_le_bytes());
        bytes.extend(length.to_le_bytes());
        bytes.extend(0u32.to_le_bytes());
        bytes.extend(name);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn entries_get_their_names_and_values() {
        let mut region = entry(1, b"origin", 60, 4);
        region.extend(entry(6, b"selinux", 56, 3));
        region.resize(56, 0);
        region.extend(b"ctx\0disk");
        let mut found = ExtXattrs::default();
        for raw in parse(&region, &region).unwrap() {
            add(&raw, &mut found).unwrap();
        }
        let names: Vec<_> =
            found.attributes.iter().map(|xattr| (&xattr.name[..], &xattr.value[..])).collect();
        assert_eq!(names, [(&b"user.origin"[..], &b"disk"[..]), (b"security.selinux", b"ctx")]);
        let again = Raw { index: 1, name: b"origin", value: b"", holder: (0, 0) };
        assert!(add(&again, &mut found).unwrap_err().contains("twice"));
    }

    #[test]
    fn any_byte_may_be_damaged() {
        let mut region = entry(1, b"origin", 60, 4);
        region.extend(entry(2, b"", 56, 3));
        region.resize(64, 0);
        for at in 0..region.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bytes = region.clone();
                bytes[at] = value;
                if let Ok(entries) = parse(&bytes, &bytes) {
                    let mut found = ExtXattrs::default();
                    entries.iter().for_each(|raw| drop(add(raw, &mut found)));
                }
            }
        }
    }

    #[test]
    fn access_control_lists_change_their_format() {
        // user::rw-, user:5:r--, mask::r--.
        let disk = [1, 0, 0, 0, 1, 0, 6, 0, 2, 0, 4, 0, 5, 0, 0, 0, 0x10, 0, 4, 0];
        let calls = acl(&disk).unwrap();
        assert_eq!(calls[..4], [2, 0, 0, 0]);
        assert_eq!(calls[4..12], [1, 0, 6, 0, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(calls[12..20], [2, 0, 4, 0, 5, 0, 0, 0]);
        assert_eq!(calls.len(), 4 + 3 * 8);
        assert!(acl(&disk[..14]).is_none() && acl(&[]).is_none());
    }
}
