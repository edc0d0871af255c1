//! An open repository.
//!
//! Owns [`Repository`] and the description of a repository, the object `papilio-backup.json`. That
//! has two lines: JSON, and the SHA-256 of the first line in hexadecimal.

use crate::backups::Backups;
use crate::error::{BackupError, Result};
use crate::lock::RepositoryLock;
use crate::seal::Sealer;
use crate::shared::Shared;
use crate::store::ObjectStore;
use papilio_keys::hex;
use papilio_keys::random;
use papilio_keys::{Derivation, Secret, WrappedKey};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::io;
use std::sync::Arc;

/// The name of the description.
pub const DESCRIPTION: &str = "papilio-backup.json";
/// The most bytes of it.
const MOST_DESCRIPTION: u64 = 64 << 10;
const FORMAT: &str = "papilio-backup";
const VERSION: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    format: String,
    version: u32,
    id: String,
    encryption: Option<WrappedKey>,
}

/// How a new repository is encrypted.
#[derive(Clone, Debug)]
pub struct Encryption {
    /// The secret that opens it.
    pub secret: Secret,
    /// The cost of deriving a key from the secret.
    pub derivation: Derivation,
}

/// A repository.
#[derive(Clone, Debug)]
pub struct Repository {
    pub(crate) shared: Arc<Shared>,
    id: [u8; 16],
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
        let wrapped =
            encryption.map(|with| WrappedKey::make(&id, &with.secret, with.derivation)).transpose()?;
        let (wrapped, key) = wrapped.map_or((None, None), |(wrapped, key)| (Some(wrapped), Some(key)));
        let description =
            Description { format: FORMAT.into(), version: VERSION, id: hex::text(&id), encryption: wrapped };
        let text = serde_json::to_string(&description).expect("it is text and numbers");
        let sum = hex::text(&Sha256::digest(text.as_bytes()));
        store.create(DESCRIPTION, format!("{text}\n{sum}\n").as_bytes()).map_err(failed)?;
        Ok(Self { shared: Arc::new(Shared { store, sealer: Sealer::new(id, key.as_ref()) }), id })
    }

    /// Opens a repository. `secret` is called if it is encrypted.
    ///
    /// # Errors
    /// [`BackupError::NoRepository`], [`BackupError::WrongKey`]; the description is damaged; errors
    /// of the store and of `secret`.
    pub fn open(store: Arc<dyn ObjectStore>, secret: &mut dyn FnMut() -> Result<Secret>) -> Result<Self> {
        let place = store.place();
        let bytes = store.get(DESCRIPTION, MOST_DESCRIPTION).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                BackupError::NoRepository(place.clone())
            }
            _ => BackupError::Store { object: format!("{place}/{DESCRIPTION}"), source },
        })?;
        let wrong = |fault: &str| BackupError::damaged(DESCRIPTION, fault);
        let text = std::str::from_utf8(&bytes).map_err(|_| wrong("the description is not text"))?;
        let (text, sum) = text.split_once('\n').ok_or_else(|| wrong("the description is cut"))?;
        if sum.trim_end() != hex::text(&Sha256::digest(text.as_bytes())) {
            return Err(wrong("the description does not match its checksum"));
        }
        let description: Description =
            serde_json::from_str(text).map_err(|error| wrong(&error.to_string()))?;
        if description.format != FORMAT || description.version != VERSION {
            let Description { format, version, .. } = &description;
            return Err(wrong(&format!("format {format:?}, version {version}, where {VERSION} is known")));
        }
        let id = hex::array::<16>(&description.id).ok_or_else(|| wrong("the id is not valid"))?;
        let key = match &description.encryption {
            None => None,
            Some(wrapped) => {
                let opened = wrapped.open(&id, &secret()?)?;
                Some(opened.ok_or_else(|| BackupError::WrongKey(place.clone()))?)
            }
        };
        Ok(Self { shared: Arc::new(Shared { store, sealer: Sealer::new(id, key.as_ref()) }), id })
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
