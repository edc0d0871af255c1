//! Directory entries and extended attributes, which have one form.
//!
//! Owns [`DirEntry`], [`DirEntries`] and [`FileType`]. A name stands in two items: under the hash of
//! the name (DIR_ITEM, for look-up) and under its index (DIR_INDEX, for listing in the order of
//! creation). An XATTR_ITEM holds attributes whose names have one hash. Sources:
//! `struct btrfs_dir_item` (`include/uapi/linux/btrfs_tree.h`), `check_dir_item`
//! (`fs/btrfs/tree-checker.c`).

use crate::checksum::name_hash;
use crate::disk::disk_struct;
use crate::error::Corrupt;
use crate::items::inode;
use crate::items::packed::{PackedEntries, PackedEntry, take};
use crate::items::root;
use crate::key::{ItemType, Key};
use crate::tree_check::ItemContext;
use crate::units::{Generation, InodeNumber};

/// Longest name of a file or an attribute, in bytes (`BTRFS_NAME_LEN`, `XATTR_NAME_MAX`).
pub const NAME_MAX: usize = 255;

/// What an entry points to (`BTRFS_FT_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum FileType {
    Regular = 1,
    Directory = 2,
    CharacterDevice = 3,
    BlockDevice = 4,
    Fifo = 5,
    Socket = 6,
    Symlink = 7,
    /// Not a file: an extended attribute.
    Xattr = 8,
}

impl FileType {
    /// All of them, by their numbers.
    pub const ALL: [Self; 8] = [
        Self::Regular,
        Self::Directory,
        Self::CharacterDevice,
        Self::BlockDevice,
        Self::Fifo,
        Self::Socket,
        Self::Symlink,
        Self::Xattr,
    ];

    /// The type of a number from disk, without [`ENCRYPTED`]; `None` for 0 and unknown ones.
    pub fn from_raw(raw: u8) -> Option<Self> {
        Self::ALL.get(usize::from(raw).checked_sub(1)?).copied()
    }

    /// The kind of file, or `None` for an attribute.
    pub const fn kind(self) -> Option<inode::FileKind> {
        use inode::FileKind;
        Some(match self {
            Self::Regular => FileKind::Regular,
            Self::Directory => FileKind::Directory,
            Self::CharacterDevice => FileKind::CharacterDevice,
            Self::BlockDevice => FileKind::BlockDevice,
            Self::Fifo => FileKind::Fifo,
            Self::Socket => FileKind::Socket,
            Self::Symlink => FileKind::Symlink,
            Self::Xattr => return None,
        })
    }
}

/// The bit beside the file type of an entry whose name is encrypted (`BTRFS_FT_ENCRYPTED`).
pub const ENCRYPTED: u8 = 0x80;

disk_struct! {
    /// The fixed part of an entry.
    pub struct DirItemHeader as DirItemHeaderDisk = 30 {
        /// Key of the inode or the subvolume's root; zero for an attribute.
        pub location: Key,
        /// The transaction that made the entry.
        pub transid: Generation,
        /// Bytes of data behind the name.
        pub data_length: u16,
        /// Bytes of the name.
        pub name_length: u16,
        /// File type, with [`ENCRYPTED`] or without.
        pub file_type: u8,
    }
}

/// One entry of a directory, or one attribute.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// Key of the inode (INODE_ITEM), or of the subvolume's root (ROOT_ITEM); zero for an attribute.
    pub location: Key,
    /// The transaction that made the entry.
    pub transid: Generation,
    /// What it points to.
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
    /// Bytes of the entry on disk.
    pub const fn size_on_disk(&self) -> usize {
        DirItemHeader::SIZE + self.name.len() + self.data.len()
    }

    /// The hash of the name: the key's offset of a DIR_ITEM and an XATTR_ITEM.
    pub fn hash(&self) -> u64 {
        name_hash(self.name)
    }

    /// Encodes the entry behind what `bytes` already holds.
    ///
    /// # Panics
    /// With a name or data of more than 65,535 bytes.
    pub fn append_to(&self, bytes: &mut Vec<u8>) {
        let header = DirItemHeader {
            location: self.location,
            transid: self.transid,
            data_length: self.data.len().try_into().expect("an attribute fits a leaf"),
            name_length: self.name.len().try_into().expect("a name has at most 255 bytes"),
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

/// The key of the DIR_ITEM that holds a name.
pub fn dir_item_key(directory: InodeNumber, name: &[u8]) -> Key {
    Key::new(directory.0, ItemType::DIR_ITEM, name_hash(name))
}

/// The key of the XATTR_ITEM that holds an attribute.
pub fn xattr_key(inode: InodeNumber, name: &[u8]) -> Key {
    Key::new(inode.0, ItemType::XATTR_ITEM, name_hash(name))
}

/// Whether a file may have this name: 1 to 255 bytes, no slash, no NUL, neither `.` nor `..`.
pub fn is_file_name(name: &[u8]) -> bool {
    !name.is_empty()
        && name.len() <= NAME_MAX
        && name != b"."
        && name != b".."
        && !name.iter().any(|&byte| byte == b'/' || byte == 0)
}

/// The checks of `check_dir_item`, and that names are names.
pub(crate) fn validate(context: &ItemContext<'_>) -> Result<(), Corrupt> {
    inode::validate_follows_inode(context)?;
    // The kernel's limit on name and data together is the room of a leaf; the item already fits one.
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
        return bad("file_type", entry.file_type as u64, "not what the item's type allows");
    }
    match entry.location.item_type {
        _ if is_xattr => {
            if entry.location != Key::MIN {
                return bad("location.objectid", entry.location.objectid, "an attribute points nowhere");
            }
        }
        ItemType::ROOT_ITEM => root::validate_location(&entry.location)?,
        ItemType::INODE_ITEM => inode::validate_key(WHAT, &entry.location)?,
        other => return bad("location.item_type", other.0.into(), "neither INODE_ITEM nor ROOT_ITEM"),
    }
    // The kernel leaves this to readdir, which fails with EIO. An encrypted name is any bytes.
    if !is_xattr && !entry.encrypted && !is_file_name(entry.name) {
        return bad("name_length", entry.name.len() as u64, "the name is no file name");
    }
    if context.key.item_type != ItemType::DIR_INDEX && context.key.offset != entry.hash() {
        return bad("name hash", entry.hash(), "not the key's offset");
    }
    Ok(())
}
