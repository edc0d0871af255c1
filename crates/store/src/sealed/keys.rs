//! `KeyRing`: the object that holds a device's key, encrypted by the user's secrets.
//!
//! It owns the objects `keys/NUMBER.key` below the device's prefix. Each is written once; the
//! highest number counts, and earlier ones are deleted. One has two lines: JSON, and the SHA-256 of
//! the first line in hexadecimal. The fields of the JSON are
//!
//! | field | value |
//! |---|---|
//! | `format`, `version` | `papilio-store-keys`, 1 |
//! | `chunk` | bytes of content in a chunk: 4104 |
//! | `domain` | 16 random bytes that name the key; clones share it |
//! | `id` | 16 random bytes that name the device |
//! | `slots` | for each secret its number, the time it was added, and the [`WrappedKey`] |
//! | `nonce`, `ancestors` | prefixes and ids of a clone's ancestors, encrypted by the key |
//!
//! **Invariants**
//! - Every slot opens to the same key, which stays for the life of the device and of its clones.
//! - A device's id is never that of another one, so that objects cannot be exchanged.

use super::chunks::Sealing;
use chacha20poly1305::XNonce;
use chacha20poly1305::aead::{Aead, Payload};
use futures_util::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use papilio_device::{OpenErrorKind, StoreKey};
use papilio_keys::{Derivation, KeyError, Secret, SecretKey, WrappedKey, hex, new_cipher, random, subkey};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The folder of these objects.
pub(crate) const FOLDER: &str = "keys";
const SUFFIX: &str = ".key";
const FORMAT: &str = "papilio-store-keys";
const VERSION: u32 = 1;
/// The most bytes of the object.
const MOST_BYTES: u64 = 1 << 20;
/// The most secrets of a device: each wrong one costs as many derivations.
const MOST_SLOTS: usize = 32;
/// How often a reader looks again for an object that another program replaced.
const ATTEMPTS: usize = 4;

type Store = Arc<dyn ObjectStore>;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeySlot {
    slot: u32,
    /// Seconds since 1970.
    added: u64,
    key: WrappedKey,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    format: String,
    version: u32,
    chunk: u64,
    domain: String,
    id: String,
    slots: Vec<KeySlot>,
    nonce: String,
    ancestors: String,
}

/// A device's key, as it is stored.
#[derive(Clone, Debug)]
pub(crate) struct KeyRing {
    /// The number of the object.
    number: u64,
    domain: [u8; 16],
    id: [u8; 16],
    description: Description,
}

/// Returns whether an object holds keys.
pub(super) fn is_key_object(path: &Path) -> bool {
    number_of(path).is_some() && path.parts().rev().nth(1).is_some_and(|folder| folder.as_ref() == FOLDER)
}

fn number_of(path: &Path) -> Option<u64> {
    path.filename()?.strip_suffix(SUFFIX)?.parse().ok()
}

fn path_of(prefix: &Path, number: u64) -> Path {
    prefix.clone().join(FOLDER).join(format!("{number:020}{SUFFIX}"))
}

fn refuse(reason: impl Into<String>) -> OpenErrorKind {
    OpenErrorKind::Remote(reason.into())
}

fn key_failed(error: KeyError) -> OpenErrorKind {
    refuse(format!("its keys: {error}"))
}

fn failed(error: &object_store::Error) -> OpenErrorKind {
    let (kind, reason) = crate::remote::object::describe(error, "");
    OpenErrorKind::Io(io::Error::new(kind, reason))
}

