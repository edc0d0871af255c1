//! Objects as they are stored.
//!
//! Owns [`Sealer`], which turns content into stored bytes and back. All numbers are little endian.
//!
//! ```text
//! offset  size  field
//!      0     8  magic "PAPBKUP1"
//!      8     1  0: plain, 1: XChaCha20-Poly1305
//!      9    24  only if encrypted: nonce, random
//!   9/33     4  length of the content in bytes
//!  13/37        content as one zstd frame
//!    end    16  only if encrypted: tag
//! ```
//!
//! All that follows the nonce is encrypted. The id of the repository and the object's name are
//! authenticated with it, so an object under another name, or of another repository, is refused.
//! An object that is named after its content has as its name the HMAC-SHA-256 of the content under
//! a key of the repository, or the SHA-256 in a plain repository.

use crate::error::{BackupError, Result};
use chacha20poly1305::aead::{Aead, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use papilio_keys::{SecretKey, hex, hmac, new_cipher, random, subkey};
use sha2::{Digest, Sha256};
use std::io::Read;

/// The first bytes of every object.
const MAGIC: [u8; 8] = *b"PAPBKUP1";
const PLAIN: u8 = 0;
const ENCRYPTED: u8 = 1;
/// The most bytes by which a stored object exceeds its content.
pub const OVERHEAD: u64 = 64 << 10;

/// The keys of an encrypted repository.
struct Keys {
    cipher: XChaCha20Poly1305,
    names: SecretKey,
}

/// Seals and opens the objects of one repository.
pub struct Sealer {
    /// The id of the repository.
    id: [u8; 16],
    keys: Option<Keys>,
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sealer").field("id", &hex::text(&self.id)).finish_non_exhaustive()
    }
}

impl Sealer {
    /// Makes the sealer of a repository; without a key it is a plain one.
    pub fn new(id: [u8; 16], key: Option<&SecretKey>) -> Self {
        let keys = key.map(|key| {
            let content = subkey(key, "papilio backup: content");
            Keys { cipher: new_cipher(&content), names: subkey(key, "papilio backup: names") }
        });
        Self { id, keys }
    }

