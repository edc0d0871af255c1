//! `Secret`: random bytes from which an export derives the key of its handles.
//!
//! **Invariant**: a file that keeps a secret has all of its bytes from the moment it has its name.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const SIZE: usize = 32;
const RANDOM: &str = "/dev/urandom";
/// Permissions of everyone but the owner.
const OTHERS: u32 = 0o077;

/// Random bytes that clients do not know.
#[derive(Clone)]
pub struct Secret([u8; SIZE]);

/// The secret in a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The file cannot be read or made.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The file has other content.
    #[error("{0}: a secret has {SIZE} bytes, and this file has another size")]
    Size(PathBuf),
    /// Other users may read the file.
    #[error("{0}: other users have permissions on this file; it needs mode 600")]
    Open(PathBuf),
}

impl Secret {
    /// Returns a new secret. Handles that depend on it end with the server.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn random() -> io::Result<Self> {
        Ok(Self(random()?))
    }

    /// Returns the secret that a file keeps. Makes the file if there is none, for its owner only.
    ///
    /// # Errors
    /// [`SecretError`].
    pub fn kept_in(path: &Path) -> Result<Self, SecretError> {
        let failed = |source| SecretError::Io { path: path.to_owned(), source };
        match File::open(path) {
            Ok(file) => Self::read(file, path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make(path).map_err(failed)?;
                // Another server may have been first.
                Self::read(File::open(path).map_err(failed)?, path)
            }
            Err(error) => Err(failed(error)),
        }
    }

    fn read(file: File, path: &Path) -> Result<Self, SecretError> {
        let failed = |source| SecretError::Io { path: path.to_owned(), source };
        if file.metadata().map_err(failed)?.mode() & OTHERS != 0 {
            return Err(SecretError::Open(path.to_owned()));
        }
        let mut bytes = Vec::new();
        file.take(SIZE as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
        let bytes = bytes.try_into().map_err(|_| SecretError::Size(path.to_owned()))?;
        Ok(Self(bytes))
    }

    pub(crate) fn as_bytes(&self) -> &[u8; SIZE] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Returns random bytes of the system.
///
/// # Errors
/// The system has none.
pub(crate) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    File::open(RANDOM)?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Makes a file with a new secret, unless there is one meanwhile.
fn make(path: &Path) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    let unfinished = PathBuf::from(name);
    let written = || -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished)?;
        file.write_all(&random::<SIZE>()?)?;
        file.sync_all()?;
        match fs::hard_link(&unfinished, path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    };
    let written = written();
    // The other name is of no use, also after a failure.
    let removed = fs::remove_file(&unfinished);
    written.and(removed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_secret_is_made_once_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("below/key");
        let first = Secret::kept_in(&path).unwrap();
        assert_eq!(first.0, Secret::kept_in(&path).unwrap().0);
        assert_ne!(first.0, Secret::random().unwrap().0);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path().join("below")).unwrap().count(), 1);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(Secret::kept_in(&path), Err(SecretError::Open(_))));
        for wrong in [&b"short"[..], &[1; 33]] {
            let path = folder.path().join(format!("of {} bytes", wrong.len()));
            fs::write(&path, wrong).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            assert!(matches!(Secret::kept_in(&path), Err(SecretError::Size(_))));
        }
        assert!(matches!(Secret::kept_in(&path.join("none")), Err(SecretError::Io { .. })));
    }
}
