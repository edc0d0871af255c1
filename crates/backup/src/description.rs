//! The description of a repository: the object `papilio-backup.json`.
//!
//! Owns [`Description`]. The object has two lines: JSON, and the SHA-256 of the first line in
//! hexadecimal. Version 1 has no key or one without a label; version 2 has a list of keys.
//!
//! **Invariant:** the object is replaced as a whole. So a change of the keys that is interrupted
//! leaves the old keys or the new ones.

use crate::error::{BackupError, Result};
use crate::key_entry::KeyEntry;
use papilio::device::ObjectStore;
use papilio_keys::{WrappedKey, hex};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::io;

/// The name of the description.
pub const DESCRIPTION: &str = "papilio-backup.json";
/// The most bytes of it.
const MOST_DESCRIPTION: u64 = 64 << 10;
/// The most keys of a repository: each costs a derivation when a secret is tried.
pub const MOST_KEYS: usize = 16;
const FORMAT: &str = "papilio-backup";

/// The description as it is stored.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    format: String,
    version: u32,
    id: String,
    /// Version 1.
    encryption: Option<WrappedKey>,
    /// Version 2.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    keys: Vec<KeyEntry>,
}

/// The part of all versions.
#[derive(Deserialize)]
struct AnyVersion {
    format: String,
    version: u32,
}

/// The description of a repository.
#[derive(Debug)]
pub struct Description {
    /// The id of the repository.
    pub id: [u8; 16],
    /// The keys; none in a plain repository.
    pub keys: Vec<KeyEntry>,
}

fn wrong(fault: impl Into<String>) -> BackupError {
    BackupError::damaged(DESCRIPTION, fault)
}

impl Description {
    /// Reads the description of the repository in a store.
    ///
    /// # Errors
    /// [`BackupError::NoRepository`]; it is damaged, or of a later version; the store's error.
    pub fn load(store: &dyn ObjectStore) -> Result<Self> {
        let bytes = store.get(DESCRIPTION, MOST_DESCRIPTION).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                BackupError::NoRepository(store.place())
            }
            io::ErrorKind::FileTooLarge => wrong("the description is too long"),
            _ => BackupError::Store { object: format!("{}/{DESCRIPTION}", store.place()), source },
        })?;
        Self::parse(&bytes)
    }

    fn parse(bytes: &[u8]) -> Result<Self> {
        let text = std::str::from_utf8(bytes).map_err(|_| wrong("the description is not text"))?;
        let (text, sum) = text.split_once('\n').ok_or_else(|| wrong("the description is cut"))?;
        if sum.trim_end() != hex::text(&Sha256::digest(text.as_bytes())) {
            return Err(wrong("the description does not match its checksum"));
        }
        let any: AnyVersion = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        if any.format != FORMAT || !matches!(any.version, 1 | 2) {
            let AnyVersion { format, version } = any;
            return Err(wrong(format!("format {format:?}, version {version}, where 1 and 2 are known")));
        }
        let stored: Stored = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        let id = hex::array::<16>(&stored.id).ok_or_else(|| wrong("the id is not valid"))?;
        let keys = match (stored.version, stored.encryption, stored.keys) {
            (1, None, keys) if keys.is_empty() => keys,
            (1, Some(key), keys) if keys.is_empty() => vec![KeyEntry { label: None, key }],
            (2, None, keys) if (1..=MOST_KEYS).contains(&keys.len()) => keys,
            (version, _, keys) => {
                return Err(wrong(format!("version {version} with {} keys in its list", keys.len())));
            }
        };
        Ok(Self { id, keys })
    }

    /// Returns the bytes of the object.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (version, encryption, keys) = match &self.keys[..] {
            [] => (1, None, Vec::new()),
            [KeyEntry { label: None, key }] => (1, Some(key.clone()), Vec::new()),
            keys => (2, None, keys.to_vec()),
        };
        let stored = Stored { format: FORMAT.into(), version, id: hex::text(&self.id), encryption, keys };
        let text = serde_json::to_string(&stored).expect("it is text and numbers");
        let sum = hex::text(&Sha256::digest(text.as_bytes()));
        format!("{text}\n{sum}\n").into_bytes()
    }
}
