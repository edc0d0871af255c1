//! An open repository.
//!
//! Owns [`Repository`].

use crate::backups::Backups;
use crate::description::{DESCRIPTION, Description};
use crate::error::{BackupError, Result};
use crate::key_entry::KeyEntry;
use crate::lock::RepositoryLock;
use crate::seal::Sealer;
use crate::shared::Shared;
use crate::watched::{StoreWatch, WatchedStore};
use papilio::device::ObjectStore;
use papilio_keys::{Derivation, Secret, SecretKey, WrappedKey, hex, new_key, random};
use std::fmt;
use std::sync::Arc;

/// How a new repository is encrypted.
#[derive(Clone, Debug)]
pub struct Encryption {
    /// The secret that opens it.
    pub secret: Secret,
    /// The cost of deriving a key from the secret.
    pub derivation: Derivation,
}

/// The key of a repository, and the one of its wrappings that a secret opened.
#[derive(Clone)]
pub(crate) struct OpenedKey {
    /// The id of the wrapped key.
    pub(crate) id: String,
    pub(crate) key: SecretKey,
}

impl fmt::Debug for OpenedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenedKey").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A repository.
#[derive(Clone, Debug)]
pub struct Repository {
    pub(crate) shared: Arc<Shared>,
    pub(crate) id: [u8; 16],
    /// `None` for a plain repository.
    pub(crate) opened: Option<OpenedKey>,
}

impl Repository {
    /// Makes a repository in an empty place.
    ///
    /// # Errors
    /// [`BackupError::NotEmpty`]; the store's error.
    pub fn init(store: Arc<dyn ObjectStore>, encryption: Option<&Encryption>) -> Result<Self> {
        let place = store.place();
        let failed = |source| BackupError::Store { object: place.clone(), source };
        let listed = store.list("").map_err(failed)?;
        if let Some((name, _)) = listed.iter().find(|(name, _)| name == DESCRIPTION).or(listed.first()) {
            let found = match &name[..] {
                DESCRIPTION => "a repository is there already".to_owned(),
                name => format!("{name} is there"),
            };
            return Err(BackupError::NotEmpty { place, found });
        }
        let id = random::<16>().map_err(failed)?;
        let mut description = Description { id, keys: Vec::new() };
        let opened = match encryption {
            None => None,
            Some(with) => {
                let key = new_key()?;
                let wrapped = WrappedKey::wrap(&key, &id, &with.secret, with.derivation)?;
                let opened = OpenedKey { id: wrapped.id().to_owned(), key };
                description.keys.push(KeyEntry { label: None, key: wrapped });
                Some(opened)
            }
        };
        store.create(DESCRIPTION, &description.to_bytes()).map_err(failed)?;
        Ok(Self::with(store, id, opened))
    }

    fn with(store: Arc<dyn ObjectStore>, id: [u8; 16], opened: Option<OpenedKey>) -> Self {
        let sealer = Sealer::new(id, opened.as_ref().map(|opened| &opened.key));
        Self { shared: Arc::new(Shared { store, sealer }), id, opened }
    }

    /// Opens a repository. `secret` is called if it is encrypted, and tried on each of its keys.
    ///
    /// # Errors
    /// [`BackupError::NoRepository`], [`BackupError::WrongKey`]; the description is damaged; errors
    /// of the store and of `secret`.
    pub fn open(store: Arc<dyn ObjectStore>, secret: &mut dyn FnMut() -> Result<Secret>) -> Result<Self> {
        let Description { id, keys } = Description::load(&*store)?;
        if keys.is_empty() {
            return Ok(Self::with(store, id, None));
        }
        let secret = secret()?;
        for entry in &keys {
            if let Some(key) = entry.key.open(&id, &secret)? {
                let opened = OpenedKey { id: entry.key.id().to_owned(), key };
                return Ok(Self::with(store, id, Some(opened)));
            }
        }
        Err(BackupError::WrongKey(store.place()))
    }

    /// Returns the repository with a function that is called with every request to its store, and
    /// may end the work.
    pub fn watched(&self, watch: Arc<dyn StoreWatch>) -> Self {
        let store = Arc::new(WatchedStore::new(Arc::clone(&self.shared.store), watch));
        Self::with(store, self.id, self.opened.clone())
    }

    /// Returns the repository's id.
    pub fn id(&self) -> String {
        hex::text(&self.id)
    }

    /// Returns whether the objects are encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.shared.sealer.is_encrypted()
    }

    /// Returns the place of the repository.
    pub fn place(&self) -> String {
        self.shared.store.place()
    }

    /// Reads all manifests.
    ///
    /// # Errors
    /// The store's error. Manifests that are damaged are in the result.
    pub fn backups(&self) -> Result<Backups> {
        Backups::load(&self.shared)
    }

    /// Takes the lock for a job. With `breaks`, a lock that another process left is removed first.
    ///
    /// # Errors
    /// [`BackupError::Locked`]; the store's error.
    pub fn lock(&self, job: &str, breaks: bool) -> Result<RepositoryLock> {
        RepositoryLock::take(&self.shared, job, breaks)
    }
}
