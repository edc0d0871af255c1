//! Items that hold several entries, one behind the other, because their keys collide.
//!
//! Owns [`PackedEntry`] and the iterator [`PackedEntries`], which directory items, extended
//! attributes and inode references share. Nothing is copied: entries borrow from the leaf.
//!
//! **Invariant:** a [`PackedEntries`] exists only over bytes that were parsed to their end once, so
//! iterating cannot fail.

use crate::error::Corrupt;
use std::marker::PhantomData;

/// One entry of an item that may hold several.
pub trait PackedEntry<'a>: Sized {
    /// The name of the structure in messages.
    const WHAT: &'static str;

    /// Decodes the entry at the start of `bytes` and returns what follows it.
    ///
    /// # Errors
    /// The first field that the format forbids, or [`Corrupt::TooShort`].
    fn parse_prefix(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), Corrupt>;
}

/// The entries of one item, in on-disk order; at least one.
pub struct PackedEntries<'a, E> {
    rest: &'a [u8],
    entries: PhantomData<E>,
}

impl<'a, E: PackedEntry<'a>> PackedEntries<'a, E> {
    /// Checks every entry of an item.
    ///
    /// # Errors
    /// The first fault found; an empty item is a fault.
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
        let (entry, rest) = E::parse_prefix(self.rest).expect("all entries were parsed once already");
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
/// [`Corrupt::TooShort`] if `bytes` is shorter.
pub(crate) fn take<'a>(
    what: &'static str,
    bytes: &'a [u8],
    length: usize,
) -> Result<(&'a [u8], &'a [u8]), Corrupt> {
    bytes.split_at_checked(length).ok_or(Corrupt::TooShort { what, need: length, have: bytes.len() })
}
