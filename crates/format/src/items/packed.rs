//! Items that hold several entries, one behind the other, because their keys collide.
//!
//! Owns [`PackedEntry`] and the iterator [`PackedEntries`], which directory items, extended
//! attributes and inode references share. Nothing is copied: entries borrow from the leaf.
//!
//! Invariant: a [`PackedEntries`] exists only over bytes that were walked to their end once, so that
//! iterating cannot fail.

use crate::error::Corrupt;
use std::marker::PhantomData;

/// One of the entries that an item may hold several of.
pub trait PackedEntry<'a>: Sized {
    /// What messages call it.
    const WHAT: &'static str;

    /// Decodes the entry at the start of `bytes` and returns what follows it.
    ///
    /// # Errors
    /// The first field that the format forbids, or [`Corrupt::TooShort`].
    fn parse_prefix(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), Corrupt>;
}

/// The entries of one item, in the order in which they lie there. At least one.
pub struct PackedEntries<'a, E> {
    rest: &'a [u8],
    entries: PhantomData<E>,
}

impl<'a, E: PackedEntry<'a>> PackedEntries<'a, E> {
    /// Checks every entry of an item.
    ///
    /// # Errors
    /// The first fault, an empty item among them.
    pub fn parse(data: &'a [u8]) -> Result<Self, Corrupt> {
        let mut rest = E::parse_prefix(data)?.1;
        while !rest.is_empty() {
            rest = E::parse_prefix(rest)?.1;
        }
        Ok(Self { rest: data, entries: PhantomData })
    }
}

impl<E> Clone for PackedEntries<'_, E> {
    fn clone(&self) -> Self {
        Self { rest: self.rest, entries: PhantomData }
    }
}

impl<'a, E: PackedEntry<'a>> Iterator for PackedEntries<'a, E> {
    type Item = E;

    fn next(&mut self) -> Option<E> {
        if self.rest.is_empty() {
            return None;
        }
        let (entry, rest) = E::parse_prefix(self.rest).expect("all entries were walked before");
        self.rest = rest;
        Some(entry)
    }
}

impl<'a, E: PackedEntry<'a>> std::iter::FusedIterator for PackedEntries<'a, E> {}

impl<'a, E: PackedEntry<'a> + std::fmt::Debug> std::fmt::Debug for PackedEntries<'a, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.clone()).finish()
    }
}

/// Splits `length` bytes off `bytes`.
///
/// # Errors
/// [`Corrupt::TooShort`] with what the whole structure needs.
pub(crate) fn take<'a>(
    what: &'static str,
    bytes: &'a [u8],
    length: usize,
) -> Result<(&'a [u8], &'a [u8]), Corrupt> {
    bytes.split_at_checked(length).ok_or(Corrupt::TooShort { what, need: length, have: bytes.len() })
}
