//! The keys of an encrypted repository: several secrets may open it, and each can be changed.
//!
//! Owns [`KeyInfo`], [`list_keys`], and the functions of [`Repository`] for keys. Every key wraps
//! the same random key of the repository, so objects stay as they are.
//!
//! **Invariants**
//! - A change replaces the description as a whole, while the lock is held.
//! - The last key is never removed.

use crate::description::{DESCRIPTION, Description, MOST_KEYS};
use crate::error::{BackupError, Result};
use crate::key_entry::KeyEntry;
use crate::lock::RepositoryLock;
use crate::repository::{Encryption, OpenedKey, Repository};
use papilio::device::ObjectStore;
use papilio_keys::{Derivation, WrappedKey};

/// The most bytes of a label.
const MOST_LABEL: usize = 200;

/// A key of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyInfo {
    /// The id: eight hexadecimal digits.
    pub id: String,
    /// The name that it was given.
    pub label: Option<String>,
    /// The cost of deriving it from its secret.
    pub derivation: Derivation,
    /// Whether the repository was opened with it.
    pub is_current: bool,
}

impl KeyInfo {
    fn new(entry: &KeyEntry, current: Option<&OpenedKey>) -> Self {
        let id = entry.key.id().to_owned();
        let is_current = current.is_some_and(|opened| opened.id == id);
        Self { id, label: entry.label.clone(), derivation: entry.key.cost(), is_current }
    }
}

/// Returns the keys of the repository in a store, in the order in which they were added; none for a
/// plain one. That needs no secret.
///
/// # Errors
/// As [`Repository::open`].
pub fn list_keys(store: &dyn ObjectStore) -> Result<Vec<KeyInfo>> {
    Ok(Description::load(store)?.keys.iter().map(|entry| KeyInfo::new(entry, None)).collect())
}

impl Repository {
    /// Returns the keys, in the order in which they were added; none for a plain repository.
    ///
    /// # Errors
    /// The description cannot be read.
    pub fn keys(&self) -> Result<Vec<KeyInfo>> {
        let description = self.description()?;
        Ok(description.keys.iter().map(|entry| self.info(entry)).collect())
    }

    fn info(&self, entry: &KeyEntry) -> KeyInfo {
        KeyInfo::new(entry, self.opened.as_ref())
    }

    fn description(&self) -> Result<Description> {
        let description = Description::load(&*self.shared.store)?;
        if description.id != self.id {
            let fault = "it describes another repository than the one that was opened";
            return Err(BackupError::damaged(DESCRIPTION, fault));
        }
        Ok(description)
    }

    fn opened(&self) -> Result<&OpenedKey> {
        let plain = || BackupError::Invalid(format!("{}: the repository is not encrypted", self.place()));
        self.opened.as_ref().ok_or_else(plain)
    }

    fn store(&self, lock: &RepositoryLock, description: &Description) -> Result<()> {
        lock.check()?;
        self.shared.put(DESCRIPTION, &description.to_bytes())
    }

    /// Returns a key with another id than those of the description.
    fn wrap(&self, description: &Description, with: &Encryption) -> Result<WrappedKey> {
        loop {
            let key = WrappedKey::wrap(&self.opened()?.key, &self.id, &with.secret, with.derivation)?;
            if description.keys.iter().all(|known| known.key.id() != key.id()) {
                return Ok(key);
            }
        }
    }

    /// Lets another secret open the repository.
    ///
    /// # Errors
    /// The repository is not encrypted, or has too many keys; the label is in use; the lock was
    /// broken; the store's error. Then the keys are as before.
    pub fn add_key(
        &self,
        lock: &RepositoryLock,
        with: &Encryption,
        label: Option<String>,
    ) -> Result<KeyInfo> {
        let mut description = self.description()?;
        if description.keys.len() >= MOST_KEYS {
            let text = format!("{}: a repository has at most {MOST_KEYS} keys", self.place());
            return Err(BackupError::Invalid(text));
        }
        if let Some(label) = &label {
            let is_used = description.keys.iter().any(|known| known.label.as_ref() == Some(label));
            if is_used || label.is_empty() || label.len() > MOST_LABEL {
                let fault = if is_used { "another key has it" } else { "it has 1 to 200 bytes" };
                return Err(BackupError::Invalid(format!("label {label:?}: {fault}")));
            }
        }
        let entry = KeyEntry { label, key: self.wrap(&description, with)? };
        let info = self.info(&entry);
        description.keys.push(entry);
        self.store(lock, &description)?;
        Ok(info)
    }

    /// Replaces the secret of the key with which the repository was opened. The old secret opens it
    /// no more, but it still opens a copy of the old description.
    ///
    /// # Errors
    /// As [`Self::add_key`]; the key was removed meanwhile.
    pub fn change_key(&mut self, lock: &RepositoryLock, with: &Encryption) -> Result<KeyInfo> {
        let mut description = self.description()?;
        let old = self.opened()?.id.clone();
        let new = self.wrap(&description, with)?;
        let found = description.keys.iter_mut().find(|entry| entry.key.id() == old);
        let entry = found.ok_or(BackupError::NoKey(old))?;
        entry.key = new;
        let entry = entry.clone();
        self.store(lock, &description)?;
        if let Some(opened) = &mut self.opened {
            opened.id = entry.key.id().to_owned();
        }
        Ok(self.info(&entry))
    }

    /// Removes a key, by its id or its label.
    ///
    /// # Errors
    /// [`BackupError::NoKey`]; it is the last key, without which nothing opens the repository; as
    /// [`Self::add_key`].
    pub fn remove_key(&self, lock: &RepositoryLock, name: &str) -> Result<KeyInfo> {
        let mut description = self.description()?;
        let is_named = |entry: &KeyEntry| entry.key.id() == name || entry.label.as_deref() == Some(name);
        let at = description.keys.iter().position(is_named);
        let at = at.ok_or_else(|| BackupError::NoKey(name.to_owned()))?;
        if description.keys.len() == 1 {
            let text = format!("{name}: it is the only key, and the backups are lost without one");
            return Err(BackupError::Invalid(text));
        }
        let removed = description.keys.remove(at);
        self.store(lock, &description)?;
        Ok(self.info(&removed))
    }
}
