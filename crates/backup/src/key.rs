//! The key of an encrypted repository.
//!
//! Owns [`WrappedKey`]: the repository's random key, encrypted by a key that argon2id derives from
//! a secret of the user. A repository may have several, each for another secret. Bounds keep a
//! repository from asking for more memory or time than any real one needs.

use crate::error::{BackupError, Result};
use crate::hex;
use crate::random::random;
use crate::seal::{SecretKey, new_cipher};
use argon2::{Algorithm, Argon2, Params, Version};
use chacha20poly1305::XNonce;
use chacha20poly1305::aead::{Aead, Payload};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

/// A passphrase, or the bytes of a key file.
pub type Secret = Zeroizing<Vec<u8>>;

/// The most memory of the derivation, in KiB.
const MOST_MEMORY: u32 = 4 << 20;
/// The most passes of the derivation.
const MOST_PASSES: u32 = 1000;
/// The most lanes of the derivation.
const MOST_LANES: u32 = 64;
/// Digits of a key's id.
const ID_DIGITS: usize = 8;

/// The cost of deriving a key from a secret with argon2id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Derivation {
    /// Memory in KiB.
    pub memory_kib: u32,
    /// Passes over it.
    pub passes: u32,
    /// Lanes.
    pub lanes: u32,
}

impl Default for Derivation {
    /// 64 MiB, three passes, four lanes: the second choice of RFC 9106.
    fn default() -> Self {
        Self { memory_kib: 64 << 10, passes: 3, lanes: 4 }
    }
}

/// The repository's key as its description has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrappedKey {
    derivation: String,
    memory_kib: u32,
    passes: u32,
    lanes: u32,
    salt: String,
    cipher: String,
    nonce: String,
    key: String,
}

const DERIVATION: &str = "argon2id";
const CIPHER: &str = "xchacha20-poly1305";

/// A key in the list of a description.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyEntry {
    /// The name that the user gave it.
    pub label: Option<String>,
    /// The key.
    pub key: WrappedKey,
}

fn host(source: std::io::Error) -> BackupError {
    BackupError::Store { object: "random numbers".into(), source }
}

/// Returns a new random key of a repository.
///
/// # Errors
/// The host has no random numbers.
pub fn new_key() -> Result<SecretKey> {
    Ok(Zeroizing::new(random().map_err(host)?))
}

impl WrappedKey {
    /// Wraps a repository's key.
    ///
    /// # Errors
    /// The host has no random numbers; a cost that argon2 does not take.
    pub fn wrap(id: &[u8; 16], key: &SecretKey, secret: &Secret, cost: Derivation) -> Result<Self> {
        let (salt, nonce) = (random::<16>().map_err(host)?, random::<24>().map_err(host)?);
        let derived = derive(secret, &salt, cost)?;
        let cipher = new_cipher(&derived);
        let payload = Payload { msg: &key[..], aad: &id[..] };
        let wrapped = cipher.encrypt(&XNonce::from(nonce), payload);
        let wrapped = wrapped.map_err(|_| BackupError::Invalid("the key cannot be encrypted".into()))?;
        Ok(Self {
            derivation: DERIVATION.into(),
            memory_kib: cost.memory_kib,
            passes: cost.passes,
            lanes: cost.lanes,
            salt: hex::text(&salt),
            cipher: CIPHER.into(),
            nonce: hex::text(&nonce),
            key: hex::text(&wrapped),
        })
    }

    /// Returns the id by which a user names the key: the first digits of its salt.
    pub fn id(&self) -> &str {
        self.salt.get(..ID_DIGITS).unwrap_or(&self.salt)
    }

    /// Returns the cost of the derivation.
    pub fn cost(&self) -> Derivation {
        let Self { memory_kib, passes, lanes, .. } = *self;
        Derivation { memory_kib, passes, lanes }
    }

    /// Opens the key. `None` means that the secret is wrong.
    ///
    /// # Errors
    /// The description is not valid.
    pub fn open(&self, id: &[u8; 16], secret: &Secret) -> Result<Option<SecretKey>> {
        let invalid =
            |field: &str| BackupError::Invalid(format!("the repository's key: {field} is not valid"));
        if self.derivation != DERIVATION || self.cipher != CIPHER {
            let (derivation, cipher) = (&self.derivation, &self.cipher);
            return Err(BackupError::Invalid(format!(
                "the repository's key needs {derivation} and {cipher}, which are not known"
            )));
        }
        let salt = hex::array::<16>(&self.salt).ok_or_else(|| invalid("salt"))?;
        let nonce = hex::array::<24>(&self.nonce).ok_or_else(|| invalid("nonce"))?;
        let wrapped = hex::array::<48>(&self.key).ok_or_else(|| invalid("key"))?;
        let derived = derive(secret, &salt, self.cost())?;
        let cipher = new_cipher(&derived);
        let payload = Payload { msg: &wrapped, aad: &id[..] };
        let Ok(opened) = cipher.decrypt(&XNonce::from(nonce), payload) else { return Ok(None) };
        let opened = Zeroizing::new(opened);
        let mut key = Zeroizing::new([0; 32]);
        key.copy_from_slice(&opened);
        Ok(Some(key))
    }
}

fn derive(secret: &Secret, salt: &[u8], cost: Derivation) -> Result<SecretKey> {
    let Derivation { memory_kib, passes, lanes } = cost;
    if memory_kib > MOST_MEMORY || passes > MOST_PASSES || lanes > MOST_LANES {
        return Err(BackupError::Invalid(format!(
            "the repository's key needs {memory_kib} KiB, {passes} passes and {lanes} lanes; the most are \
             {MOST_MEMORY}, {MOST_PASSES} and {MOST_LANES}"
        )));
    }
    let wrong = |error: argon2::Error| BackupError::Invalid(format!("the repository's key: {error}"));
    let params = Params::new(memory_kib, passes, lanes, Some(32)).map_err(wrong)?;
    let mut key = Zeroizing::new([0; 32]);
    let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
    argon2.hash_password_into(secret, salt, &mut key[..]).map_err(wrong)?;
    Ok(key)
}
