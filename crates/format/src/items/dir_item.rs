//! Directory entries and extended attributes, which share one structure.
//!
//! Owns [`DirEntry`], [`DirEntries`] and [`FileType`]. Two items hold each file name: DIR_ITEM,
//! under the hash of the name, for look-up, and DIR_INDEX, under its index, for listing in creation
//! order. An XATTR_ITEM holds the attributes whose names share one hash. Sources: `struct
//! btrfs_dir_item` (`include/uapi/linux/btrfs_tree.h`), `check_dir_item`
//! (`fs/btrfs/tree-checker.c`).

use crate::checksum::name_hash;
use crate::error::Corrupt;
use crate::item_context::ItemContext;
pub use crate::items::file_type::FileType;
use crate::items::inode;
use crate::items::packed::{PackedEntries, PackedEntry, take};
use crate::items::root;
use crate::key::{ItemType, Key};
use crate::parse::disk_struct;
use crate::units::{Generation, InodeNumber};

/// Maximum length of a file's or attribute's name in bytes (`BTRFS_NAME_LEN`, `XATTR_NAME_MAX`).
pub const NAME_MAX: usize = 255;

/// The flag, beside the file type, of an entry with an encrypted name (`BTRFS_FT_ENCRYPTED`).
pub const ENCRYPTED: u8 = 0x80;

disk_struct! {
    /// The fixed part of an entry.
    pub struct DirItemHeader as DirItemHeaderDisk = 30 {
        /// Key of the inode or the subvolume's root; zero for an attribute.
        pub location: Key,
        /// The transaction that created the entry.
        pub transid: Generation,
        /// Size of the data behind the name, in bytes.
        pub data_length: u16,
        /// Size of the name in bytes.
        pub name_length: u16,
        /// File type, possibly with [`ENCRYPTED`].
        pub file_type: u8,
    }
}

/// One directory entry, or one attribute.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// Key of the inode (INODE_ITEM), or of the subvolume's root (ROOT_ITEM); zero for an
    /// attribute.
    pub location: Key,
    /// The transaction that created the entry.
    pub transid: Generation,
    /// The type of the target.
    pub file_type: FileType,
    /// Whether the name is encrypted.
    pub encrypted: bool,
    /// The name, 1 to 255 bytes.
    pub name: &'a [u8],
    /// An attribute's value; empty for a file.
    pub data: &'a [u8],
}

/// The entries of one DIR_ITEM, DIR_INDEX or XATTR_ITEM.
pub type DirEntries<'a> = PackedEntries<'a, DirEntry<'a>>;

impl<'a> PackedEntry<'a> for DirEntry<'a> {
    const WHAT: &'static str = "directory entry";

    fn parse_prefix(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), Corrupt> {
        let bad = |field, value, why| Err(Corrupt::field(Self::WHAT, field, value, why));
        let (header, rest) = DirItemHeader::parse_prefix(bytes)?;
        let Some(file_type) = FileType::from_raw(header.file_type & !ENCRYPTED) else {
            return bad("file_type", header.file_type.into(), "unknown");
        };
        if !(1..=NAME_MAX).contains(&header.name_length.into()) {
            return bad("name_length", header.name_length.into(), "not 1 to 255");
        }
        if header.data_length != 0 && file_type != FileType::Xattr {
            return bad("data_length", header.data_length.into(), "only attributes have data");
        }
        let (name, rest) = take(Self::WHAT, rest, header.name_length.into())?;
        let (data, rest) = take(Self::WHAT, rest, header.data_length.into())?;
        let entry = Self {
            location: header.location,
            transid: header.transid,
            file_type,
            encrypted: header.file_type & ENCRYPTED != 0,
            name,
            data,
        };
        Ok((entry, rest))
    }
}

impl DirEntry<'_> {
    /// Returns the entry's size on disk in bytes.
    pub const fn size_on_disk(&self) -> usize {
        DirItemHeader::SIZE + self.name.len() + self.data.len()
    }

    /// Returns the hash of the name, which is the key offset of a DIR_ITEM or XATTR_ITEM.
    pub fn hash(&self) -> u64 {
        name_hash(self.name)
    }

    /// Appends the encoded entry to `bytes`.
    ///
    /// # Panics
    /// If the name or the data exceeds 65,535 bytes.
    pub fn append_to(&self, bytes: &mut Vec<u8>) {
        let header = DirItemHeader {
            location: self.location,
            transid: self.transid,
            data_length: self.data.len().try_into().expect("an attribute's value is at most 65,535 bytes"),
            name_length: self.name.len().try_into().expect("a name is at most 255 bytes"),
            file_type: self.file_type as u8 | if self.encrypted { ENCRYPTED } else { 0 },
        };
        bytes.extend_from_slice(&header.to_bytes());
        bytes.extend_from_slice(self.name);
        bytes.extend_from_slice(self.data);
    }

    /// Encodes the entry alone.
    ///
    /// # Panics
    /// As [`DirEntry::append_to`].
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.size_on_disk());
        self.append_to(&mut bytes);
        bytes
    }
}

