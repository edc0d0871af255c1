//! Handles: the names of inodes that the server gives to clients.
//!
//! Owns [`Id`] and [`Seal`].
//!
//! **Invariant**: a client has handles only of inodes that a call showed it. A handle contains a
//! keyed hash, and the key is a secret of the running server. So a client cannot make up the
//! handle of an inode elsewhere in the file system, outside of the exported directory.

use nfs3_types::nfs3::{nfs_fh3, nfsstat3};
use nfs3_types::xdr_codec::Opaque;
use papilio::format::{InodeNumber, TreeId};
use papilio::{ChecksumType, Inode, Metadata};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};

/// Bits of an inode number in a file id.
const NUMBER_BITS: u32 = 40;
const ID_SIZE: usize = 16;
const SEAL_SIZE: usize = 16;
const KEY_SIZE: usize = 32;

/// A subvolume and the number of an inode in it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Id([u8; ID_SIZE]);

impl Id {
    pub(crate) fn new(tree: TreeId, number: InodeNumber) -> Self {
        let mut bytes = [0; ID_SIZE];
        bytes[..8].copy_from_slice(&tree.0.to_le_bytes());
        bytes[8..].copy_from_slice(&number.0.to_le_bytes());
        Self(bytes)
    }

    pub(crate) fn of(inode: &Inode) -> Self {
        Self::new(inode.tree(), inode.number())
    }

    pub(crate) fn tree(self) -> TreeId {
        TreeId(u64::from_le_bytes(self.0[..8].try_into().expect("8 bytes")))
    }

    pub(crate) fn number(self) -> InodeNumber {
        InodeNumber(u64::from_le_bytes(self.0[8..].try_into().expect("8 bytes")))
    }

    /// Returns the number that clients show. It is unique for fewer than 2^40 inodes in each of
    /// 2^24 subvolumes.
    pub(crate) fn file_id(self) -> u64 {
        self.number().0 ^ self.tree().0.rotate_left(NUMBER_BITS)
    }

    pub(crate) fn file_id_of(metadata: &Metadata) -> u64 {
        Self::new(metadata.tree(), metadata.number()).file_id()
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.tree(), self.number())
    }
}

/// The secret of a server.
#[derive(Clone)]
pub(crate) struct Seal([u8; KEY_SIZE]);

impl Seal {
    /// A new secret.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub(crate) fn new() -> io::Result<Self> {
        let mut key = [0; KEY_SIZE];
        File::open("/dev/urandom")?.read_exact(&mut key)?;
        Ok(Self(key))
    }

    /// Returns the keyed hash of an id. BLAKE2 needs no more than the key before the message.
    fn hash(&self, id: Id) -> [u8; SEAL_SIZE] {
        let mut message = [0; KEY_SIZE + ID_SIZE];
        message[..KEY_SIZE].copy_from_slice(&self.0);
        message[KEY_SIZE..].copy_from_slice(&id.0);
        let hash = ChecksumType::Blake2b.compute(&message);
        hash.as_bytes()[..SEAL_SIZE].try_into().expect("the hash has 32 bytes")
    }

    /// Returns the handle of an inode.
    pub(crate) fn handle(&self, id: Id) -> nfs_fh3 {
        nfs_fh3 { data: Opaque::owned([id.0, self.hash(id)].concat()) }
    }

    /// Returns the inode that a handle names.
    ///
    /// # Errors
    /// A handle of another server is stale. One of another size is no handle.
    pub(crate) fn open(&self, handle: &[u8]) -> Result<Id, nfsstat3> {
        let (id, rest) = handle.split_first_chunk().ok_or(nfsstat3::NFS3ERR_BADHANDLE)?;
        let given: [u8; SEAL_SIZE] = rest.try_into().map_err(|_| nfsstat3::NFS3ERR_BADHANDLE)?;
        let hash = self.hash(Id(*id));
        // All bytes are compared, so that the time tells nothing about the right ones.
        let differs = given.iter().zip(hash).fold(0, |differs, (given, right)| differs | (given ^ right));
        if differs == 0 { Ok(Id(*id)) } else { Err(nfsstat3::NFS3ERR_STALE) }
    }

    /// Returns bytes that differ between servers, which tell clients that one has started anew.
    pub(crate) fn verifier(&self) -> [u8; 8] {
        let hash = self.hash(Id([0; ID_SIZE]));
        hash[..8].try_into().expect("the hash is longer")
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
    fn only_the_servers_own_handles_open() {
        let seal = Seal::new().unwrap();
        let id = Id::new(TreeId(5), InodeNumber(256));
        let handle = seal.handle(id).data.to_vec();
        assert_eq!(seal.open(&handle), Ok(id));
        for at in 0..handle.len() {
            let mut forged = handle.clone();
            forged[at] ^= 1;
            assert_eq!(seal.open(&forged), Err(nfsstat3::NFS3ERR_STALE), "byte {at}");
        }
        assert_eq!(Seal::new().unwrap().open(&handle), Err(nfsstat3::NFS3ERR_STALE));
        for length in [0, 15, 16, 31] {
            assert_eq!(seal.open(&handle[..length]), Err(nfsstat3::NFS3ERR_BADHANDLE));
        }
        assert_eq!(seal.open(&[&handle[..], &[0]].concat()), Err(nfsstat3::NFS3ERR_BADHANDLE));
    }
}
