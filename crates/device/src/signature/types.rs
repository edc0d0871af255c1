//! `Signature`: a format that a device has the header of.

/// The use that the owner of a signature makes of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SignatureUse {
    /// It is a Btrfs file system.
    Btrfs,
    /// It is another file system.
    FileSystem,
    /// It is a part of something else: an array, a volume group, an encrypted volume, swap.
    Member,
    /// It has partitions.
    Partitions,
}

/// A signature on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature {
    /// The format, with its article.
    pub name: &'static str,
    /// The way to its content, in the imperative; empty if nothing is known.
    pub advice: &'static str,
    /// The use of the device.
    pub usage: SignatureUse,
    /// The offset of the header in bytes.
    pub offset: u64,
    /// Whether the rest of the header agrees.
    pub is_good: bool,
    /// Whether the header is at the end of the device.
    pub is_at_end: bool,
}
