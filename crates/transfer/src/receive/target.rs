//! The places that take received subvolumes.
//!
//! Owns [`ReceiveTarget`], which an image and the directories of a host implement, and the types of
//! its methods. [`Interpreter`](super::interpreter) calls it with arguments that it has checked.

use papilio_engine::errors::Result;
use papilio_engine::namespace::create::NewKind;
use papilio_engine::subvolume::Received;
use papilio_format::items::inode::Timespec;
use papilio_format::send_stream::EncodedWrite;
use papilio_format::{Generation, Uuid};

/// The identity by which a stream names a subvolume that the target has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentSubvolume {
    /// The UUID at the sender.
    pub uuid: Uuid,
    /// The sender's transaction that last changed it.
    pub ctransid: Generation,
}

/// The range that a clone command shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloneRange<'a> {
    /// The subvolume of the source, or `None` for the one that is received.
    pub subvolume: Option<SentSubvolume>,
    /// The path of the source in its subvolume.
    pub source: &'a [u8],
    /// Bytes from the start of the source.
    pub from: u64,
    /// Bytes.
    pub length: u64,
    /// Bytes from the start of the file that gets the range.
    pub to: u64,
}

/// An entry that has the name of a subvolume in a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExistingSubvolume {
    /// There is no such entry.
    Missing,
    /// A subvolume that was received completely.
    Complete(SentSubvolume),
    /// A subvolume that is incomplete, with the note of [`ReceiveTarget::suspend`].
    Incomplete(Vec<u8>),
    /// Anything else.
    Other,
}

/// A directory that receives subvolumes, one at a time.
///
/// Subvolumes have one name each. All other paths start at the root of the subvolume that was begun
/// last: names separated by single slashes, none of them `.` or `..`. An empty path means the root
/// itself, and only attributes of it are set. A target must follow no symbolic link, and leave the
/// subvolume on no path.
pub trait ReceiveTarget {
    /// Creates a subvolume: an empty one, or a writable snapshot of `parent`. It must not look
    /// complete.
    ///
    /// # Errors
    /// The name exists; the parent is missing or changed; as creating a directory.
    fn begin(&mut self, name: &[u8], parent: Option<SentSubvolume>) -> Result<()>;

    /// Completes the subvolume: marks it as received, and makes it read-only.
    ///
    /// # Errors
    /// The mark cannot be set.
    fn finish(&mut self, mark: &Received) -> Result<()>;

    /// Returns what has this name.
    ///
    /// # Errors
    /// It cannot be looked up.
    fn existing(&mut self, name: &[u8]) -> Result<ExistingSubvolume>;

    /// Makes everything that was applied durable, and then stores `note` in the subvolume.
    ///
    /// # Errors
    /// The target cannot store it.
    fn suspend(&mut self, note: &[u8]) -> Result<()>;

    /// Goes on with an incomplete subvolume: removes its note.
    ///
    /// # Errors
    /// It cannot be opened or changed.
    fn resume(&mut self, name: &[u8]) -> Result<()>;

    /// Creates an inode with these permission bits, owned by the receiver.
    ///
    /// # Errors
    /// As the call of the operating system; so for all methods below.
    fn create(&mut self, path: &[u8], kind: NewKind<'_>, mode: u32) -> Result<()>;

    /// Renames, and replaces what the new name named.
    fn rename(&mut self, from: &[u8], to: &[u8]) -> Result<()>;

    /// Adds a name to an inode that is not a directory.
    fn link(&mut self, existing: &[u8], path: &[u8]) -> Result<()>;

    /// Removes a name that is not a directory's.
    fn remove_file(&mut self, path: &[u8]) -> Result<()>;

    /// Removes an empty directory.
    fn remove_dir(&mut self, path: &[u8]) -> Result<()>;

    /// Sets an extended attribute.
    fn set_xattr(&mut self, path: &[u8], name: &[u8], value: &[u8]) -> Result<()>;

    /// Removes an extended attribute.
    fn remove_xattr(&mut self, path: &[u8], name: &[u8]) -> Result<()>;

    /// Sets the twelve permission bits.
    fn set_mode(&mut self, path: &[u8], mode: u32) -> Result<()>;

    /// Sets the owner.
    fn set_owner(&mut self, path: &[u8], uid: u32, gid: u32) -> Result<()>;

    /// Sets the times of access and of modification.
    fn set_times(&mut self, path: &[u8], atime: Timespec, mtime: Timespec) -> Result<()>;

    /// Writes to a file.
    fn write(&mut self, path: &[u8], offset: u64, data: &[u8]) -> Result<()>;

    /// Writes a compressed extent as it lies. Returns false if the target cannot; the caller then
    /// writes the bytes. The bytes were decompressed before, so the extent is good.
    fn write_encoded(&mut self, write: &EncodedWrite) -> Result<bool>;

    /// Sets the size of a file.
    fn truncate(&mut self, path: &[u8], size: u64) -> Result<()>;

    /// Preallocates space.
    fn allocate(&mut self, path: &[u8], offset: u64, length: u64, keep_size: bool) -> Result<()>;

    /// Makes a hole.
    fn punch_hole(&mut self, path: &[u8], offset: u64, length: u64) -> Result<()>;

    /// Makes a range read as zeros.
    fn zero_range(&mut self, path: &[u8], offset: u64, length: u64, keep_size: bool) -> Result<()>;

    /// Gives a file a range of another one, or of itself.
    fn clone_range(&mut self, path: &[u8], range: &CloneRange<'_>) -> Result<()>;
}
