//! `Arguments`: the arguments of a call, decoded piece by piece.
//!
//! **Invariant**: nothing is allocated for a length that the message does not have.
//!
//! Source: RFC 4506 (XDR), RFC 1813.

use papilio::{SetAttributes, SetTime, Timespec};

/// The arguments do not have the form that the protocol gives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Garbage;

/// The bytes of arguments that are not decoded yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arguments<'a>(&'a [u8]);

/// Attributes that a client sets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ClientSet {
    pub(crate) attributes: SetAttributes,
    pub(crate) size: Option<u64>,
}

impl<'a> Arguments<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes that are left.
    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }

    pub(crate) fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Garbage> {
        let (first, rest) = self.0.split_first_chunk().ok_or(Garbage)?;
        self.0 = rest;
        Ok(*first)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Garbage> {
        self.fixed().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Garbage> {
        self.fixed().map(u64::from_be_bytes)
    }

    /// Decodes bytes with a length before them, which is `most` at most.
    pub(crate) fn opaque(&mut self, most: usize) -> Result<&'a [u8], Garbage> {
        let length = self.u32()? as usize;
        if length > most || length > self.0.len() {
            return Err(Garbage);
        }
        let (bytes, rest) = self.0.split_at(length);
        self.0 = rest.get(length.wrapping_neg() & 3..).ok_or(Garbage)?;
        Ok(bytes)
    }

    fn option<T>(
        &mut self,
        decode: impl FnOnce(&mut Self) -> Result<T, Garbage>,
    ) -> Result<Option<T>, Garbage> {
        match self.u32()? {
            0 => Ok(None),
            1 => decode(self).map(Some),
            _ => Err(Garbage),
        }
    }

    pub(crate) fn time(&mut self) -> Result<Timespec, Garbage> {
        Ok(Timespec { seconds: self.u32()?.into(), nanoseconds: self.u32()? })
    }

    /// Decodes the time of the last change that the client believes in (`sattrguard3`).
    pub(crate) fn guard(&mut self) -> Result<Option<Timespec>, Garbage> {
        self.option(Self::time)
    }

    fn set_time(&mut self) -> Result<Option<SetTime>, Garbage> {
        match self.u32()? {
            0 => Ok(None),
            1 => Ok(Some(SetTime::Now)),
            2 => Ok(Some(SetTime::At(self.time()?))),
            _ => Err(Garbage),
        }
    }

    /// Decodes attributes that the client sets (`sattr3`).
    pub(crate) fn set(&mut self) -> Result<ClientSet, Garbage> {
        let mode = self.option(Self::u32)?.map(|mode| mode & 0o7777);
        let (uid, gid) = (self.option(Self::u32)?, self.option(Self::u32)?);
        let size = self.option(Self::u64)?;
        let (atime, mtime) = (self.set_time()?, self.set_time()?);
        Ok(ClientSet { attributes: SetAttributes { mode, uid, gid, atime, mtime, ctime: None }, size })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_beyond_the_message_are_refused() {
        assert_eq!(Arguments::new(&[0, 0, 0, 3, 1, 2, 3, 0]).opaque(3), Ok(&[1, 2, 3][..]));
        for bad in [&[0, 0, 0, 3, 1, 2, 3][..], &[0xff; 8], &[0, 0, 0, 4, 1, 2, 3, 4], &[0, 0]] {
            assert_eq!(Arguments::new(bad).opaque(3), Err(Garbage));
        }
    }
}