    /// Returns whether objects are encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.keys.is_some()
    }

    /// Returns the last part of the name of an object that is named after its content.
    pub fn name_of(&self, content: &[u8]) -> String {
        match &self.keys {
            Some(keys) => hex::text(&hmac(&keys.names[..], content)),
            None => hex::text(&Sha256::digest(content)),
        }
    }

    fn associated(&self, name: &str) -> Vec<u8> {
        [&self.id[..], name.as_bytes()].concat()
    }

    /// Returns the stored bytes of an object.
    ///
    /// # Errors
    /// The host has no random numbers, or zstd fails.
    pub fn seal(&self, name: &str, content: &[u8], level: i32) -> Result<Vec<u8>> {
        let host = |source| BackupError::Store { object: name.to_owned(), source };
        let length = u32::try_from(content.len())
            .map_err(|_| BackupError::Invalid(format!("{name}: an object has less than 4 GiB")))?;
        let mut packed = length.to_le_bytes().to_vec();
        let mut encoder = zstd::stream::Encoder::new(&mut packed, level).map_err(host)?;
        std::io::Write::write_all(&mut encoder, content).map_err(host)?;
        encoder.finish().map_err(host)?;
        let mut stored = MAGIC.to_vec();
        let Some(keys) = &self.keys else {
            stored.push(PLAIN);
            stored.extend(packed);
            return Ok(stored);
        };
        let nonce = random::<24>().map_err(host)?;
        let associated = self.associated(name);
        let payload = Payload { msg: &packed, aad: &associated };
        let cipher_text = keys.cipher.encrypt(&XNonce::from(nonce), payload);
        stored.push(ENCRYPTED);
        stored.extend(nonce);
        stored.extend(cipher_text.map_err(|_| BackupError::Invalid(format!("{name}: cannot be encrypted")))?);
        Ok(stored)
    }

    /// Returns the content of an object, of at most `most` bytes.
    ///
    /// # Errors
    /// [`BackupError::Damaged`].
    pub fn open(&self, name: &str, stored: &[u8], most: u64) -> Result<Vec<u8>> {
        let wrong = |fault: &str| BackupError::damaged(name, fault);
        let rest = stored.strip_prefix(&MAGIC[..]).ok_or_else(|| wrong("this is no object of a backup"))?;
        let opened;
        let packed = match (rest.split_first(), &self.keys) {
            (Some((&PLAIN, packed)), None) => packed,
            (Some((&PLAIN, _)), Some(_)) => return Err(wrong("a plain object in an encrypted repository")),
            (Some((&ENCRYPTED, _)), None) => return Err(wrong("an encrypted object in a plain repository")),
            (Some((&ENCRYPTED, sealed)), Some(keys)) => {
                let (nonce, sealed) =
                    sealed.split_first_chunk::<24>().ok_or_else(|| wrong("the object is cut"))?;
                let associated = self.associated(name);
                let payload = Payload { msg: sealed, aad: &associated };
                let text = keys.cipher.decrypt(&XNonce::from(*nonce), payload);
                opened = text.map_err(|_| wrong("the object is damaged, or belongs elsewhere"))?;
                &opened[..]
            }
            (Some((kind, _)), _) => return Err(wrong(&format!("unknown kind of object {kind}"))),
            (None, _) => return Err(wrong("the object is cut")),
        };
        let (length, frame) = packed.split_first_chunk::<4>().ok_or_else(|| wrong("the object is cut"))?;
        let length = u64::from(u32::from_le_bytes(*length));
        if length > most {
            return Err(wrong(&format!("{length} bytes of content, where {most} are the most")));
        }
        // The vector grows with the bytes that are there.
        let mut content = Vec::new();
        let decoder = zstd::stream::Decoder::new(frame).map_err(|error| wrong(&error.to_string()))?;
        let read = decoder.single_frame().take(length + 1).read_to_end(&mut content);
        read.map_err(|error| wrong(&format!("the content does not decompress: {error}")))?;
        match content.len() as u64 == length {
            true => Ok(content),
            false => Err(wrong(&format!("{} bytes of content in place of {length}", content.len()))),
        }
    }

    /// As [`Self::open`], for an object that is named after its content.
    ///
    /// # Errors
    /// As there; the content is not that of the name.
    pub fn open_named(&self, name: &str, stored: &[u8], most: u64) -> Result<Vec<u8>> {
        let content = self.open(name, stored, most)?;
        match name.rsplit('/').next() == Some(&self.name_of(&content)) {
            true => Ok(content),
            false => Err(BackupError::damaged(name, "the content is not the one that the name stands for")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zeroize::Zeroizing;

    #[test]
    fn sealed_content_opens_and_no_change_of_a_byte_does() {
        let key = Zeroizing::new([7; 32]);
        for sealer in [Sealer::new([1; 16], None), Sealer::new([1; 16], Some(&key))] {
            let content = b"some content of an object".repeat(5);
            let name = format!("data/{}", sealer.name_of(&content));
            let stored = sealer.seal(&name, &content, 3).unwrap();
            assert_eq!(sealer.open_named(&name, &stored, 1000).unwrap(), content);
            assert!(sealer.open_named(&name, &stored, content.len() as u64 - 1).is_err());
            for at in 0..stored.len() {
                for bit in 0..8 {
                    let mut changed = stored.clone();
                    changed[at] ^= 1 << bit;
                    // A bit of a frame's header may mean nothing, if the content is the same.
                    match sealer.open_named(&name, &changed, 1000) {
                        Ok(opened) => assert!(!sealer.is_encrypted() && opened == content),
                        Err(error) => assert!(matches!(error, BackupError::Damaged { .. }), "{error}"),
                    }
                }
                assert!(sealer.open_named(&name, &stored[..at], 1000).is_err(), "cut at {at}");
            }
            assert!(sealer.open_named("data/other", &stored, 1000).is_err());
        }
        let one = Sealer::new([1; 16], Some(&key));
        let other = Sealer::new([2; 16], Some(&key));
        let stored = one.seal("lock", b"text", 3).unwrap();
        assert!(other.open("lock", &stored, 100).is_err());
        assert!(one.open("lock", &stored, 100).is_ok());
        assert_ne!(one.name_of(b"x"), Sealer::new([1; 16], None).name_of(b"x"));
    }

    #[test]
    fn a_frame_that_expands_without_end_is_bounded() {
        let sealer = Sealer::new([0; 16], None);
        let mut stored = sealer.seal("data/x", &vec![0; 100 << 20], 3).unwrap();
        assert!(stored.len() < 1 << 20);
        stored[9..13].copy_from_slice(&1000u32.to_le_bytes());
        let error = sealer.open("data/x", &stored, 64 << 20).unwrap_err();
        assert_eq!(error.to_string(), "data/x: 1001 bytes of content in place of 1000");
    }
}
