//! The device numbers of Papilio's mounts.
//!
//! Owns a table of recent answers. A device number may belong to another mount later, so an answer
//! is good for two seconds.
//!
//! **Invariant**: a place of the table is one atomic word, so a reader sees a whole answer. There
//! is no lock: a thread that another thread forks at any moment would find it held for ever.

use crate::system;
use std::sync::atomic::{AtomicU64, Ordering};

/// The type of Papilio's mounts in the tables of mounts.
pub const FSTYPE: &[u8] = b"fuse.papilio";

/// How long an answer is good, in seconds.
const LIFETIME: u64 = 2;
const PLACES: usize = 32;
/// The device's minor number in the low bits, the answer in this one, and the time above.
const IS_OWN: u64 = 1 << 20;
const TIME_SHIFT: u32 = 21;

static ANSWERS: [AtomicU64; PLACES] = [const { AtomicU64::new(0) }; PLACES];

/// Returns whether a device number is that of a mount of Papilio that this process sees.
pub fn is_own(device: libc::dev_t) -> bool {
    // FUSE takes anonymous numbers.
    if libc::major(device) != 0 {
        return false;
    }
    let minor = u64::from(libc::minor(device)) & (IS_OWN - 1);
    let place = &ANSWERS[minor as usize % PLACES];
    let now = now();
    let known = place.load(Ordering::Relaxed);
    if known & (IS_OWN - 1) == minor && now < (known >> TIME_SHIFT) + LIFETIME && known >> TIME_SHIFT > 0 {
        return known & IS_OWN != 0;
    }
    let found = table().is_some_and(|table| is_in(&table, libc::minor(device)));
    place.store(now << TIME_SHIFT | if found { IS_OWN } else { 0 } | minor, Ordering::Relaxed);
    found
}

/// Returns seconds since some moment before the start of this program, at least 1.
fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut time) };
    time.tv_sec as u64 + 1
}

fn table() -> Option<Vec<u8>> {
    let file = system::open_at(libc::AT_FDCWD, c"/proc/self/mountinfo", libc::O_RDONLY).ok()?;
    system::read_all(&file).ok()
}

/// Returns whether a mount of Papilio in a table has the anonymous device `minor`.
fn is_in(table: &[u8], minor: u32) -> bool {
    let device = format!("0:{minor}");
    table.split(|&byte| byte == b'\n').any(|line| {
        let mut fields = line.split(|&byte| byte == b' ');
        fields.nth(2) == Some(device.as_bytes())
            && fields.any(|field| field == b"-")
            && fields.next() == Some(FSTYPE)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_papilios_mounts_are_own() {
        let table = b"36 35 98:0 / / rw shared:1 - ext4 /dev/x rw\n\
            37 35 0:41 / /m rw - fuse.papilio /tmp/a rw\n38 35 0:4 / /n rw - tmpfs fuse.papilio rw\n";
        assert!(is_in(table, 41));
        assert!(!is_in(table, 4) && !is_in(table, 0) && !is_in(b"", 41) && !is_in(b"1 2 0:41\n", 41));
        // The disk of this program is no mount of Papilio, nor is /proc, and twice.
        for path in [c"/", c"/proc", c"/proc"] {
            assert!(!is_own(system::status_at(libc::AT_FDCWD, path, 0).unwrap().st_dev));
        }
    }
}
