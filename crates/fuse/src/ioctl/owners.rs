//! From addresses to files, and from inodes to paths.
//!
//! The answers go to the caller's memory, into a `struct btrfs_data_container`: four counters of 32
//! bits, then the values.
//!
//! Kernel counterparts: `btrfs_ioctl_logical_to_ino`, `btrfs_ioctl_ino_to_path`
//! (`fs/btrfs/ioctl.c`), `inode_to_path` (`fs/btrfs/backref.c`).

use super::call::{IoctlCall, IoctlReply, Result, done};
use super::caller_memory::BlockedCaller;
use super::files::path_of;
use papilio::AddressUse;
use papilio::format::{InodeNumber, LogicalAddress, objectid};
use papilio_ioctl::Errno;
use papilio_ioctl::layout::{InoPaths, LogicalIno};

/// Size of a container's counters in bytes.
const COUNTERS: usize = 16;
/// `BTRFS_LOGICAL_INO_ARGS_IGNORE_OFFSET`.
const IGNORE_OFFSET: u64 = 1;

/// A container that is filled within the caller's limit.
struct Container {
    bytes: Vec<u8>,
    /// Size in bytes, at least that of the counters.
    size: usize,
    /// Bytes that the caller takes.
    taken: usize,
    left: u32,
    missing: u32,
    count: u32,
    missed: u32,
}

impl Container {
    /// Creates an empty container of at most `limit` bytes.
    fn new(asked: u64, limit: u64) -> Self {
        let taken = asked.min(limit) as usize;
        let missing = COUNTERS.saturating_sub(taken) as u32;
        let size = taken.max(COUNTERS);
        let left = (size - COUNTERS) as u32;
        Self { bytes: vec![0; COUNTERS], size, taken, left, missing, count: 0, missed: 0 }
    }

    /// Adds several values, or counts them as missing.
    fn put(&mut self, values: &[u64]) {
        let (length, count) = (size_of_val(values) as u32, values.len() as u32);
        if self.left < length {
            self.missing = self.missing.saturating_add(length - self.left);
            self.left = 0;
            self.missed += count;
            return;
        }
        self.left -= length;
        self.count += count;
        values.iter().for_each(|value| self.bytes.extend_from_slice(&value.to_ne_bytes()));
    }

    /// Returns the container with `texts` at its end.
    fn finish(mut self, texts: &[u8]) -> Vec<u8> {
        for (at, counter) in [self.left, self.missing, self.count, self.missed].into_iter().enumerate() {
            self.bytes[4 * at..4 * at + 4].copy_from_slice(&counter.to_ne_bytes());
        }
        self.bytes.resize(self.size - texts.len(), 0);
        self.bytes.extend_from_slice(texts);
        self.bytes.truncate(self.taken);
        self.bytes
    }
}

/// `second` for the version of the ioctl that knows flags.
pub(super) fn logical_ino(call: &IoctlCall<'_>, second: bool) -> Result<IoctlReply> {
    call.must_be_administrator()?;
    let arguments = call.argument::<LogicalIno>()?;
    let (limit, whole) = if second {
        if arguments.reserved != [0; 3] || arguments.flags & !IGNORE_OFFSET != 0 {
            return Err(Errno(libc::EINVAL));
        }
        (16 << 20, arguments.flags & IGNORE_OFFSET != 0)
    } else {
        (64 << 10, false)
    };
    let caller = BlockedCaller::of(call)?;
    let owners = match call.fs.extent_owners(LogicalAddress(arguments.logical), whole)? {
        AddressUse::Free => return Err(Errno(libc::ENOENT)),
        AddressUse::TreeBlock => return Err(Errno(libc::EINVAL)),
        AddressUse::Data(owners) => owners,
    };
    let mut container = Container::new(arguments.size, limit);
    for owner in owners {
        container.put(&[owner.inode.0, owner.offset, owner.tree.0]);
    }
    caller.memory()?.write(arguments.inodes, &container.finish(&[]))?;
    done(Vec::new())
}

/// The values are offsets of paths, counted from the first value; the paths follow the values.
pub(super) fn ino_paths(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    call.must_be_administrator()?;
    let arguments = call.argument::<InoPaths>()?;
    let caller = BlockedCaller::of(call)?;
    let inode = call.fs.inode_at(call.inode.tree(), InodeNumber(arguments.inode))?;
    let mut paths = Vec::new();
    for (parent, name) in inode.names()? {
        let parent = call.fs.inode_at(call.inode.tree(), parent)?;
        let mut path = path_of(&parent, objectid::FIRST_INODE)?;
        path.extend_from_slice(&name);
        path.push(0);
        paths.push(path);
    }
    if paths.is_empty() {
        return Err(Errno(libc::ENOENT));
    }
    let mut container = Container::new(arguments.size, 4096);
    // From here on `left` is what lies between the values and the paths, which grow from the end.
    let mut texts: Vec<u8> = Vec::new();
    for path in paths {
        let needed = (path.len() + size_of::<u64>()) as u32;
        if container.left < needed {
            container.missing = container.missing.saturating_add(needed - container.left);
            container.missed += 1;
            container.left = 0;
            continue;
        }
        container.left -= needed;
        container.count += 1;
        texts.splice(0..0, path.iter().copied());
        let start = container.size - COUNTERS - texts.len();
        container.bytes.extend_from_slice(&(start as u64).to_ne_bytes());
    }
    caller.memory()?.write(arguments.paths, &container.finish(&texts))?;
    done(Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_count_what_does_not_fit() {
        let numbers = |container: Container| -> Vec<u32> {
            let mut bytes = container.finish(&[]);
            bytes.resize(16, 0);
            bytes[..16].chunks(4).map(|part| u32::from_ne_bytes(part.try_into().unwrap())).collect()
        };
        let mut container = Container::new(16 + 30, 4096);
        container.put(&[1, 2, 3]);
        container.put(&[4, 5, 6]);
        assert_eq!(container.bytes.len(), 16 + 24);
        assert_eq!(numbers(container), [0, 18, 3, 3]);
        // The caller takes less than the counters.
        let mut container = Container::new(8, 4096);
        container.put(&[1]);
        assert_eq!(numbers(container), [0, 8 + 8, 0, 0]);
    }
}
