//! The hashes of fs-verity.
//!
//! Owns [`SaltedHash`]. A block is hashed behind the salt, which zeros fill up to a whole input
//! block of the algorithm. Locks: none.
//!
//! Source: `fsverity_prepare_hash_state` (`fs/verity/hash_algs.c`).

use arrayvec::ArrayVec;
use papilio_format::items::fsverity_descriptor::FsverityAlgorithm;
use sha2::{Digest, Sha256, Sha512};

/// A hash of either algorithm.
pub(crate) type HashBytes = ArrayVec<u8, 64>;

/// An algorithm that has taken in the salt.
#[derive(Clone, Debug)]
pub(crate) enum SaltedHash {
    Sha256(Sha256),
    Sha512(Sha512),
}

impl SaltedHash {
    /// Prepares `algorithm`; an empty salt adds nothing.
    pub(crate) fn new(algorithm: FsverityAlgorithm, salt: &[u8]) -> Self {
        let mut padded = salt.to_vec();
        if !salt.is_empty() {
            padded.resize(salt.len().next_multiple_of(algorithm.input_block()), 0);
        }
        match algorithm {
            FsverityAlgorithm::Sha256 => Self::Sha256(Sha256::new_with_prefix(&padded)),
            FsverityAlgorithm::Sha512 => Self::Sha512(Sha512::new_with_prefix(&padded)),
        }
    }

    /// Returns the hash of `block` and as many zeros as it lacks to `block_size` bytes.
    pub(crate) fn of_block(&self, block: &[u8], block_size: usize) -> HashBytes {
        fn hash<D: Digest>(mut state: D, block: &[u8], mut zeros: usize) -> HashBytes {
            const ZEROS: [u8; 512] = [0; 512];
            state.update(block);
            while zeros > 0 {
                let some = zeros.min(ZEROS.len());
                state.update(&ZEROS[..some]);
                zeros -= some;
            }
            state.finalize().iter().copied().collect()
        }
        let zeros = block_size.saturating_sub(block.len());
        match self {
            Self::Sha256(state) => hash(state.clone(), block, zeros),
            Self::Sha512(state) => hash(state.clone(), block, zeros),
        }
    }
}

/// Returns a hash in hexadecimal digits, as messages show it.
pub(super) fn hex(hash: &[u8]) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn salt_is_padded_to_an_input_block() {
        for algorithm in [FsverityAlgorithm::Sha256, FsverityAlgorithm::Sha512] {
            let plain = SaltedHash::new(algorithm, b"");
            let salted = SaltedHash::new(algorithm, b"pepper");
            assert_eq!(plain.of_block(b"data", 4).len(), algorithm.size());
            let mut whole = b"pepper".to_vec();
            whole.resize(algorithm.input_block(), 0);
            whole.extend(b"data");
            assert_eq!(salted.of_block(b"data", 4), plain.of_block(&whole, whole.len()));
            assert_eq!(plain.of_block(b"data", 2000), {
                let mut block = b"data".to_vec();
                block.resize(2000, 0);
                plain.of_block(&block, 2000)
            });
        }
        // printf '' | sha256sum
        let empty = hex(&SaltedHash::new(FsverityAlgorithm::Sha256, b"").of_block(b"", 0));
        assert_eq!(empty, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    }
}
