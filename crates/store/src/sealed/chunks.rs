//! The stored form of an encrypted object, and the cipher.
//!
//! Content is cut into chunks of [`CHUNK`] bytes, a block of a segment with its checksum; the last
//! one may be shorter, and an empty object has one empty chunk. A stored chunk is
//!
//! ```text
//! offset  size  field
//!      0    16  salt: random, the same for all chunks of an object
//!     16  4104  the content, encrypted by XChaCha20-Poly1305
//!   4120    16  tag
//! ```
//!
//! The nonce is the salt and, in 8 bytes little-endian, twice the chunk's number, plus 1 for the
//! last chunk. The device's id and the object's name below its prefix are authenticated, too. So a
//! chunk opens only at its place, in an object of its name and device, and only as the last one if
//! it was written as that. The length of the content follows from that of the object.

use chacha20poly1305::aead::AeadInOut;
use chacha20poly1305::{Tag, XChaCha20Poly1305, XNonce};
use object_store::PutPayload;
use object_store::path::Path;
use papilio_keys::{SecretKey, new_cipher, random, subkey};
use slatedb::bytes::{Buf, Bytes};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::Arc;

/// Bytes of content in a chunk.
pub(super) const CHUNK: u64 = 4104;
const SALT: usize = 16;
const TAG: usize = 16;
/// Bytes by which a stored chunk is longer.
pub(super) const OVERHEAD: u64 = (SALT + TAG) as u64;
/// Bytes of a stored chunk.
pub(super) const STORED: u64 = CHUNK + OVERHEAD;

/// Returns the length of the content of an object of `stored` bytes; `None` if no encrypted object
/// has that length.
pub(super) fn content_length(stored: u64) -> Option<u64> {
    let (whole, rest) = (stored / STORED, stored % STORED);
    match rest {
        0 if whole > 0 => Some(whole * CHUNK),
        OVERHEAD if whole == 0 => Some(0),
        0..=OVERHEAD => None,
        rest => Some(whole * CHUNK + rest - OVERHEAD),
    }
}

/// Returns the length of an object with so much content.
pub(super) fn stored_length(content: u64) -> u64 {
    content + OVERHEAD * content.div_ceil(CHUNK).max(1)
}

/// The bytes that are authenticated with each chunk of an object.
#[derive(Clone, Debug)]
pub(super) struct Name(Arc<[u8]>);

/// The cipher of a device, and the devices whose objects it opens.
pub(crate) struct Sealing {
    cipher: XChaCha20Poly1305,
    cache: XChaCha20Poly1305,
    /// The prefixes of the device and its ancestors, with their ids.
    places: Vec<(Path, [u8; 16])>,
}

impl fmt::Debug for Sealing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealing").field("places", &self.places).finish_non_exhaustive()
    }
}

fn nonce(salt: &[u8; SALT], chunk: u64, is_last: bool) -> XNonce {
    let mut nonce = [0; 24];
    nonce[..SALT].copy_from_slice(salt);
    nonce[SALT..].copy_from_slice(&(chunk << 1 | u64::from(is_last)).to_le_bytes());
    XNonce::from(nonce)
}

impl Sealing {
    /// Makes the cipher with a device's key.
    pub(super) fn new(key: &SecretKey, places: Vec<(Path, [u8; 16])>) -> Self {
        let cipher = |purpose| new_cipher(&subkey(key, purpose));
        Self { cipher: cipher("papilio store: objects"), cache: cipher("papilio store: cache"), places }
    }

    /// Returns the devices whose objects this opens.
    pub(super) fn places(&self) -> &[(Path, [u8; 16])] {
        &self.places
    }

    /// Returns the bytes that are authenticated with an object; `None` if it belongs to no known
    /// device.
    pub(super) fn name(&self, path: &Path) -> Option<Name> {
        let below = |prefix: &Path| path.as_ref().strip_prefix(prefix.as_ref())?.strip_prefix('/');
        let known = self.places.iter().filter_map(|(prefix, id)| Some((below(prefix)?, id)));
        // A device may lie below the prefix of another one.
        let (name, id) = known.min_by_key(|(name, _)| name.len())?;
        Some(Name([&id[..], name.as_bytes()].concat().into()))
    }

    /// Returns the content of a chunk, if the key authenticates it.
    pub(super) fn open(&self, name: &Name, chunk: u64, is_last: bool, stored: &[u8]) -> Option<Vec<u8>> {
        open_with(&self.cipher, &name.0, chunk, is_last, stored)
    }

    /// Returns the stored form of a file of the cache on disk.
    pub(crate) fn seal_cached(&self, name: &str, content: &[u8]) -> io::Result<Vec<u8>> {
        let salt = random()?;
        let mut stored = Vec::with_capacity(content.len() + OVERHEAD as usize);
        stored.extend_from_slice(&salt);
        stored.extend_from_slice(content);
        seal_from(&self.cache, name.as_bytes(), &nonce(&salt, 0, true), &mut stored, SALT)?;
        Ok(stored)
    }

