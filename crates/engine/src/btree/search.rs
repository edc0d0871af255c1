//! Searches in a tree: single items, and iteration over a range of keys.
//!
//! Owns [`Range`] and the searching half of [`Tree`]. [`Cursor`] does the walking.

use crate::btree::cursor::Cursor;
use crate::btree::tree::{Item, Tree};
use crate::errors::Result;
use papilio_format::Key;
use std::ops::RangeInclusive;

impl Tree {
    /// Returns a cursor on the first item whose key is `key` or larger.
    ///
    /// # Errors
    /// Fails if a block on the path cannot be read.
    pub(crate) fn seek(&self, key: &Key) -> Result<Cursor<'_>> {
        let mut cursor = Cursor::new(self);
        cursor.seek(key)?;
        Ok(cursor)
    }

    /// Returns the item with exactly this key.
    ///
    /// # Errors
    /// Fails if a block on the path cannot be read.
    pub fn get(&self, key: &Key) -> Result<Option<Item>> {
        let cursor = self.seek(key)?;
        Ok(cursor.item().filter(|item| item.key == *key))
    }

    /// Returns the last item whose key is `key` or smaller.
    ///
    /// # Errors
    /// Fails if a block on the path cannot be read.
    pub fn last_up_to(&self, key: &Key) -> Result<Option<Item>> {
        let mut cursor = self.seek(key)?;
        if cursor.key() == Some(*key) {
            return Ok(cursor.item());
        }
        cursor.step_back()?;
        Ok(cursor.item())
    }

    /// Iterates over the items with keys in `range`, in ascending order.
    pub fn range(&self, range: RangeInclusive<Key>) -> Range<'_> {
        Range { cursor: Cursor::new(self), next: Some(*range.start()), last: *range.end() }
    }

    /// Iterates over all items.
    pub fn items(&self) -> Range<'_> {
        self.range(Key::MIN..=Key::MAX)
    }
}

/// An iterator over items; it ends after the first error.
pub struct Range<'a> {
    cursor: Cursor<'a>,
    /// Key to seek to before the first item.
    next: Option<Key>,
    last: Key,
}

impl Iterator for Range<'_> {
    type Item = Result<Item>;

    fn next(&mut self) -> Option<Result<Item>> {
        let moved = match self.next.take() {
            Some(key) => self.cursor.seek(&key),
            None => self.cursor.step(),
        };
        if let Err(error) = moved {
            self.cursor.clear();
            return Some(Err(error));
        }
        self.cursor.item().filter(|item| item.key <= self.last).map(Ok)
    }
}
