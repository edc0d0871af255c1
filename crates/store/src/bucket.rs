//! `Bucket`: named objects below a prefix of a store, which are written and read as a whole.
//!
//! Errors have the kinds of the host's: `NotFound`, `AlreadyExists`, `FileTooLarge`.

use crate::remote::object::{Location, describe, object_store};
use crate::remote::runtime;
use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutMode, PutOptions, PutPayload};
use papilio_device::{ObjectStore, OpenErrorKind, RemoteOptions};
use std::io;
use std::sync::Arc;

/// Objects below a prefix.
#[derive(Clone, Debug)]
pub struct Bucket {
    /// The URL, for messages.
    name: String,
    scheme: String,
    store: Arc<dyn object_store::ObjectStore>,
    prefix: Path,
}

impl Bucket {
    /// Parses `s3://BUCKET/PREFIX`, or one of `gs` or `az`, and makes the client of the store, with
    /// the environment's credentials.
    ///
    /// # Errors
    /// A URL that names no place in a store; a client that cannot be made.
    pub fn open(url: &str, options: &RemoteOptions) -> Result<Self, OpenErrorKind> {
        let location = Location::parse(url).map_err(OpenErrorKind::Remote)?;
        if !matches!(location.scheme.as_str(), "s3" | "gs" | "az") {
            return Err(OpenErrorKind::Remote("objects are written to s3, gs and az only".to_owned()));
        }
        let prefix = Path::from_url_path(location.path)
            .map_err(|error| OpenErrorKind::Remote(format!("its path is not valid: {error}")))?;
        let store = object_store(&location, options)?;
        Ok(Self { name: url.to_owned(), scheme: location.scheme.clone(), store, prefix })
    }

    /// Returns a place in a store that the caller has made. `name` is for messages.
    pub fn in_store(name: &str, store: Arc<dyn object_store::ObjectStore>, prefix: &str) -> Self {
        Self { name: name.to_owned(), scheme: String::new(), store, prefix: Path::from(prefix) }
    }

    fn path(&self, object: &str) -> Path {
        object.split('/').fold(self.prefix.clone(), |path, part| path.join(part))
    }

    fn failed(&self, error: &object_store::Error) -> io::Error {
        use object_store::Error as E;
        match error {
            E::NotFound { .. } => io::ErrorKind::NotFound.into(),
            E::AlreadyExists { .. } | E::Precondition { .. } => io::ErrorKind::AlreadyExists.into(),
            error => {
                let (kind, reason) = describe(error, &self.scheme);
                io::Error::new(kind, reason)
            }
        }
    }

    fn put_with(&self, object: &str, bytes: &[u8], mode: PutMode) -> io::Result<()> {
        let payload = PutPayload::from(bytes.to_vec());
        let options = PutOptions { mode, ..PutOptions::default() };
        let path = self.path(object);
        let put = self.store.put_opts(&path, payload, options);
        runtime()?.block_on(put).map(drop).map_err(|error| self.failed(&error))
    }
}

impl ObjectStore for Bucket {
    fn place(&self) -> String {
        self.name.clone()
    }

    fn get(&self, object: &str, most: u64) -> io::Result<Vec<u8>> {
        let read = async {
            let answer = self.store.get(&self.path(object)).await.map_err(|error| self.failed(&error))?;
            if answer.meta.size > most {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            let (size, mut bytes, mut pieces) = (answer.meta.size, Vec::new(), answer.into_stream());
            while let Some(piece) = pieces.next().await {
                bytes.extend_from_slice(&piece.map_err(|error| self.failed(&error))?);
                if bytes.len() as u64 > size {
                    return Err(io::Error::other("the server sent more bytes than it announced"));
                }
            }
            Ok(bytes)
        };
        runtime()?.block_on(read)
    }

    fn put(&self, object: &str, bytes: &[u8]) -> io::Result<()> {
        self.put_with(object, bytes, PutMode::Overwrite)
    }

    fn create(&self, object: &str, bytes: &[u8]) -> io::Result<()> {
        self.put_with(object, bytes, PutMode::Create)
    }

    fn list(&self, start: &str) -> io::Result<Vec<(String, u64)>> {
        let folder = start.rsplit_once('/').map_or(self.prefix.clone(), |(folder, _)| self.path(folder));
        let listed = self.store.list(Some(&folder)).try_collect::<Vec<_>>();
        let listed = runtime()?.block_on(listed).map_err(|error| self.failed(&error))?;
        let named = listed.into_iter().filter_map(|meta| {
            let rest = meta.location.as_ref().strip_prefix(self.prefix.as_ref())?;
            let name = rest.trim_start_matches('/').to_owned();
            name.starts_with(start).then_some((name, meta.size))
        });
        let mut named: Vec<_> = named.collect();
        named.sort();
        Ok(named)
    }

    fn delete(&self, object: &str) -> io::Result<()> {
        let path = self.path(object);
        match runtime()?.block_on(self.store.delete(&path)) {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failed(&error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_stored_listed_and_deleted() {
        let store = Arc::new(object_store::memory::InMemory::new());
        let bucket = Bucket::in_store("memory", store, "some/place");
        bucket.put("data/ab/abc", b"one").unwrap();
        bucket.put("data/ab/abc", b"three").unwrap();
        bucket.create("lock", b"mine").unwrap();
        assert_eq!(bucket.create("lock", b"x").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(bucket.get("lock", 4).unwrap(), b"mine");
        assert_eq!(bucket.get("lock", 3).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(bucket.get("data/ab", 4).unwrap_err().kind(), io::ErrorKind::NotFound);
        let all = [("data/ab/abc".to_owned(), 5), ("lock".to_owned(), 4)];
        assert_eq!(bucket.list("").unwrap(), all);
        assert_eq!(bucket.list("data/").unwrap(), all[..1]);
        bucket.delete("lock").unwrap();
        bucket.delete("lock").unwrap();
        assert_eq!(bucket.list("").unwrap(), all[..1]);
        for url in ["https://host/folder", "s3://bucket", "file:///tmp"] {
            assert!(Bucket::open(url, &RemoteOptions::default()).is_err(), "{url}");
        }
    }
}
