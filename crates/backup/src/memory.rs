//! A repository in memory, for tests.

use papilio::device::ObjectStore;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Objects in memory.
#[derive(Debug, Default)]
pub struct MemoryStore {
    objects: Mutex<BTreeMap<String, Vec<u8>>>,
}

impl MemoryStore {
    /// Makes an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    fn objects(&self) -> MutexGuard<'_, BTreeMap<String, Vec<u8>>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clone for MemoryStore {
    fn clone(&self) -> Self {
        Self { objects: Mutex::new(self.objects().clone()) }
    }
}

impl ObjectStore for MemoryStore {
    fn place(&self) -> String {
        "memory".into()
    }

    fn get(&self, name: &str, most: u64) -> io::Result<Vec<u8>> {
        match self.objects().get(name) {
            None => Err(io::ErrorKind::NotFound.into()),
            Some(bytes) if bytes.len() as u64 > most => Err(io::ErrorKind::FileTooLarge.into()),
            Some(bytes) => Ok(bytes.clone()),
        }
    }

    fn put(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.objects().insert(name.to_owned(), bytes.to_vec());
        Ok(())
    }

    fn create(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let mut objects = self.objects();
        if objects.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        objects.insert(name.to_owned(), bytes.to_vec());
        Ok(())
    }

    fn list(&self, prefix: &str) -> io::Result<Vec<(String, u64)>> {
        let objects = self.objects();
        let found = objects.iter().filter(|(name, _)| name.starts_with(prefix));
        Ok(found.map(|(name, bytes)| (name.clone(), bytes.len() as u64)).collect())
    }

    fn delete(&self, name: &str) -> io::Result<()> {
        self.objects().remove(name);
        Ok(())
    }
}
