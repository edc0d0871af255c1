//! POSIX access control lists, in the format of extended attributes (version 2).
//!
//! Owns [`Acl`].
//!
//! **Invariant**: an `Acl` has the entries that a list must have, in order: the owner, named users,
//! the group, named groups, a mask if there are named entries, others.
//!
//! Kernel counterparts: `posix_acl_from_xattr`, `posix_acl_valid`, `posix_acl_equiv_mode`,
//! `posix_acl_permission`, `posix_acl_create_masq`, `__posix_acl_chmod_masq` (`fs/posix_acl.c`).
//! The format is that of `include/uapi/linux/posix_acl_xattr.h`.

use crate::errors::{Error, Result};

/// The attribute with the list that grants access.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute with the list that a directory's new entries inherit.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const HEADER_SIZE: usize = 4;
const ENTRY_SIZE: usize = 8;
/// The id in entries that name neither a user nor a group.
const NO_ID: u32 = u32::MAX;
/// The permission bits of an entry: read, write, execute.
const PERMISSIONS: u16 = 0o7;

/// The user or group that an entry is for, in the order of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    Owner,
    User(u32),
    OwningGroup,
    Group(u32),
    Mask,
    Others,
}

impl Subject {
    fn parse(tag: u16, id: u32) -> Option<Self> {
        Some(match tag {
            0x01 => Subject::Owner,
            0x02 if id != NO_ID => Subject::User(id),
            0x04 => Subject::OwningGroup,
            0x08 if id != NO_ID => Subject::Group(id),
            0x10 => Subject::Mask,
            0x20 => Subject::Others,
            _ => return None,
        })
    }

    fn tag_and_id(self) -> (u16, u32) {
        match self {
            Subject::Owner => (0x01, NO_ID),
            Subject::User(id) => (0x02, id),
            Subject::OwningGroup => (0x04, NO_ID),
            Subject::Group(id) => (0x08, id),
            Subject::Mask => (0x10, NO_ID),
            Subject::Others => (0x20, NO_ID),
        }
    }

    /// The position among the kinds of entries.
    fn rank(self) -> u16 {
        self.tag_and_id().0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AclEntry {
    subject: Subject,
    /// Three bits: read, write, execute.
    permissions: u16,
}

/// An access control list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl {
    entries: Vec<AclEntry>,
}

impl Acl {
    /// Decodes an attribute's value; `None` for a list without entries, which means no list.
    ///
    /// # Errors
    /// [`Error::Invalid`] for another version, a wrong size, unknown kinds or permissions, and
    /// entries that are missing, duplicated or out of order.
    pub fn parse(value: &[u8]) -> Result<Option<Self>> {
        let bad = |why: &str| Err(Error::Invalid(format!("access control list: {why}")));
        let Some((header, rest)) = value.split_first_chunk::<HEADER_SIZE>() else {
            return bad("the header is incomplete");
        };
        if u32::from_le_bytes(*header) != VERSION {
            return bad("its version is not 2");
        }
        let (chunks, []) = rest.as_chunks::<ENTRY_SIZE>() else {
            return bad("its size is not a whole number of entries");
        };
        let mut entries = Vec::with_capacity(chunks.len());
        for &[tag0, tag1, permissions0, permissions1, id @ ..] in chunks {
            let permissions = u16::from_le_bytes([permissions0, permissions1]);
            let subject = Subject::parse(u16::from_le_bytes([tag0, tag1]), u32::from_le_bytes(id));
            match subject {
                Some(subject) if permissions & !PERMISSIONS == 0 => {
                    entries.push(AclEntry { subject, permissions })
                }
                Some(_) => return bad("unknown permissions"),
                None => return bad("unknown kind of entry"),
            }
        }
        if entries.is_empty() {
            return Ok(None);
        }
        let acl = Self { entries };
        if acl.is_valid() { Ok(Some(acl)) } else { bad("entries are missing, duplicated or out of order") }
    }

