//! The log of requests that get `EIO`.
//!
//! Owns [`IoErrors`] and the words for a request. The program hears only a number, so the log says
//! which operation failed, on which inode, and why. A broken disk fails many requests: of each five
//! seconds, ten are logged, and the number of the others.
//!
//! Lock: the counters', a leaf. Kernel counterpart: `btrfs_printk_ratelimited`
//! (`fs/btrfs/messages.h`), with the limits of `DEFAULT_RATELIMIT_INTERVAL` and
//! `DEFAULT_RATELIMIT_BURST`.

use crate::protocol::request::{Body, Request};
use crate::request_counts::operation_name;
use papilio_ioctl::Errno;
use papilio_locks::Mutex;
use std::time::{Duration, Instant};

/// The time for which messages are counted.
const INTERVAL: Duration = Duration::from_secs(5);
/// Messages in that time, at most.
const BURST: u32 = 10;

/// Counts the messages, so that a broken disk does not fill the log.
#[derive(Debug, Default)]
pub(crate) struct IoErrors {
    window: Mutex<Window>,
}

#[derive(Debug, Default)]
struct Window {
    since: Option<Instant>,
    logged: u32,
    left_out: u64,
}

impl Window {
    /// Counts a message at `now`. Returns how many were left out before it, or `None` if it is left
    /// out as well.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.since.is_none_or(|since| now.duration_since(since) >= INTERVAL) {
            (self.since, self.logged) = (Some(now), 0);
        }
        if self.logged == BURST {
            self.left_out += 1;
            return None;
        }
        self.logged += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

impl IoErrors {
    /// Logs a request that gets `EIO`, unless there are too many; `request` tells which.
    pub(crate) fn note(&self, request: impl FnOnce() -> String) {
        let reason = Errno::take_reason();
        let admitted = self.window.lock().admit(Instant::now());
        let Some(left_out) = admitted else { return };
        if left_out > 0 {
            tracing::error!("{left_out} more requests got an input/output error");
        }
        let reason = reason.unwrap_or_else(|| "an earlier write failed so".to_owned());
        tracing::error!("{}: input/output error: {reason}", request());
    }
}

/// Returns the operation of a request, with the names or the ioctl that it carries.
pub(crate) fn described(operation: u32, request: Option<&Request<'_>>) -> String {
    let operation = operation_name(operation);
    let name = |name: &[u8]| format!("{operation} {:?}", String::from_utf8_lossy(name));
    match request.map(|request| &request.body) {
        Some(
            Body::Lookup { name: one }
            | Body::Unlink { name: one }
            | Body::Rmdir { name: one }
            | Body::Link { name: one, .. }
            | Body::Xattr { name: one, .. }
            | Body::RemoveXattr { name: one }
            | Body::SetXattr { name: one, .. },
        ) => name(one),
        Some(Body::Make(new) | Body::Create { new, .. }) => name(new.name),
        Some(Body::Rename(rename)) => {
            format!("{} to {:?}", name(rename.name), String::from_utf8_lossy(rename.new_name))
        }
        Some(Body::Ioctl(ioctl)) => format!("{operation} {:#x}", ioctl.command),
        _ => operation.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_logged_and_the_rest_is_counted() {
        let mut window = Window::default();
        let start = Instant::now();
        let admitted = (0..100).filter(|_| window.admit(start).is_some()).count();
        assert_eq!(admitted, BURST as usize);
        assert_eq!(window.admit(start + INTERVAL / 2), None);
        assert_eq!(window.admit(start + INTERVAL), Some(91));
        assert_eq!(window.admit(start + INTERVAL), Some(0));
    }
}