impl std::fmt::Debug for DirEntry<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DirEntry")
            .field("location", &self.location)
            .field("transid", &self.transid)
            .field("file_type", &self.file_type)
            .field("encrypted", &self.encrypted)
            .field("name", &self.name.escape_ascii().to_string())
            .field("data", &self.data.escape_ascii().to_string())
            .finish()
    }
}

/// Returns the key of the DIR_ITEM that holds a name.
pub fn dir_item_key(directory: InodeNumber, name: &[u8]) -> Key {
    Key::new(directory.0, ItemType::DIR_ITEM, name_hash(name))
}

/// Returns the key of the XATTR_ITEM that holds an attribute.
pub fn xattr_key(inode: InodeNumber, name: &[u8]) -> Key {
    Key::new(inode.0, ItemType::XATTR_ITEM, name_hash(name))
}

/// Returns whether a file may have this name: 1 to 255 bytes, no slash, no NUL, not `.` or `..`.
pub fn is_file_name(name: &[u8]) -> bool {
    !name.is_empty()
        && name.len() <= NAME_MAX
        && name != b"."
        && name != b".."
        && !name.iter().any(|&byte| byte == b'/' || byte == 0)
}

/// Runs the checks of `check_dir_item`, and checks that file names are valid.
pub(crate) fn validate(context: &ItemContext<'_>) -> Result<(), Corrupt> {
    inode::validate_follows_inode(context)?;
    // The kernel limits name and data together to the size of a leaf; the item already fits one.
    for entry in DirEntries::parse(context.data)? {
        validate_entry(context, &entry)?;
    }
    Ok(())
}

