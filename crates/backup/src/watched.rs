//! Requests to a store, which a caller watches and may end.
//!
//! Owns [`StoreWatch`] and [`WatchedStore`].

use papilio::device::ObjectStore;
use std::fmt;
use std::io;
use std::sync::Arc;

/// Watches the requests to a store.
pub trait StoreWatch: fmt::Debug + Send + Sync {
    /// A request begins. The writer of a backup calls from several threads.
    ///
    /// # Errors
    /// The request is not sent, and fails with the error.
    fn request(&self) -> io::Result<()>;

    /// A request has moved this many bytes.
    fn moved(&self, bytes: u64);
}

/// A store whose requests are watched.
#[derive(Debug)]
pub(crate) struct WatchedStore {
    inner: Arc<dyn ObjectStore>,
    watch: Arc<dyn StoreWatch>,
}

impl WatchedStore {
    pub(crate) fn new(inner: Arc<dyn ObjectStore>, watch: Arc<dyn StoreWatch>) -> Self {
        Self { inner, watch }
    }

    fn ask<R>(
        &self,
        request: impl FnOnce(&dyn ObjectStore) -> io::Result<R>,
        bytes: impl FnOnce(&R) -> usize,
    ) -> io::Result<R> {
        self.watch.request()?;
        let answer = request(&*self.inner)?;
        self.watch.moved(bytes(&answer) as u64);
        Ok(answer)
    }
}

impl ObjectStore for WatchedStore {
    fn place(&self) -> String {
        self.inner.place()
    }

    fn get(&self, name: &str, most: u64) -> io::Result<Vec<u8>> {
        self.ask(|inner| inner.get(name, most), Vec::len)
    }

    fn put(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.ask(|inner| inner.put(name, bytes), |()| bytes.len())
    }

    fn create(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.ask(|inner| inner.create(name, bytes), |()| bytes.len())
    }

    fn list(&self, prefix: &str) -> io::Result<Vec<(String, u64)>> {
        self.ask(|inner| inner.list(prefix), |_| 0)
    }

    fn delete(&self, name: &str) -> io::Result<()> {
        self.ask(|inner| inner.delete(name), |()| 0)
    }

    fn clear_temporary(&self) -> io::Result<()> {
        self.ask(|inner| inner.clear_temporary(), |()| 0)
    }
}