fn random_bytes<const N: usize>() -> Result<[u8; N], OpenErrorKind> {
    random().map_err(OpenErrorKind::Io)
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Returns the numbers of the objects with keys of a device, in order.
async fn numbers(store: &Store, prefix: &Path) -> Result<Vec<u64>, OpenErrorKind> {
    let folder = prefix.clone().join(FOLDER);
    let listed = store.list(Some(&folder)).try_collect::<Vec<_>>().await;
    let listed = match listed {
        Err(object_store::Error::NotFound { .. }) => Vec::new(),
        listed => listed.map_err(|error| failed(&error))?,
    };
    let mut numbers: Vec<u64> = listed.iter().filter_map(|meta| number_of(&meta.location)).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

impl KeyRing {
    /// Makes a new random key that a secret opens. Returns the key, too.
    pub(super) fn make(secret: &Secret, cost: Derivation) -> Result<(Self, SecretKey), OpenErrorKind> {
        let (domain, id) = (random_bytes::<16>()?, random_bytes::<16>()?);
        let (wrapped, key) = WrappedKey::make(&domain, secret, cost).map_err(key_failed)?;
        let description = Description {
            format: FORMAT.into(),
            version: VERSION,
            chunk: super::chunks::CHUNK,
            domain: hex::text(&domain),
            id: hex::text(&id),
            slots: vec![KeySlot { slot: 0, added: now(), key: wrapped }],
            nonce: String::new(),
            ancestors: String::new(),
        };
        let mut ring = Self { number: 0, domain, id, description };
        ring.seal_ancestors(&key, &[])?;
        Ok((ring, key))
    }

    /// Reads the keys of the device at a prefix of a store that does not decrypt. `None` if it has
    /// none.
    pub(crate) async fn read(store: &Store, prefix: &Path) -> Result<Option<Self>, OpenErrorKind> {
        for _ in 0..ATTEMPTS {
            let Some(number) = numbers(store, prefix).await?.pop() else { return Ok(None) };
            let path = path_of(prefix, number);
            let answer = match store.get(&path).await {
                // Another program has just replaced it.
                Err(object_store::Error::NotFound { .. }) => continue,
                answer => answer.map_err(|error| failed(&error))?,
            };
            if answer.meta.size > MOST_BYTES {
                return Err(refuse(format!("{path} is too long for keys")));
            }
            let bytes = answer.bytes().await.map_err(|error| failed(&error))?;
            let parsed = Self::parse(number, &bytes);
            return parsed.map(Some).map_err(|reason| refuse(format!("{path}: {reason}")));
        }
        Err(refuse("its keys change all the time"))
    }

    fn parse(number: u64, bytes: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "the keys are not text")?;
        let (text, sum) = text.split_once('\n').ok_or("the keys are cut")?;
        if sum.trim_end() != hex::text(&Sha256::digest(text.as_bytes())) {
            return Err("the keys do not match their checksum".into());
        }
        let description: Description = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let Description { format, version, chunk, .. } = &description;
        if format != FORMAT || *version != VERSION || *chunk != super::chunks::CHUNK {
            return Err(format!(
                "format {format:?}, version {version}, chunks of {chunk} bytes; this program knows version \
                 {VERSION}"
            ));
        }
        let id = hex::array(&description.id).ok_or("the id is not valid")?;
        let domain = hex::array(&description.domain).ok_or("the domain is not valid")?;
        let slots = description.slots.len();
        if slots == 0 || slots > MOST_SLOTS {
            return Err(format!("{slots} keys, where 1 to {MOST_SLOTS} are possible"));
        }
        Ok(Self { number, domain, id, description })
    }

    /// Writes the keys as the next object, and deletes the earlier ones.
    pub(crate) async fn write(&mut self, store: &Store, prefix: &Path) -> Result<(), OpenErrorKind> {
        let before = numbers(store, prefix).await?;
        let changed = || refuse("another program has changed its keys meanwhile; try again");
        if self.number != 0 && before.last() != Some(&self.number) {
            return Err(changed());
        }
        let number = before.last().map_or(1, |number| number + 1);
        let text = serde_json::to_string(&self.description).expect("it is text and numbers");
        let sum = hex::text(&Sha256::digest(text.as_bytes()));
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        let path = path_of(prefix, number);
        match store.put_opts(&path, format!("{text}\n{sum}\n").into(), options).await {
            Ok(_) => {}
            Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {
                return Err(changed());
            }
            Err(error) => return Err(failed(&error)),
        }
        self.number = number;
        for number in before {
            match store.delete(&path_of(prefix, number)).await {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(failed(&error)),
            }
        }
        Ok(())
    }

    /// Returns a text that changes whenever the keys do.
    pub(crate) fn fingerprint(&self) -> String {
        let text = serde_json::to_string(&self.description).expect("it is text and numbers");
        hex::text(&Sha256::digest(text.as_bytes()))
    }

    /// Opens the key. Returns the slot that the secret opens, too; `None` if it opens none.
    pub(crate) fn open(&self, secret: &Secret) -> Result<Option<(SecretKey, u32)>, OpenErrorKind> {
        for slot in &self.description.slots {
            if let Some(key) = slot.key.open(&self.domain, secret).map_err(key_failed)? {
                return Ok(Some((key, slot.slot)));
            }
        }
        Ok(None)
    }

    fn associated(&self) -> Vec<u8> {
        [&self.domain[..], &self.id[..]].concat()
    }

    fn seal_ancestors(
        &mut self,
        key: &SecretKey,
        ancestors: &[(Path, [u8; 16])],
    ) -> Result<(), OpenErrorKind> {
        let list: Vec<(&str, String)> =
            ancestors.iter().map(|(path, id)| (path.as_ref(), hex::text(id))).collect();
        let text = serde_json::to_string(&list).expect("it is text");
        let nonce = random_bytes::<24>()?;
        let cipher = new_cipher(&subkey(key, "papilio store: ancestors"));
        let payload = Payload { msg: text.as_bytes(), aad: &self.associated() };
        let sealed = cipher.encrypt(&XNonce::from(nonce), payload);
        let sealed = sealed.map_err(|_| refuse("its ancestors cannot be encrypted"))?;
        self.description.nonce = hex::text(&nonce);
        self.description.ancestors = hex::text(&sealed);
        Ok(())
    }

    /// Makes the cipher of the device at a prefix, which opens the objects of its ancestors, too.
    pub(crate) fn sealing(&self, prefix: &Path, key: &SecretKey) -> Result<Sealing, OpenErrorKind> {
        let damaged = || refuse("its keys are damaged: the list of ancestors does not belong to them");
        let nonce = hex::array::<24>(&self.description.nonce).ok_or_else(damaged)?;
        let sealed = hex::bytes(&self.description.ancestors).ok_or_else(damaged)?;
        let cipher = new_cipher(&subkey(key, "papilio store: ancestors"));
        let payload = Payload { msg: &sealed, aad: &self.associated() };
        let text = cipher.decrypt(&XNonce::from(nonce), payload).map_err(|_| damaged())?;
        let list: Vec<(String, String)> = serde_json::from_slice(&text).map_err(|_| damaged())?;
        let mut places = vec![(prefix.clone(), self.id)];
        for (path, id) in list {
            let path = Path::parse(path).map_err(|_| damaged())?;
            places.push((path, hex::array(&id).ok_or_else(damaged)?));
        }
        Ok(Sealing::new(key, places))
    }

    /// Returns the keys of a clone of the device: the same secrets open them.
    pub(crate) fn of_clone(&self, ancestors: &Sealing, key: &SecretKey) -> Result<Self, OpenErrorKind> {
        let mut clone = Self { number: 0, id: random_bytes()?, ..self.clone() };
        clone.description.id = hex::text(&clone.id);
        clone.seal_ancestors(key, ancestors.places())?;
        Ok(clone)
    }

    /// Adds a secret. Returns its slot.
    pub(super) fn add(
        &mut self,
        key: &SecretKey,
        secret: &Secret,
        cost: Derivation,
    ) -> Result<u32, OpenErrorKind> {
        let slots = &self.description.slots;
        if slots.len() >= MOST_SLOTS {
            return Err(refuse(format!("it has {MOST_SLOTS} keys already")));
        }
        let slot = (0..).find(|number| slots.iter().all(|slot| slot.slot != *number)).unwrap_or_default();
        let wrapped = WrappedKey::wrap(key, &self.domain, secret, cost).map_err(key_failed)?;
        self.description.slots.push(KeySlot { slot, added: now(), key: wrapped });
        self.description.slots.sort_by_key(|slot| slot.slot);
        Ok(slot)
    }

    /// Removes a slot.
    pub(super) fn remove(&mut self, number: u32) -> Result<(), OpenErrorKind> {
        let slots = &mut self.description.slots;
        let at = slots.iter().position(|slot| slot.slot == number);
        let at = at.ok_or_else(|| refuse(format!("it has no key {number}")))?;
        slots.remove(at);
        Ok(())
    }

    /// Gives a slot another secret.
    pub(super) fn replace(
        &mut self,
        number: u32,
        key: &SecretKey,
        secret: &Secret,
        cost: Derivation,
    ) -> Result<(), OpenErrorKind> {
        let wrapped = WrappedKey::wrap(key, &self.domain, secret, cost).map_err(key_failed)?;
        let slot = self.description.slots.iter_mut().find(|slot| slot.slot == number);
        let slot = slot.ok_or_else(|| refuse(format!("it has no key {number}")))?;
        *slot = KeySlot { slot: number, added: now(), key: wrapped };
        Ok(())
    }

    /// Returns the slots.
    pub(super) fn slots(&self) -> Vec<StoreKey> {
        let slot = |slot: &KeySlot| StoreKey {
            slot: slot.slot,
            added: UNIX_EPOCH + Duration::from_secs(slot.added.min(1 << 40)),
        };
        self.description.slots.iter().map(slot).collect()
    }
}
