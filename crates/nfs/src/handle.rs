//! Handles: the names of inodes that the server gives to clients.
//!
//! Owns [`Id`], [`Seal`] and [`Secret`].
//!
//! **Invariants**
//! - A client has handles only of inodes that a call showed it. A handle contains a keyed hash, so
//!   a client cannot make up the handle of an inode outside of the exported directory.
//! - The key depends on a secret of the server, on the file system and on the exported directory.
//!   A handle of another export is stale.
//! - A handle names one inode for ever. It has the generation in which the inode was created, and
//!   the hash has that of the subvolume. So an inode or a subvolume that gets the number of another
//!   later is not taken for it.
//! - With a secret that is kept, handles are valid after a restart of the server.

use crate::secret::Secret;
use nfs3_types::nfs3::{nfs_fh3, nfsstat3};
use nfs3_types::xdr_codec::Opaque;
use papilio::format::{Generation, InodeNumber, TreeId};
use papilio::{ChecksumType, Inode, Metadata};
use std::fmt;

/// Bits of an inode number in a file id.
const NUMBER_BITS: u32 = 40;
const ID_SIZE: usize = 24;
const SEAL_SIZE: usize = 16;
const KEY_SIZE: usize = 32;

/// A subvolume, the number of an inode in it, and the generation in which that was created.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Id([u8; ID_SIZE]);

impl Id {
    pub(crate) fn new(tree: TreeId, number: InodeNumber, generation: Generation) -> Self {
        let mut bytes = [0; ID_SIZE];
        bytes[..8].copy_from_slice(&tree.0.to_le_bytes());
        bytes[8..16].copy_from_slice(&number.0.to_le_bytes());
        bytes[16..].copy_from_slice(&generation.0.to_le_bytes());
        Self(bytes)
    }

    pub(crate) fn of(inode: &Inode) -> Self {
        Self::of_metadata(inode.metadata())
    }

    fn of_metadata(metadata: &Metadata) -> Self {
        Self::new(metadata.tree(), metadata.number(), metadata.generation())
    }

    fn word(self, at: usize) -> u64 {
        u64::from_le_bytes(self.0[8 * at..8 * at + 8].try_into().expect("8 bytes"))
    }

    pub(crate) fn tree(self) -> TreeId {
        TreeId(self.word(0))
    }

    pub(crate) fn number(self) -> InodeNumber {
        InodeNumber(self.word(1))
    }

    /// Returns the number that clients show. It is unique for fewer than 2^40 inodes in each of
    /// 2^24 subvolumes.
    pub(crate) fn file_id(self) -> u64 {
        self.number().0 ^ self.tree().0.rotate_left(NUMBER_BITS)
    }

    pub(crate) fn file_id_of(metadata: &Metadata) -> u64 {
        Self::of_metadata(metadata).file_id()
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.tree(), self.number())
    }
}

/// The key of an export, which marks its handles.
#[derive(Clone)]
pub(crate) struct Seal([u8; KEY_SIZE]);

impl Seal {
    /// Derives the key of the export of the directory `root` of a file system.
    pub(crate) fn new(secret: &Secret, file_system: &[u8; 16], root: Id) -> Self {
        let message = [&b"papilio nfs handle"[..], secret.as_bytes(), file_system, &root.0].concat();
        let hash = ChecksumType::Blake2b.compute(&message);
        Self(hash.as_bytes()[..KEY_SIZE].try_into().expect("the hash has 32 bytes"))
    }

    /// Returns the keyed hash of an id in a subvolume that was `created` in this generation. BLAKE2
    /// needs no more than the key before the message.
    fn hash(&self, id: Id, created: Generation) -> [u8; SEAL_SIZE] {
        let mut message = [0; KEY_SIZE + ID_SIZE + 8];
        message[..KEY_SIZE].copy_from_slice(&self.0);
        message[KEY_SIZE..KEY_SIZE + ID_SIZE].copy_from_slice(&id.0);
        message[KEY_SIZE + ID_SIZE..].copy_from_slice(&created.0.to_le_bytes());
        let hash = ChecksumType::Blake2b.compute(&message);
        hash.as_bytes()[..SEAL_SIZE].try_into().expect("the hash has 32 bytes")
    }

    /// Returns the handle of an inode.
    pub(crate) fn handle(&self, id: Id, created: Generation) -> nfs_fh3 {
        nfs_fh3 { data: Opaque::owned([&id.0[..], &self.hash(id, created)].concat()) }
    }

    /// Returns the inode that a handle names. `created` tells when a subvolume was created.
    ///
    /// # Errors
    /// A handle of another export or of a deleted subvolume is stale. One of another size is no
    /// handle.
    pub(crate) fn open(
        &self,
        handle: &[u8],
        created: impl FnOnce(TreeId) -> Result<Generation, nfsstat3>,
    ) -> Result<Id, nfsstat3> {
        let (id, rest) = handle.split_first_chunk().ok_or(nfsstat3::NFS3ERR_BADHANDLE)?;
        let given: [u8; SEAL_SIZE] = rest.try_into().map_err(|_| nfsstat3::NFS3ERR_BADHANDLE)?;
        let id = Id(*id);
        let hash = self.hash(id, created(id.tree())?);
        // All bytes are compared, so that the time tells nothing about the right ones.
        let differs = given.iter().zip(hash).fold(0, |differs, (given, right)| differs | (given ^ right));
        if differs == 0 { Ok(id) } else { Err(nfsstat3::NFS3ERR_STALE) }
    }
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seal")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_handles_of_the_export_open() {
        let (secret, file_system) = (Secret::random().unwrap(), [7; 16]);
        let id = |number| Id::new(TreeId(5), InodeNumber(number), Generation(9));
        let seal = Seal::new(&secret, &file_system, id(256));
        let handle = seal.handle(id(300), Generation(3)).data.to_vec();
        let open = |seal: &Seal, handle: &[u8]| seal.open(handle, |_| Ok(Generation(3)));
        assert_eq!(open(&seal, &handle), Ok(id(300)));
        assert_eq!(open(&Seal::new(&secret, &file_system, id(256)), &handle), Ok(id(300)), "a restart");
        let other = seal.open(&handle, |_| Ok(Generation(4)));
        assert_eq!(other, Err(nfsstat3::NFS3ERR_STALE), "another subvolume");
        for at in 0..handle.len() {
            let mut forged = handle.clone();
            forged[at] ^= 1;
            assert_eq!(open(&seal, &forged), Err(nfsstat3::NFS3ERR_STALE), "byte {at}");
        }
        for other in [
            Seal::new(&Secret::random().unwrap(), &file_system, id(256)),
            Seal::new(&secret, &[8; 16], id(256)),
            Seal::new(&secret, &file_system, id(257)),
        ] {
            assert_eq!(open(&other, &handle), Err(nfsstat3::NFS3ERR_STALE));
        }
        for length in [0, 15, 16, 24, 32, 39] {
            assert_eq!(open(&seal, &handle[..length]), Err(nfsstat3::NFS3ERR_BADHANDLE));
        }
        assert_eq!(open(&seal, &[&handle[..], &[0]].concat()), Err(nfsstat3::NFS3ERR_BADHANDLE));
    }
}
