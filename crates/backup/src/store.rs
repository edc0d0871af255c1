//! The place of a repository.
//!
//! Owns [`ObjectStore`]. Names of objects are paths with slashes, made of letters, digits, dots and
//! hyphens.

use std::fmt;
use std::io;

/// A flat store of named objects, which are written and read as a whole.
pub trait ObjectStore: fmt::Debug + Send + Sync {
    /// Returns the place for messages.
    fn place(&self) -> String;

    /// Reads an object of at most `most` bytes.
    ///
    /// # Errors
    /// `NotFound`; `FileTooLarge` for a longer object; the store's error.
    fn get(&self, name: &str, most: u64) -> io::Result<Vec<u8>>;

    /// Stores an object, durably and as a whole, in the place of one with the name.
    ///
    /// # Errors
    /// The store's error. Then the object is stored as a whole or not at all.
    fn put(&self, name: &str, bytes: &[u8]) -> io::Result<()>;

    /// Stores an object as [`Self::put`] does, if none has the name.
    ///
    /// # Errors
    /// `AlreadyExists`; as there.
    fn create(&self, name: &str, bytes: &[u8]) -> io::Result<()>;

    /// Lists the objects whose names begin with `prefix`, with their lengths in bytes.
    ///
    /// # Errors
    /// The store's error.
    fn list(&self, prefix: &str) -> io::Result<Vec<(String, u64)>>;

    /// Deletes an object. One that is not there is no error.
    ///
    /// # Errors
    /// The store's error.
    fn delete(&self, name: &str) -> io::Result<()>;

    /// Removes what interrupted writes left beside the objects. Nothing else writes meanwhile.
    ///
    /// # Errors
    /// The store's error.
    fn clear_temporary(&self) -> io::Result<()> {
        Ok(())
    }
}
