//! Counts of requests by operation.
//!
//! Owns [`RequestCounts`]. A session logs them at its end, so that `-v` shows how many round trips
//! a program took.

use crate::protocol::layout::opcode;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of requests of each operation.
#[derive(Debug)]
pub(crate) struct RequestCounts([AtomicU64; opcode::END as usize]);

impl Default for RequestCounts {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl RequestCounts {
    /// Counts one request.
    pub(crate) fn count(&self, operation: u32) {
        // Operations that this server does not know share place 0, which no operation has.
        let place = self.0.get(operation as usize).unwrap_or(&self.0[0]);
        place.fetch_add(1, Ordering::Relaxed);
    }
}

impl fmt::Display for RequestCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (operation, count) in self.0.iter().enumerate() {
            let count = count.load(Ordering::Relaxed);
            if count > 0 {
                write!(f, "{separator}{count} {}", operation_name(operation as u32))?;
                separator = ", ";
            }
        }
        if separator.is_empty() { f.write_str("none") } else { Ok(()) }
    }
}

/// Returns the protocol's name of an operation.
pub(crate) fn operation_name(operation: u32) -> &'static str {
    match operation {
        opcode::LOOKUP => "LOOKUP",
        opcode::FORGET => "FORGET",
        opcode::GETATTR => "GETATTR",
        opcode::SETATTR => "SETATTR",
        opcode::READLINK => "READLINK",
        opcode::SYMLINK => "SYMLINK",
        opcode::MKNOD => "MKNOD",
        opcode::MKDIR => "MKDIR",
        opcode::UNLINK => "UNLINK",
        opcode::RMDIR => "RMDIR",
        opcode::RENAME => "RENAME",
        opcode::LINK => "LINK",
        opcode::OPEN => "OPEN",
        opcode::READ => "READ",
        opcode::WRITE => "WRITE",
        opcode::STATFS => "STATFS",
        opcode::RELEASE => "RELEASE",
        opcode::FSYNC => "FSYNC",
        opcode::SETXATTR => "SETXATTR",
        opcode::GETXATTR => "GETXATTR",
        opcode::LISTXATTR => "LISTXATTR",
        opcode::REMOVEXATTR => "REMOVEXATTR",
        opcode::OPENDIR => "OPENDIR",
        opcode::READDIR => "READDIR",
        opcode::RELEASEDIR => "RELEASEDIR",
        opcode::FSYNCDIR => "FSYNCDIR",
        opcode::CREATE => "CREATE",
        opcode::IOCTL => "IOCTL",
        opcode::BATCH_FORGET => "BATCH_FORGET",
        opcode::FALLOCATE => "FALLOCATE",
        opcode::READDIRPLUS => "READDIRPLUS",
        opcode::RENAME2 => "RENAME2",
        opcode::LSEEK => "LSEEK",
        opcode::COPY_FILE_RANGE => "COPY_FILE_RANGE",
        opcode::SYNCFS => "SYNCFS",
        opcode::TMPFILE => "TMPFILE",
        opcode::STATX => "STATX",
        opcode::COPY_FILE_RANGE_64 => "COPY_FILE_RANGE_64",
        opcode::FLUSH => "FLUSH",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_shown_with_names() {
        let counts = RequestCounts::default();
        assert_eq!(counts.to_string(), "none");
        for operation in [opcode::LOOKUP, opcode::LOOKUP, opcode::STATX, opcode::FLUSH, u32::MAX] {
            counts.count(operation);
        }
        assert_eq!(counts.to_string(), "1 other, 2 LOOKUP, 1 FLUSH, 1 STATX");
    }
}