fn validate_entry(context: &ItemContext<'_>, entry: &DirEntry<'_>) -> Result<(), Corrupt> {
    const WHAT: &str = "directory entry";
    let bad = |field, value, why| Err(Corrupt::field(WHAT, field, value, why));
    let is_xattr = context.key.item_type == ItemType::XATTR_ITEM;
    if is_xattr != (entry.file_type == FileType::Xattr) {
        return bad("file_type", entry.file_type as u64, "not allowed in this type of item");
    }
    match entry.location.item_type {
        _ if is_xattr => {
            if entry.location != Key::MIN {
                return bad("location.objectid", entry.location.objectid, "not zero in an attribute");
            }
        }
        ItemType::ROOT_ITEM => root::validate_location(&entry.location)?,
        ItemType::INODE_ITEM => inode::validate_key(WHAT, &entry.location)?,
        other => return bad("location.item_type", other.0.into(), "neither INODE_ITEM nor ROOT_ITEM"),
    }
    // The kernel leaves this check to readdir, which fails with EIO. An encrypted name may hold any
    // bytes.
    if !is_xattr && !entry.encrypted && !is_file_name(entry.name) {
        return bad("name_length", entry.name.len() as u64, "not a valid file name");
    }
    if context.key.item_type != ItemType::DIR_INDEX && context.key.offset != entry.hash() {
        return bad("name hash", entry.hash(), "not the key's offset");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objectid;
    use crate::tree_check::test_support::{check, fault};
    use proptest::prelude::*;

    const DIRECTORY: InodeNumber = InodeNumber(256);

    fn file<'a>(name: &'a [u8]) -> DirEntry<'a> {
        DirEntry {
            location: Key::new(257, ItemType::INODE_ITEM, 0),
            transid: Generation(9),
            file_type: FileType::Regular,
            encrypted: false,
            name,
            data: &[],
        }
    }

    fn xattr<'a>(name: &'a [u8], data: &'a [u8]) -> DirEntry<'a> {
        DirEntry { location: Key::MIN, file_type: FileType::Xattr, data, ..file(name) }
    }

    fn check_entry(entry: DirEntry<'_>) -> Result<(), Corrupt> {
        check(dir_item_key(DIRECTORY, entry.name), &entry.to_bytes())
    }

    fn check_xattr(entry: DirEntry<'_>) -> Result<(), Corrupt> {
        check(xattr_key(DIRECTORY, entry.name), &entry.to_bytes())
    }

    proptest! {
        #[test]
        fn entries_round_trip(
            entries in prop::collection::vec(
                (
                    any::<(u64, u8, u64, u64)>(),
                    0usize..8,
                    any::<bool>(),
                    prop::collection::vec(any::<u8>(), 1..=255),
                    prop::collection::vec(any::<u8>(), 0..400),
                ),
                1..6,
            ),
        ) {
            let entries: Vec<_> = entries.iter().map(|(numbers, file_type, encrypted, name, data)| {
                let file_type = FileType::ALL[*file_type];
                DirEntry {
                    location: Key::new(numbers.0, ItemType(numbers.1), numbers.2),
                    transid: Generation(numbers.3),
                    file_type,
                    encrypted: *encrypted,
                    name,
                    data: if file_type == FileType::Xattr { data } else { &[] },
                }
            }).collect();
            let mut bytes = Vec::new();
            for entry in &entries {
                let before = bytes.len();
                entry.append_to(&mut bytes);
                prop_assert_eq!(bytes.len() - before, entry.size_on_disk());
            }
            let parsed: Vec<_> = DirEntries::parse(&bytes).unwrap().collect();
            prop_assert_eq!(&parsed, &entries);
            // A cut anywhere but between entries leaves bytes that do not parse.
            let last = entries.last().unwrap().size_on_disk();
            prop_assert!(DirEntries::parse(&bytes[..bytes.len() - 1]).is_err());
            prop_assert!(entries.len() == 1 || DirEntries::parse(&bytes[..bytes.len() - last]).is_ok());
        }

        #[test]
        fn parsed_entries_serialise_to_the_same_bytes(bytes in prop::collection::vec(0u8..40, 30..90)) {
            if let Ok(entries) = DirEntries::parse(&bytes) {
                let mut again = Vec::new();
                entries.for_each(|entry| entry.append_to(&mut again));
                prop_assert_eq!(again, bytes);
            }
        }
    }

    #[test]
    fn good_entries_pass() {
        assert_eq!(check_entry(file(b"name")), Ok(()));
        assert_eq!(check_entry(file(&[b'x'; 255])), Ok(()));
        assert_eq!(check(Key::new(256, ItemType::DIR_INDEX, 2), &file(b"name").to_bytes()), Ok(()));
        assert_eq!(check_xattr(xattr(b"user.a/b", b"")), Ok(()));
        assert_eq!(check_xattr(xattr(b"user.a", &[1; 5000])), Ok(()));
        let location = Key::new(258, ItemType::ROOT_ITEM, u64::MAX);
        assert_eq!(check_entry(DirEntry { location, ..file(b"subvolume") }), Ok(()));
        assert_eq!(check_entry(DirEntry { encrypted: true, ..file(b"a/\0") }), Ok(()));
    }

    #[test]
    fn each_check_detects_its_fault() {
        let name = &b"name"[..];
        let key = dir_item_key(DIRECTORY, name);
        assert_eq!(fault(check(key, &[])), "size");
        let good = file(name).to_bytes();
        assert_eq!(fault(check(key, &good[..29])), "size");
        assert_eq!(fault(check(key, &good[..33])), "size");
        let with = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            bytes
        };
        assert_eq!(fault(check(key, &with(29, 0))), "file_type");
        assert_eq!(fault(check(key, &with(29, 9))), "file_type");
        assert_eq!(fault(check(key, &with(29, 8))), "file_type");
        assert_eq!(fault(check(key, &with(25, 1))), "data_length");
        assert_eq!(fault(check(key, &with(27, 0))), "name_length");
        assert_eq!(fault(check(key, &with(28, 1))), "name_length");
        assert_eq!(fault(check(key, &with(30, b'N'))), "name hash");
        let index = Key::new(256, ItemType::DIR_INDEX, 2);
        assert_eq!(check(index, &with(30, b'N')), Ok(()));
        assert_eq!(fault(check(xattr_key(DIRECTORY, name), &good)), "file_type");
    }

    #[test]
    fn locations_are_checked() {
        let at = |location| check_entry(DirEntry { location, ..file(b"name") });
        assert_eq!(fault(at(Key::new(257, ItemType::EXTENT_DATA, 0))), "location.item_type");
        assert_eq!(fault(at(Key::MIN)), "location.item_type");
        assert_eq!(fault(at(Key::new(255, ItemType::INODE_ITEM, 0))), "key.objectid");
        assert_eq!(fault(at(Key::new(257, ItemType::INODE_ITEM, 1))), "key.offset");
        assert_eq!(fault(at(Key::new(0, ItemType::ROOT_ITEM, 0))), "location.objectid");
        assert_eq!(fault(at(Key::new(objectid::CSUM_TREE.0, ItemType::ROOT_ITEM, 0))), "location.objectid");
        let location = Key::new(257, ItemType::INODE_ITEM, 0);
        assert_eq!(fault(check_xattr(DirEntry { location, ..xattr(b"user.a", b"1") })), "location.objectid");
    }

    #[test]
    fn file_names_are_validated() {
        for name in [&b"."[..], b"..", b"a/b", b"/", b"a\0", b"../../etc/passwd"] {
            assert!(!is_file_name(name));
            assert_eq!(fault(check_entry(file(name))), "name_length");
        }
        assert!(!is_file_name(b"") && !is_file_name(&[b'x'; 256]));
        assert!(is_file_name(b"...") && is_file_name(b"\xff\n"));
    }
}
