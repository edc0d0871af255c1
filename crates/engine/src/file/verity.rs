//! Turning on fs-verity for a file, and its parameters.
//!
//! Owns [`FsverityOptions`], [`FsverityInfo`], [`FsverityMetadata`] and
//! [`OpenFile::enable_verity`], which goes through these steps:
//! 1. A change lists the file as an orphan, so that the next mount removes a tree that was begun.
//! 2. The data is read, and the blocks of the Merkle tree are stored, a few in each change.
//! 3. One change stores the descriptor, sets the flag and unlists the file. It is committed.
//!
//! Invariant: the flag is set only if the file did not change since step 1.
//!
//! Locks: the file's data lock, exclusively in step 3; the transaction's. Kernel counterparts:
//! `enable_verity` (`fs/verity/enable.c`), `btrfs_begin_enable_verity`, `btrfs_end_enable_verity`
//! (`fs/btrfs/verity.c`).

use crate::btree::Change;
use crate::data::FileData;
use crate::data::fsverity::{HashBytes, MerkleLevels, MerkleTreeBuilder, SaltedHash};
use crate::errors::{Error, PathError, Result};
use crate::file::building_tree::Building;
use crate::file::fs_info::FsInfo;
use crate::file::open_file::OpenFile;
use crate::items::draft::edit;
use crate::items::{inode_edit, orphan, verity};
use crate::namespace::Place;
use crate::transaction::Start;
use papilio_format::features::CompatRoFeatures;
use papilio_format::items::fsverity_descriptor::{
    FsverityAlgorithm, FsverityDescriptor, MAX_SALT, MAX_SIGNATURE, MIN_LOG_BLOCK_SIZE,
};
use papilio_format::items::inode::{InodeFlags, InodeItem};
use papilio_format::{ItemType, Key};

/// Most items of the Merkle tree that one change stores or removes.
const ITEMS_AT_ONCE: usize = 32;
/// The items of a descriptor, and those that change with it.
const DESCRIPTOR_ITEMS: u64 = 16;
/// Bytes of data that are read in one go; a multiple of any block of a tree.
const READ_AT_ONCE: usize = 1 << 20;

/// The parameters of a file's Merkle tree.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FsverityOptions {
    /// The hash algorithm.
    pub algorithm: FsverityAlgorithm,
    /// The size of data and tree blocks in bytes: a power of two from 1,024 to the sector size.
    pub block_size: u32,
    /// The salt: at most 32 bytes.
    pub salt: Vec<u8>,
    /// A builtin signature of the file digest, in PKCS#7's DER. It is stored, and not verified.
    pub signature: Vec<u8>,
}

impl Default for FsverityOptions {
    /// SHA-256 over blocks of 4 KiB, without salt and signature, as the tool fsverity(1).
    fn default() -> Self {
        Self {
            algorithm: FsverityAlgorithm::default(),
            block_size: 4096,
            salt: Vec::new(),
            signature: Vec::new(),
        }
    }
}