    /// Returns the content of a file of the cache on disk, if the key authenticates it.
    pub(crate) fn open_cached(&self, name: &str, stored: &[u8]) -> Option<Vec<u8>> {
        open_with(&self.cache, name.as_bytes(), 0, true, stored)
    }

    /// Returns by how much a file of the cache on disk is longer.
    pub(crate) const fn cached_overhead() -> usize {
        OVERHEAD as usize
    }
}

fn open_with(
    cipher: &XChaCha20Poly1305,
    associated: &[u8],
    chunk: u64,
    is_last: bool,
    stored: &[u8],
) -> Option<Vec<u8>> {
    let (salt, rest) = stored.split_first_chunk::<SALT>()?;
    let (content, tag) = rest.split_last_chunk::<TAG>()?;
    let mut content = content.to_vec();
    let nonce = nonce(salt, chunk, is_last);
    let opened =
        cipher.decrypt_inout_detached(&nonce, associated, content.as_mut_slice().into(), &Tag::from(*tag));
    opened.ok().map(|()| content)
}

/// Encrypts `stored` from `start` on, in place, and appends the tag.
fn seal_from(
    cipher: &XChaCha20Poly1305,
    associated: &[u8],
    nonce: &XNonce,
    stored: &mut Vec<u8>,
    start: usize,
) -> io::Result<()> {
    let sealed = cipher.encrypt_inout_detached(nonce, associated, (&mut stored[start..]).into());
    let tag = sealed.map_err(|_| io::Error::other("an object is too long to be encrypted"))?;
    stored.extend_from_slice(&tag);
    Ok(())
}

/// Content that waits to be sealed.
#[derive(Debug, Default)]
struct Pending {
    pieces: VecDeque<Bytes>,
    length: u64,
}

impl Pending {
    /// Appends the next `length` bytes to `out`.
    fn take_into(&mut self, out: &mut Vec<u8>, length: u64) {
        let mut left = length as usize;
        while left > 0
            && let Some(piece) = self.pieces.front_mut()
        {
            let part = left.min(piece.len());
            out.extend_from_slice(&piece[..part]);
            piece.advance(part);
            left -= part;
            if piece.is_empty() {
                self.pieces.pop_front();
            }
        }
        self.length -= length;
    }
}

/// Seals one object, from its begin to its end.
#[derive(Debug)]
pub(super) struct ObjectSealer {
    sealing: Arc<Sealing>,
    name: Name,
    salt: [u8; SALT],
    chunk: u64,
    pending: Pending,
}

impl ObjectSealer {
    /// Begins an object.
    ///
    /// # Errors
    /// The host has no random numbers.
    pub(super) fn new(sealing: Arc<Sealing>, name: Name) -> io::Result<Self> {
        Ok(Self { sealing, name, salt: random()?, chunk: 0, pending: Pending::default() })
    }

    /// Adds content.
    pub(super) fn push(&mut self, payload: PutPayload) {
        for piece in payload {
            self.pending.length += piece.len() as u64;
            self.pending.pieces.push_back(piece);
        }
    }

    /// Returns the bytes that wait.
    pub(super) fn pending(&self) -> u64 {
        self.pending.length
    }

    fn seal(&mut self, out: &mut Vec<u8>, is_last: bool) -> io::Result<()> {
        let length = self.pending.length.min(CHUNK);
        out.extend_from_slice(&self.salt);
        let start = out.len();
        self.pending.take_into(out, length);
        let nonce = nonce(&self.salt, self.chunk, is_last);
        self.chunk += 1;
        seal_from(&self.sealing.cipher, &self.name.0, &nonce, out, start)
    }

    /// Returns the stored form of the whole chunks that wait. The last byte keeps waiting, since it
    /// may be the object's.
    ///
    /// # Errors
    /// The cipher fails, which it does not for a chunk of this length.
    pub(super) fn seal_whole(&mut self) -> io::Result<Bytes> {
        let chunks = self.pending.length.saturating_sub(1) / CHUNK;
        let mut out = Vec::with_capacity((chunks * STORED) as usize);
        for _ in 0..chunks {
            self.seal(&mut out, false)?;
        }
        Ok(out.into())
    }

    /// Returns the stored form of all the rest. The object ends there.
    ///
    /// # Errors
    /// As [`Self::seal_whole`].
    pub(super) fn finish(mut self) -> io::Result<Bytes> {
        let mut out = Vec::with_capacity(stored_length(self.pending.length) as usize);
        while self.pending.length > CHUNK {
            self.seal(&mut out, false)?;
        }
        self.seal(&mut out, true)?;
        Ok(out.into())
    }
}
