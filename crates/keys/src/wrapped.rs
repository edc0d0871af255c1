//! `WrappedKey`: a random key, encrypted by a key that argon2id derives from the user's secret.

use crate::cipher::{SecretKey, new_cipher};
use crate::error::{KeyError, Result};
use crate::hex;
use crate::limits::{MOST_LANES, MOST_MEMORY, MOST_PASSES};
use crate::random::random;
use argon2::{Algorithm, Argon2, Params, Version};
use chacha20poly1305::XNonce;
use chacha20poly1305::aead::{Aead, Payload};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

/// A passphrase, or the bytes of a key file.
pub type Secret = Zeroizing<Vec<u8>>;

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

/// A key as a description has it.
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

/// Digits of a key's id.
const ID_DIGITS: usize = 8;

/// Returns a new random key.
///
/// # Errors
/// The host has no random numbers.
pub fn new_key() -> Result<SecretKey> {
    Ok(Zeroizing::new(random().map_err(KeyError::Random)?))
}

impl WrappedKey {
    /// Makes a new random key, and wraps it. `id` is authenticated with it.
    ///
    /// # Errors
    /// The host has no random numbers; a cost that argon2 does not take.
    pub fn make(id: &[u8; 16], secret: &Secret, cost: Derivation) -> Result<(Self, SecretKey)> {
        let key = new_key()?;
        Ok((Self::wrap(&key, id, secret, cost)?, key))
    }

    /// Wraps a key. `id` is authenticated with it.
    ///
    /// # Errors
    /// As [`Self::make`].
    pub fn wrap(key: &SecretKey, id: &[u8; 16], secret: &Secret, cost: Derivation) -> Result<Self> {
        let salt = random::<16>().map_err(KeyError::Random)?;
        let nonce = random::<24>().map_err(KeyError::Random)?;
        let cipher = new_cipher(&*derive(secret, &salt, cost)?);
        let payload = Payload { msg: &key[..], aad: &id[..] };
        let wrapped = cipher.encrypt(&XNonce::from(nonce), payload).map_err(|_| KeyError::Cipher)?;
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

    /// Opens the key. `None` means that the secret is wrong, or the id.
    ///
    /// # Errors
    /// The description is not valid.
    pub fn open(&self, id: &[u8; 16], secret: &Secret) -> Result<Option<SecretKey>> {
        if self.derivation != DERIVATION || self.cipher != CIPHER {
            let (derivation, cipher) = (self.derivation.clone(), self.cipher.clone());
            return Err(KeyError::Unknown { derivation, cipher });
        }
        let salt = hex::array::<16>(&self.salt).ok_or(KeyError::Field("salt"))?;
        let nonce = hex::array::<24>(&self.nonce).ok_or(KeyError::Field("nonce"))?;
        let wrapped = hex::array::<48>(&self.key).ok_or(KeyError::Field("key"))?;
        let cipher = new_cipher(&*derive(secret, &salt, self.cost())?);
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
        return Err(KeyError::Cost { memory_kib, passes, lanes });
    }
    let params = Params::new(memory_kib, passes, lanes, Some(32)).map_err(KeyError::Derivation)?;
    let mut key = Zeroizing::new([0; 32]);
    let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
    argon2.hash_password_into(secret, salt, &mut key[..]).map_err(KeyError::Derivation)?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrapped_key_opens_with_its_secret_and_id_only() {
        let cost = Derivation { memory_kib: 64, passes: 1, lanes: 1 };
        let secret = |text: &str| Zeroizing::new(text.as_bytes().to_vec());
        let (wrapped, key) = WrappedKey::make(&[1; 16], &secret("right"), cost).unwrap();
        assert_eq!(wrapped.open(&[1; 16], &secret("right")).unwrap().unwrap(), key);
        assert!(wrapped.open(&[1; 16], &secret("wrong")).unwrap().is_none());
        assert!(wrapped.open(&[2; 16], &secret("right")).unwrap().is_none());
        let again = WrappedKey::wrap(&key, &[1; 16], &secret("other"), cost).unwrap();
        assert_eq!(again.open(&[1; 16], &secret("other")).unwrap().unwrap(), key);
        let costly = WrappedKey { passes: MOST_PASSES + 1, ..wrapped.clone() };
        let error = costly.open(&[1; 16], &secret("right")).unwrap_err().to_string();
        assert!(error.contains("1001 passes"), "{error}");
        let unknown = WrappedKey { cipher: "rot13".into(), ..wrapped };
        assert!(unknown.open(&[1; 16], &secret("right")).is_err());
    }
}
