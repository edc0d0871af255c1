//! Hashes and the derivation of keys from passphrases.
//!
//! Bounds keep a header from asking for more memory or time than any real volume needs.

use crate::error::{LayerError, Result};
use argon2::{Algorithm, Argon2, Params, Version};
use pbkdf2::pbkdf2_hmac;
use sha1::Sha1;
use sha2::{Digest, Sha224, Sha256, Sha384, Sha512};
use zeroize::Zeroizing;

/// The most memory of an argon2 slot, in KiB. cryptsetup makes slots of 1 GiB at most, and refuses
/// more than 4 GiB.
const MOST_MEMORY: u32 = 4 << 20;
/// The most passes of argon2.
const MOST_PASSES: u32 = 10_000;
/// The most iterations of PBKDF2. A fast machine makes 20 million for two seconds.
const MOST_ITERATIONS: u32 = 1 << 30;

/// A hash by its name in a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hash {
    Sha1,
    Sha224,
    Sha256,
    Sha384,
    Sha512,
}

impl Hash {
    /// Returns the hash of this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        Some(match name.to_ascii_lowercase().as_str() {
            "sha1" => Self::Sha1,
            "sha224" => Self::Sha224,
            "sha256" => Self::Sha256,
            "sha384" => Self::Sha384,
            "sha512" => Self::Sha512,
            _ => return None,
        })
    }

    /// Returns the bytes of a digest.
    pub(super) fn length(self) -> usize {
        match self {
            Self::Sha1 => 20,
            Self::Sha224 => 28,
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }

    /// Returns the digest of all parts in turn.
    pub(super) fn digest(self, parts: &[&[u8]]) -> Zeroizing<Vec<u8>> {
        fn of<D: Digest>(parts: &[&[u8]]) -> Zeroizing<Vec<u8>> {
            let mut digest = D::new();
            parts.iter().for_each(|part| digest.update(part));
            Zeroizing::new(digest.finalize().to_vec())
        }
        match self {
            Self::Sha1 => of::<Sha1>(parts),
            Self::Sha224 => of::<Sha224>(parts),
            Self::Sha256 => of::<Sha256>(parts),
            Self::Sha384 => of::<Sha384>(parts),
            Self::Sha512 => of::<Sha512>(parts),
        }
    }

    /// Derives `length` bytes with PBKDF2 and HMAC.
    pub(super) fn pbkdf2(
        self,
        secret: &[u8],
        salt: &[u8],
        iterations: u32,
        length: usize,
    ) -> Zeroizing<Vec<u8>> {
        let mut key = Zeroizing::new(vec![0; length]);
        match self {
            Self::Sha1 => pbkdf2_hmac::<Sha1>(secret, salt, iterations, &mut key),
            Self::Sha224 => pbkdf2_hmac::<Sha224>(secret, salt, iterations, &mut key),
            Self::Sha256 => pbkdf2_hmac::<Sha256>(secret, salt, iterations, &mut key),
            Self::Sha384 => pbkdf2_hmac::<Sha384>(secret, salt, iterations, &mut key),
            Self::Sha512 => pbkdf2_hmac::<Sha512>(secret, salt, iterations, &mut key),
        }
        key
    }
}

/// The key derivation of a slot.
#[derive(Clone, Debug)]
pub(super) enum Kdf {
    Pbkdf2 { hash: Hash, iterations: u32, salt: Vec<u8> },
    Argon2 { id: bool, passes: u32, memory_kib: u32, lanes: u32, salt: Vec<u8> },
}

impl Kdf {
    /// Returns what is wrong with the costs, if anything.
    pub(super) fn fault(&self) -> Option<String> {
        match self {
            Self::Pbkdf2 { iterations, .. } if !(1..=MOST_ITERATIONS).contains(iterations) => {
                Some(format!("{iterations} iterations of PBKDF2"))
            }
            Self::Argon2 { passes, memory_kib, lanes, .. }
                if !(1..=MOST_PASSES).contains(passes)
                    || *memory_kib > MOST_MEMORY
                    || !(1..=64).contains(lanes)
                    || *memory_kib < 8 * lanes =>
            {
                Some(format!("argon2 with {passes} passes, {memory_kib} KiB and {lanes} lanes"))
            }
            _ => None,
        }
    }

    /// Derives the key of a slot.
    pub(super) fn derive(&self, device: &str, secret: &[u8], length: usize) -> Result<Zeroizing<Vec<u8>>> {
        match self {
            Self::Pbkdf2 { hash, iterations, salt } => Ok(hash.pbkdf2(secret, salt, *iterations, length)),
            Self::Argon2 { id, passes, memory_kib, lanes, salt } => {
                let failed =
                    |error: argon2::Error| LayerError::damaged(device, "LUKS", format!("argon2: {error}"));
                let algorithm = if *id { Algorithm::Argon2id } else { Algorithm::Argon2i };
                let params = Params::new(*memory_kib, *passes, *lanes, Some(length)).map_err(failed)?;
                let mut key = Zeroizing::new(vec![0; length]);
                Argon2::new(algorithm, Version::V0x13, params)
                    .hash_password_into(secret, salt, &mut key)
                    .map_err(failed)?;
                Ok(key)
            }
        }
    }
}