impl FsverityOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the hash algorithm.
    pub fn algorithm(mut self, algorithm: FsverityAlgorithm) -> Self {
        self.algorithm = algorithm;
        self
    }

    /// Sets the size of data and tree blocks in bytes.
    pub fn block_size(mut self, bytes: u32) -> Self {
        self.block_size = bytes;
        self
    }

    /// Sets the salt.
    pub fn salt(mut self, salt: impl Into<Vec<u8>>) -> Self {
        self.salt = salt.into();
        self
    }

    /// Sets the builtin signature.
    pub fn signature(mut self, signature: impl Into<Vec<u8>>) -> Self {
        self.signature = signature.into();
        self
    }

    fn check(&self, sector_size: u32) -> Result<()> {
        let size = self.block_size;
        if !size.is_power_of_two() || !(1 << MIN_LOG_BLOCK_SIZE..=sector_size).contains(&size) {
            return Err(Error::Invalid(format!(
                "a block of fs-verity has {size} bytes: it must be a power of two from 1024 to {sector_size}"
            )));
        }
        if self.salt.len() > MAX_SALT {
            let have = self.salt.len();
            return Err(Error::Invalid(format!("a salt has {have} bytes: it may have {MAX_SALT}")));
        }
        if self.signature.len() as u64 > MAX_SIGNATURE {
            let have = self.signature.len();
            return Err(Error::Invalid(format!("a signature has {have} bytes: it may have {MAX_SIGNATURE}")));
        }
        Ok(())
    }

    fn descriptor(&self, size: u64, root: &HashBytes) -> FsverityDescriptor {
        let mut descriptor = FsverityDescriptor {
            version: 1,
            hash_algorithm: self.algorithm.number(),
            log_blocksize: self.block_size.trailing_zeros() as u8,
            salt_size: self.salt.len() as u8,
            sig_size: self.signature.len() as u32,
            data_size: size,
            root_hash: [0; 64],
            salt: [0; MAX_SALT],
            reserved: [0; 144],
        };
        descriptor.root_hash[..root.len()].copy_from_slice(root);
        descriptor.salt[..self.salt.len()].copy_from_slice(&self.salt);
        descriptor
    }
}

/// The parameters and the digest of a file with fs-verity.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FsverityInfo {
    /// The hash algorithm.
    pub algorithm: FsverityAlgorithm,
    /// The file digest (`FS_IOC_MEASURE_VERITY`), which stands for the whole content.
    pub digest: Vec<u8>,
    /// The size of data and tree blocks in bytes.
    pub block_size: u32,
    /// The salt.
    pub salt: Vec<u8>,
    /// The hash of the tree's root block.
    pub root_hash: Vec<u8>,
    /// The builtin signature; empty without one.
    pub signature: Vec<u8>,
}

impl FsverityInfo {
    /// Returns those of `file`, or `None` without fs-verity.
    ///
    /// # Errors
    /// [`Error::MissingItem`] or [`Error::Item`] for a descriptor that is missing or invalid; a
    /// tree block that cannot be read.
    pub fn of(fs: &FsInfo, file: &FileData<'_>) -> Result<Option<Self>> {
        if !file.flags.contains(InodeFlags::VERITY) {
            return Ok(None);
        }
        let verity = fs.reader.verity_of(file)?;
        Ok(Some(Self {
            algorithm: verity.algorithm,
            digest: verity.digest().to_vec(),
            block_size: verity.block_size() as u32,
            salt: verity.descriptor.salt().to_vec(),
            root_hash: verity.descriptor.root_hash[..verity.algorithm.size()].to_vec(),
            signature: verity.signature.clone(),
        }))
    }
}

/// The metadata that fs-verity stores beside a file (`FS_VERITY_METADATA_TYPE_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FsverityMetadata {
    /// The Merkle tree, from its root block on.
    MerkleTree,
    /// The descriptor, whose size of the signature reads as 0.
    Descriptor,
    /// The builtin signature.
    Signature,
}

impl FsverityMetadata {
    /// Reads bytes from `offset` on and returns their number, which is smaller than the buffer only
    /// at the end; `None` without fs-verity, and for the signature of a file that has none.
    ///
    /// # Errors
    /// As [`FsverityInfo::of`].
    pub fn read(
        self,
        fs: &FsInfo,
        file: &FileData<'_>,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<Option<usize>> {
        if !file.flags.contains(InodeFlags::VERITY) {
            return Ok(None);
        }
        let verity = fs.reader.verity_of(file)?;
        let copy = |bytes: &[u8], buffer: &mut [u8]| {
            let rest =
                usize::try_from(offset).ok().and_then(|offset| bytes.get(offset..)).unwrap_or_default();
            let length = rest.len().min(buffer.len());
            buffer[..length].copy_from_slice(&rest[..length]);
            Some(length)
        };
        Ok(match self {
            Self::MerkleTree => {
                let item_type = ItemType::VERITY_MERKLE_ITEM;
                Some(verity::read_bytes(file.tree.get(), file.inode, item_type, offset, buffer)?)
            }
            Self::Descriptor => {
                copy(&FsverityDescriptor { sig_size: 0, ..verity.descriptor }.to_bytes(), buffer)
            }
            Self::Signature if verity.signature.is_empty() => None,
            Self::Signature => copy(&verity.signature, buffer),
        })
    }
}

