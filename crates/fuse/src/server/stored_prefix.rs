//! The part of a write that fits, where the kernel would cache the whole.
//!
//! Owns [`Server::store_prefix`]. While room is short, the kernel asks before it caches a write, or
//! sends the parts of a direct one. The server can only refuse it as a whole, but the kernel's
//! Btrfs stores the first bytes of such a write. So the server reads them from the caller's memory
//! and stores those that fit, before it refuses the write. The caller gets the error with the first
//! call, and no short count.
//!
//! A write that appends is left out: after the error the caller may append the same data again. So
//! is a caller whose memory the server may not read.
//!
//! Kernel counterpart: `btrfs_buffered_write` (`fs/btrfs/file.c`).

use super::pending_write::KnownWrite;
use super::state::Server;
use crate::ioctl::Caller;
use crate::nodes::Node;
use crate::transport::StoredPrefix;
use papilio::File;
use std::fs;

/// Bytes that are read and stored at once.
const STEP: usize = 1 << 20;

impl Server {
    /// Stores the first bytes of a write that does not fit as a whole. Returns what is stored, or
    /// `None` if nothing is.
    pub(super) fn store_prefix(
        &self,
        caller: Caller,
        node: &Node,
        file: &File,
        write: &KnownWrite,
    ) -> Option<StoredPrefix> {
        let memory = write.data(caller.pid)?;
        let offset = write.offset.filter(|_| !write.appends)?;
        let most = write.length.min(file_size_limit(caller.pid).saturating_sub(offset));
        let (mut stored, mut last) = (0, 0);
        let mut buffer = vec![0; STEP];
        while stored < most {
            // Steps end where sectors do, so that no sector is written twice.
            let at = offset + stored;
            let step = (STEP as u64 - at % STEP as u64).min(most - stored) as usize;
            let Some(read) = memory.read(stored, &mut buffer[..step]) else { break };
            let wrote = file.write_at(&buffer[..read], at).unwrap_or(0);
            stored += wrote as u64;
            last = if wrote > 0 { buffer[wrote - 1] } else { last };
            if wrote < step {
                break;
            }
        }
        if stored == 0 {
            return None;
        }
        tracing::debug!("stored {stored} of {} bytes that were to be cached", write.length);
        self.changed(node);
        if let Err(error) = self.after_change(caller, node) {
            tracing::debug!("clearing privileges after a part of a write: {error:?}");
        }
        Some(StoredPrefix { offset, length: stored, last })
    }
}

/// Returns the end of the largest file that a process may write (`RLIMIT_FSIZE`), which the kernel
/// checks after its question.
fn file_size_limit(thread: u32) -> u64 {
    let limits = fs::read_to_string(format!("/proc/{thread}/limits")).unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max file size"));
    match line.and_then(|line| line.split_whitespace().next()) {
        Some("unlimited") => u64::MAX,
        Some(bytes) => bytes.parse().unwrap_or(0),
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_this_process_is_found() {
        let own = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
        assert_eq!(file_size_limit(std::process::id()), own.unwrap_or(u64::MAX));
        assert_eq!(file_size_limit(0), 0);
    }
}
