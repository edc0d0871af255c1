//! [`TreeSource`]: a file system whose trees can be searched, on an image or in a mount.
//!
//! A mount is searched by the kernel's ioctl, which mounts of Papilio have, too. It needs the
//! rights of an administrator.

use crate::context::{Context, of_image};
use crate::holder;
use crate::mounted::{Mounted, Target};
use papilio::FileSystem;
use papilio::format::items::block_group::BlockGroupItem;
use papilio::format::items::chunk::ChunkItem;
use papilio::format::{Generation, ItemType, Key, LogicalAddress, TreeId, objectid};
use papilio_ioctl::client::MountedPath;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// A file system whose trees can be searched.
pub enum TreeSource {
    /// On an image that is not mounted.
    Image {
        /// The file system.
        fs: FileSystem,
        /// The image.
        path: PathBuf,
    },
    /// In a mount.
    Mounted {
        /// The path in the mount.
        mounted: Mounted,
        /// That path, open.
        root: MountedPath,
    },
}

/// A chunk, and the bytes of it that are used.
#[derive(Clone, Debug)]
pub struct UsedChunk {
    /// The start of its addresses.
    pub start: LogicalAddress,
    /// Its length, type and stripes.
    pub item: ChunkItem,
    /// Used bytes of the block group; 0 if it has none.
    pub used: u64,
}

impl TreeSource {
    /// Opens the file system that contains a path, in the state of now: a mount is synced first. A
    /// device that is mounted stands for its mount.
    ///
    /// # Errors
    /// The image or the path cannot be opened.
    pub fn open(context: &Context, path: &OsStr) -> anyhow::Result<Self> {
        match Target::parse(holder::place_of(Path::new(path)).as_os_str())? {
            Target::Image(path) => Ok(Self::Image { fs: context.open(&path.image)?, path: path.image }),
            Target::Mounted(mounted) => Self::of_mount(mounted),
        }
    }

    /// As [`TreeSource::open`], and opens an image for writing.
    ///
    /// # Errors
    /// As [`TreeSource::open`]; the image cannot be written.
    pub fn open_to_change(context: &Context, path: &OsStr) -> anyhow::Result<Self> {
        match Target::parse(holder::place_of(Path::new(path)).as_os_str())? {
            Target::Image(path) => Ok(Self::Image { fs: context.change(&path.image)?, path: path.image }),
            Target::Mounted(mounted) => Self::of_mount(mounted),
        }
    }

    /// Returns the UUID of the file system as text.
    ///
    /// # Errors
    /// The mount does not tell.
    pub fn fsid(&self) -> anyhow::Result<String> {
        match self {
            Self::Image { fs, .. } => Ok(fs.uuid().to_string()),
            Self::Mounted { mounted, root } => {
                let info = root.fs_info().map_err(|error| mounted.at(&error))?;
                Ok(papilio::Uuid::from_bytes(info.fsid).to_string())
            }
        }
    }

    /// Returns the bytes of a tree block.
    ///
    /// # Errors
    /// The mount does not tell.
    pub fn node_size(&self) -> anyhow::Result<u64> {
        match self {
            Self::Image { fs, .. } => Ok(fs.superblock().raw.node_size.into()),
            Self::Mounted { mounted, root } => {
                Ok(root.fs_info().map_err(|error| mounted.at(&error))?.node_size.into())
            }
        }
    }

    /// Opens a path in a mount.
    ///
    /// # Errors
    /// The path cannot be opened, or the mount cannot be synced.
    pub fn of_mount(mounted: Mounted) -> anyhow::Result<Self> {
        let root = mounted.open()?;
        root.sync().map_err(|error| mounted.at(&error))?;
        Ok(Self::Mounted { mounted, root })
    }

    /// Passes the items of a tree in a range of keys to `each`, in order. Leaves older than
    /// `oldest` are left out. Tree 0 means the subvolume of a path in a mount.
    ///
    /// # Errors
    /// There is no such tree; a block that cannot be read; the error of `each`, which ends the
    /// search.
    pub fn search(
        &self,
        tree: TreeId,
        (first, last): (Key, Key),
        oldest: u64,
        mut each: impl FnMut(Key, &[u8]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut result = Ok(());
        match self {
            Self::Image { fs, path } => fs
                .search_tree(tree, first..=last, Generation(oldest), &mut |_, key, item| {
                    result = each(key, item);
                    result.is_ok()
                })
                .map_err(|error| of_image(path, error))?,
            Self::Mounted { mounted, root } => root
                .search_tree(tree, first..=last, oldest, |_, key, item| {
                    if result.is_ok() {
                        result = each(key, item);
                    }
                    Ok(())
                })
                .map_err(|error| mounted.at(&error))?,
        }
        result
    }

    /// Returns all chunks by their addresses.
    ///
    /// # Errors
    /// As [`TreeSource::search`]; a chunk that is damaged.
    pub fn chunks(&self) -> anyhow::Result<Vec<UsedChunk>> {
        let first = Key::new(objectid::FIRST_CHUNK_TREE, ItemType::CHUNK_ITEM, 0);
        let last = Key::new(objectid::FIRST_CHUNK_TREE, ItemType::CHUNK_ITEM, u64::MAX);
        let mut chunks = Vec::new();
        self.search(objectid::CHUNK_TREE, (first, last), 0, |key, item| {
            let (item, _) = ChunkItem::parse_prefix(item)
                .map_err(|reason| anyhow::anyhow!("chunk {}: {reason}", key.offset))?;
            chunks.push(UsedChunk { start: LogicalAddress(key.offset), item, used: 0 });
            Ok(())
        })?;
        let mut used = BTreeMap::new();
        let mut trees = vec![objectid::EXTENT_TREE];
        self.search(
            objectid::ROOT_TREE,
            range_of(objectid::BLOCK_GROUP_TREE.0, ItemType::ROOT_ITEM),
            0,
            |_, _| {
                trees = vec![objectid::BLOCK_GROUP_TREE];
                Ok(())
            },
        )?;
        for tree in trees {
            for chunk in &chunks {
                let (start, length) = (chunk.start.0, chunk.item.length);
                let key = Key::new(start, ItemType::BLOCK_GROUP_ITEM, length);
                self.search(tree, (key, key), 0, |_, item| {
                    let item = BlockGroupItem::parse(item)
                        .map_err(|reason| anyhow::anyhow!("block group {start}: {reason}"))?;
                    used.insert(start, item.used);
                    Ok(())
                })?;
            }
        }
        for chunk in &mut chunks {
            chunk.used = used.get(&chunk.start.0).copied().unwrap_or_default();
        }
        Ok(chunks)
    }
}

/// Returns the keys of all items of a type that an object has.
pub fn range_of(object: u64, kind: ItemType) -> (Key, Key) {
    (Key::new(object, kind, 0), Key::new(object, kind, u64::MAX))
}