impl OpenFile {
    /// Returns the parameters of the file's Merkle tree, or `None` without fs-verity.
    ///
    /// # Errors
    /// As [`FsverityInfo::of`].
    pub fn verity(&self) -> Result<Option<FsverityInfo>> {
        let _shared = self.open.data.read();
        self.with_file_data(None, |file| FsverityInfo::of(&self.fs, file))
    }

    /// Reads what fs-verity stores beside the file, as [`FsverityMetadata::read`].
    ///
    /// # Errors
    /// As [`FsverityInfo::of`].
    pub fn read_verity(
        &self,
        kind: FsverityMetadata,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<Option<usize>> {
        let _shared = self.open.data.read();
        self.with_file_data(None, |file| kind.read(&self.fs, file, offset, buffer))
    }

    /// Builds the Merkle tree of the file's data and turns on fs-verity: from then on every read is
    /// verified, and the data never changes again. It is durable on return. Calls `progress` with
    /// the bytes that are hashed; where it returns false, the work stops and the file stays as it
    /// was.
    ///
    /// # Errors
    /// - [`PathError::Exists`] if the file has fs-verity.
    /// - [`PathError::NotPermitted`] for an immutable or append-only file.
    /// - [`PathError::Busy`] if the file changes meanwhile, or another caller turns it on.
    /// - [`PathError::ReadOnly`]; [`Error::NoSpace`]; [`Error::Invalid`] for wrong options, or
    ///   where `progress` stops the work; an error of reading or writing.
    pub fn enable_verity(
        &self,
        options: &FsverityOptions,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<()> {
        options.check(self.fs.sector_size() as u32)?;
        self.begin_writing()?;
        // The flush publishes earlier writes, which are no changes. Later ones are, or leave the
        // file dirty.
        self.flush()?;
        let building = self.open.merkle_tree.begin().ok_or_else(|| self.refused(PathError::Busy))?;
        let before = self.open.item(self.live()?)?;
        if before.flags.contains(InodeFlags::VERITY) {
            return Err(self.refused(PathError::Exists));
        }
        if before.flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND) {
            return Err(self.refused(PathError::NotPermitted));
        }
        let place = self.open.place();
        let levels = MerkleLevels::new(before.size, options.block_size as usize, options.algorithm.size());
        let levels = levels.ok_or_else(|| self.refused(PathError::TooLarge))?;
        self.fs.drop_verity(place)?;
        self.fs.change_tree(place.tree, DESCRIPTOR_ITEMS, |editor, _, _| {
            edit(editor, |draft| orphan::insert(draft, place.inode))
        })?;
        let built = self
            .store_merkle_tree(&before, levels, options, progress)
            .and_then(|root| self.set_verity(&building, &options.descriptor(before.size, &root), options));
        if built.is_err()
            && let Err(error) = self.fs.drop_verity(place).and_then(|()| self.forget_building())
        {
            tracing::warn!("{place:?}: the next mount removes the Merkle tree that was begun: {error}");
        }
        built
    }

    /// Reads the data and stores its Merkle tree. Returns the root hash.
    fn store_merkle_tree(
        &self,
        item: &InodeItem,
        levels: MerkleLevels,
        options: &FsverityOptions,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<HashBytes> {
        let hash = SaltedHash::new(options.algorithm, &options.salt);
        let mut builder = MerkleTreeBuilder::new(levels, hash);
        let mut stored: Vec<(Key, Vec<u8>)> = Vec::new();
        let mut write = |at: u64, block: &[u8]| {
            let inode = self.open.place().inode;
            stored.extend(verity::pieces(inode, ItemType::VERITY_MERKLE_ITEM, at, block));
            match stored.len() < ITEMS_AT_ONCE {
                true => Ok(()),
                false => self.put_items(std::mem::take(&mut stored)),
            }
        };
        let mut buffer = vec![0; READ_AT_ONCE];
        let mut at = 0;
        while at < item.size {
            let wanted = (item.size - at).min(READ_AT_ONCE as u64) as usize;
            let data = &mut buffer[..wanted];
            if self.read_at(data, at)? < wanted {
                return Err(self.refused(PathError::Busy));
            }
            for block in data.chunks(options.block_size as usize) {
                builder.add(block, &mut write)?;
            }
            at += wanted as u64;
            if !progress(at) {
                return Err(Error::Invalid("the caller stopped the construction of the tree".to_owned()));
            }
        }
        let root = builder.finish(&mut write)?;
        self.put_items(stored)?;
        Ok(root)
    }

    fn put_items(&self, mut items: Vec<(Key, Vec<u8>)>) -> Result<()> {
        items.sort_unstable_by_key(|(key, _)| *key);
        let changes: Vec<Change> = items.into_iter().map(|(key, data)| Change::Put { key, data }).collect();
        let tree = self.open.place().tree;
        self.fs.charge(tree, 0, changes.len() as u64)?;
        self.fs.change_tree(tree, changes.len() as u64, |editor, _, _| editor.apply(&changes))
    }

    /// Stores the descriptor and sets the flag, if the file is as it was, and commits.
    fn set_verity(
        &self,
        building: &Building<'_>,
        descriptor: &FsverityDescriptor,
        options: &FsverityOptions,
    ) -> Result<()> {
        let place = self.open.place();
        let items = verity::put_descriptor(place.inode, descriptor, &options.signature);
        let generation = {
            let _exclusive = self.open.data.write();
            if self.open.is_dirty() || building.has_changed() {
                return Err(self.refused(PathError::Busy));
            }
            self.fs.change(place.tree, DESCRIPTOR_ITEMS, |handle, _| {
                let live = handle.live_tree(place.tree)?;
                edit(&mut live.edit(handle), |draft| {
                    let mut item = inode_edit::load(draft, place.inode)?;
                    if item.size != descriptor.data_size {
                        return Err(self.refused(PathError::Busy));
                    }
                    item.flags |= InodeFlags::VERITY;
                    inode_edit::store(draft, place.inode, &item);
                    items.iter().for_each(|(key, data)| draft.insert(*key, data.clone()));
                    if item.nlink > 0 {
                        orphan::remove(draft, place.inode)?;
                    }
                    Ok(())
                })?;
                let volume = self.fs.volume();
                volume.set_compat_ro(volume.geometry().compat_ro | CompatRoFeatures::VERITY);
                Ok(handle.generation())
            })?
        };
        self.fs.commit_transaction(generation)
    }

    /// Unlists the file as an orphan, unless it has no name.
    fn forget_building(&self) -> Result<()> {
        let place = self.open.place();
        self.fs.change_tree(place.tree, DESCRIPTOR_ITEMS, |editor, _, _| {
            edit(editor, |draft| {
                if inode_edit::load(draft, place.inode)?.nlink > 0 {
                    orphan::remove(draft, place.inode)?;
                }
                Ok(())
            })
        })
    }

    fn refused(&self, kind: PathError) -> Error {
        let place = self.open.place();
        Error::path(format!("subvolume {}, inode {}", place.tree, place.inode).as_bytes(), kind)
    }
}

impl FsInfo {
    /// Removes the descriptor and the Merkle tree of a file, a few items in each change.
    pub(super) fn drop_verity(&self, place: Place) -> Result<()> {
        let transactions = self.transactions()?;
        loop {
            let start = Start::items(ITEMS_AT_ONCE as u64).steal();
            let more = self.retry_after_flushes(|| {
                transactions.change(start, |handle| {
                    let live = handle.live_tree(place.tree)?;
                    verity::remove(&mut live.edit(handle), place.inode, ITEMS_AT_ONCE)
                })
            })?;
            if !more {
                return Ok(());
            }
        }
    }
}
