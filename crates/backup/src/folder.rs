//! A repository in a folder of the host.
//!
//! Owns [`FolderStore`]. An object is a file. It is written under a name in `tmp`, flushed, and
//! moved to its place, whose directory is flushed too.

use papilio::device::ObjectStore;
use papilio_keys::{hex, random};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// The folder of files that are being written. A file in it is no object.
const TEMPORARY: &str = "tmp";

/// Objects that are files in a folder.
#[derive(Clone, Debug)]
pub struct FolderStore {
    root: PathBuf,
}

impl FolderStore {
    /// Names a folder, which need not exist until the first object is stored.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Writes a file that has no place yet, and makes the directory of that place.
    fn write_temporary(&self, place: &Path, bytes: &[u8]) -> io::Result<PathBuf> {
        let temporary = self.root.join(TEMPORARY);
        fs::create_dir_all(&temporary)?;
        if let Some(directory) = place.parent().filter(|directory| !directory.is_dir()) {
            fs::create_dir_all(directory)?;
            // The directory's own name has to last as well.
            directory.parent().map_or(Ok(()), sync_directory)?;
        }
        let path = temporary.join(hex::text(&random::<16>()?));
        let write = || {
            let mut file = File::options().write(true).create_new(true).open(&path)?;
            file.write_all(bytes)?;
            file.sync_all()
        };
        write().inspect_err(|_| {
            // The first error is the cause.
            let _ = fs::remove_file(&path);
        })?;
        Ok(path)
    }

    fn walk(&self, directory: &Path, name: &str, found: &mut Vec<(String, u64)>) -> io::Result<()> {
        let entries = match fs::read_dir(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            let below = format!("{name}{}", entry.file_name().to_string_lossy());
            let metadata = match entry.metadata() {
                // Another process deleted it meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                metadata => metadata?,
            };
            if metadata.is_dir() {
                if below != TEMPORARY {
                    self.walk(&entry.path(), &(below + "/"), found)?;
                }
            } else {
                found.push((below, metadata.len()));
            }
        }
        Ok(())
    }
}

fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

fn sync_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), sync_directory)
}

impl ObjectStore for FolderStore {
    fn place(&self) -> String {
        self.root.display().to_string()
    }

    fn get(&self, name: &str, most: u64) -> io::Result<Vec<u8>> {
        let file = File::open(self.root.join(name))?;
        let length = file.metadata()?.len();
        if length > most {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let mut bytes = Vec::with_capacity(length as usize);
        file.take(most).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn put(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let place = self.root.join(name);
        let temporary = self.write_temporary(&place, bytes)?;
        fs::rename(&temporary, &place).inspect_err(|_| {
            let _ = fs::remove_file(&temporary);
        })?;
        sync_parent(&place)
    }

    fn create(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let place = self.root.join(name);
        let temporary = self.write_temporary(&place, bytes)?;
        // Of two that create, one succeeds.
        let linked = rustix::fs::renameat_with(
            rustix::fs::CWD,
            &temporary,
            rustix::fs::CWD,
            &place,
            rustix::fs::RenameFlags::NOREPLACE,
        );
        if let Err(error) = linked {
            let linked = match error {
                // The file system does not know the flag.
                rustix::io::Errno::INVAL => fs::hard_link(&temporary, &place),
                error => Err(error.into()),
            };
            let _ = fs::remove_file(&temporary);
            linked?;
        }
        sync_parent(&place)
    }

    fn list(&self, prefix: &str) -> io::Result<Vec<(String, u64)>> {
        let start = prefix.rfind('/').map_or("", |at| &prefix[..=at]);
        let mut found = Vec::new();
        self.walk(&self.root.join(start), start, &mut found)?;
        found.retain(|(name, _)| name.starts_with(prefix));
        found.sort();
        Ok(found)
    }

    fn delete(&self, name: &str) -> io::Result<()> {
        let place = self.root.join(name);
        match fs::remove_file(&place) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            removed => removed?,
        }
        sync_parent(&place)
    }

    fn clear_temporary(&self) -> io::Result<()> {
        let entries = match fs::read_dir(self.root.join(TEMPORARY)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        entries.into_iter().try_for_each(|entry| match fs::remove_file(entry?.path()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_stored_listed_and_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let store = FolderStore::new(folder.path().join("new"));
        assert_eq!(store.list("").unwrap(), []);
        store.put("data/ab/abc", b"one").unwrap();
        store.put("data/ab/abc", b"three").unwrap();
        store.create("lock", b"mine").unwrap();
        let twice = store.create("lock", b"theirs").unwrap_err();
        assert_eq!(twice.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(store.get("lock", 4).unwrap(), b"mine");
        assert_eq!(store.get("data/ab/abc", 4).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(store.get("data/ab/abd", 4).unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::write(folder.path().join("new/tmp/left"), b"rest").unwrap();
        let all = vec![("data/ab/abc".to_owned(), 5), ("lock".to_owned(), 4)];
        assert_eq!(store.list("").unwrap(), all);
        assert_eq!(store.list("data/").unwrap(), all[..1]);
        store.clear_temporary().unwrap();
        assert!(!folder.path().join("new/tmp/left").exists());
        store.delete("lock").unwrap();
        store.delete("lock").unwrap();
        assert_eq!(store.list("").unwrap(), all[..1]);
    }
}