    fn is_valid(&self) -> bool {
        let named = |entry: &AclEntry| matches!(entry.subject, Subject::User(_) | Subject::Group(_));
        let count = |subject| self.entries.iter().filter(|entry| entry.subject == subject).count();
        let ordered = self.entries.is_sorted_by_key(|entry| entry.subject.rank());
        let masks = count(Subject::Mask);
        ordered
            && [Subject::Owner, Subject::OwningGroup, Subject::Others].map(count) == [1; 3]
            && (masks == 1 || (masks == 0 && !self.entries.iter().any(named)))
    }

    /// Encodes the list as an attribute's value.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_SIZE + self.entries.len() * ENTRY_SIZE);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        for entry in &self.entries {
            let (tag, id) = entry.subject.tag_and_id();
            bytes.extend_from_slice(&tag.to_le_bytes());
            bytes.extend_from_slice(&entry.permissions.to_le_bytes());
            bytes.extend_from_slice(&id.to_le_bytes());
        }
        bytes
    }

    /// Whether the nine permission bits of a mode express the whole list.
    pub(crate) fn is_equivalent_to_mode(&self) -> bool {
        self.entries.len() == 3
    }

    /// Returns `mode` with the nine permission bits of the list. The group bits are those of the
    /// mask, if there is one.
    pub(crate) fn apply_to_mode(&self, mode: u32) -> u32 {
        let bits = |subject| self.permissions(subject).map_or(0, u32::from);
        let group = self.permissions(Subject::Mask).map_or_else(|| bits(Subject::OwningGroup), u32::from);
        (mode & !0o777) | bits(Subject::Owner) << 6 | group << 3 | bits(Subject::Others)
    }

    /// Returns whether the list grants `wanted`, three bits, to a user other than the owner of the
    /// inode. Of the entries that fit, a named user's decides alone; of the groups', one must grant
    /// everything.
    pub(crate) fn grants(&self, uid: u32, is_in_group: impl Fn(u32) -> bool, gid: u32, wanted: u16) -> bool {
        let has_all = |permissions: u16| permissions & wanted == wanted;
        let mask = self.permissions(Subject::Mask).unwrap_or(PERMISSIONS);
        let mut in_some_group = false;
        for entry in &self.entries {
            match entry.subject {
                Subject::User(id) if id == uid => return has_all(entry.permissions & mask),
                Subject::OwningGroup if is_in_group(gid) => in_some_group = true,
                Subject::Group(id) if is_in_group(id) => in_some_group = true,
                Subject::Others => return !in_some_group && has_all(entry.permissions),
                _ => continue,
            }
            if has_all(entry.permissions) {
                return has_all(mask);
            }
        }
        false
    }

    /// Updates the list after `chmod` to `mode`: sets the permissions of the owner, the others, and
    /// the mask, or the group's if there is no mask.
    pub(crate) fn chmod(&mut self, mode: u32) {
        self.narrow_or_set(mode, |_, bits| bits);
    }

    /// Returns what a new file gets that is created with `mode` in a directory with this default
    /// list: the list, restricted to the mode, and the mode, restricted to the list.
    pub(crate) fn inherit(mut self, mode: u32) -> (Self, u32) {
        self.narrow_or_set(mode, |old, bits| old & bits);
        let mode = self.apply_to_mode(mode);
        (self, mode)
    }

    /// Combines the bits of a mode with the entries that they correspond to.
    fn narrow_or_set(&mut self, mode: u32, combine: impl Fn(u16, u16) -> u16) {
        let masked = self.permissions(Subject::Mask).is_some();
        for entry in &mut self.entries {
            let shift = match entry.subject {
                Subject::Owner => 6,
                Subject::Mask => 3,
                Subject::OwningGroup if !masked => 3,
                Subject::Others => 0,
                _ => continue,
            };
            entry.permissions = combine(entry.permissions, (mode >> shift) as u16 & PERMISSIONS);
        }
    }

    fn permissions(&self, subject: Subject) -> Option<u16> {
        Some(self.entries.iter().find(|entry| entry.subject == subject)?.permissions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut bytes = 2u32.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            bytes.extend(tag.to_le_bytes());
            bytes.extend(permissions.to_le_bytes());
            bytes.extend(id.to_le_bytes());
        }
        bytes
    }

    const MINIMAL: [(u16, u16, u32); 3] = [(1, 7, NO_ID), (4, 5, NO_ID), (0x20, 1, NO_ID)];
    const FULL: [(u16, u16, u32); 6] =
        [(1, 7, NO_ID), (2, 6, 1000), (4, 5, NO_ID), (8, 4, 100), (0x10, 6, NO_ID), (0x20, 0, NO_ID)];

    fn parse(entries: &[(u16, u16, u32)]) -> Option<Acl> {
        Acl::parse(&acl(entries)).ok().flatten()
    }

    #[test]
    fn lists_round_trip() {
        for entries in [&MINIMAL[..], &FULL] {
            assert_eq!(parse(entries).unwrap().to_bytes(), acl(entries));
        }
        // The ids of entries that name no user or group are ignored.
        let odd = [(1, 7, 5), (4, 5, 6), (0x20, 1, 7)];
        assert_eq!(parse(&odd), parse(&MINIMAL));
        assert!(Acl::parse(&acl(&[])).unwrap().is_none());
    }

    #[test]
    fn bad_lists_are_refused() {
        assert!(Acl::parse(b"").is_err());
        assert!(Acl::parse(&[1, 0, 0, 0]).is_err());
        assert!(Acl::parse(&acl(&MINIMAL)[..27]).is_err());
        for (drop, entry) in MINIMAL.into_iter().enumerate() {
            let mut entries = MINIMAL.to_vec();
            entries.remove(drop);
            assert!(Acl::parse(&acl(&entries)).is_err(), "without entry {drop}");
            entries = MINIMAL.to_vec();
            entries.insert(drop, entry);
            assert!(Acl::parse(&acl(&entries)).is_err(), "entry {drop} twice");
        }
        // Without the mask, out of order, unknown permissions; then an unknown tag and a user
        // without an id.
        for (at, entry) in [(4, None), (0, Some((4, 5, NO_ID))), (1, Some((2, 8, 1000)))] {
            let mut entries = FULL.to_vec();
            entries.remove(at);
            entries.extend(entry);
            assert!(Acl::parse(&acl(&entries)).is_err());
        }
        for bad in [(0x40, 1, NO_ID), (2, 1, NO_ID)] {
            let mut entries = FULL.to_vec();
            entries[1] = bad;
            assert!(Acl::parse(&acl(&entries)).is_err());
        }
    }

    #[test]
    fn lists_and_modes_convert() {
        let minimal = parse(&MINIMAL).unwrap();
        assert!(minimal.is_equivalent_to_mode());
        assert_eq!(minimal.apply_to_mode(0o102_000), 0o102_751);
        let full = parse(&FULL).unwrap();
        assert!(!full.is_equivalent_to_mode());
        assert_eq!(full.apply_to_mode(0o777), 0o760);

        let mut changed = full.clone();
        changed.chmod(0o641);
        assert_eq!(changed.apply_to_mode(0), 0o641);
        // The group keeps its permissions; the mask takes the mode's.
        assert_eq!(changed.permissions(Subject::OwningGroup), Some(5));
        assert_eq!(changed.permissions(Subject::Mask), Some(4));
        let mut changed = minimal.clone();
        changed.chmod(0o642);
        assert_eq!(changed.permissions(Subject::OwningGroup), Some(4));

        let (inherited, mode) = full.inherit(0o100_644);
        assert_eq!(mode, 0o100_640);
        assert_eq!(inherited.permissions(Subject::Owner), Some(6));
        assert_eq!(inherited.permissions(Subject::Mask), Some(4));
        assert_eq!(inherited.permissions(Subject::User(1000)), Some(6));
        let (inherited, mode) = minimal.inherit(0o666);
        assert_eq!(mode, 0o640);
        assert!(inherited.is_equivalent_to_mode());
    }
}
