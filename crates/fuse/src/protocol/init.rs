//! The agreement with the kernel at the start of a mount.
//!
//! Owns [`Agreement`] and the negotiation: the kernel offers features, and the server takes those
//! that it wants.
//!
//! Kernel counterpart: `process_init_reply` (`fs/fuse/inode.c`).

use super::layout::{InitIn, InitOut, MAJOR, MINOR, feature};
use crate::options::MountOptions;

/// Maximum size of one read or write in bytes. It is the kernel's own limit unless root raised that
/// (`fs.fuse.max_pages_limit`).
pub(crate) const MAX_WRITE: u32 = 1 << 20;
/// Maximum number of requests that the kernel has in flight for no waiting caller: readahead,
/// writeback, and direct I/O of queues.
const MAX_BACKGROUND: u16 = 128;
/// The oldest minor version of the protocol whose structures are the same (Linux 3.15).
const OLDEST_MINOR: u32 = 23;
/// Size of a page in the count of pages.
const PAGE: u32 = 4096;

/// The features that the server always wants, with their names for messages.
const WANTED: [(u64, &str); 12] = [
    (feature::ASYNC_READ, "asynchronous reads"),
    (feature::BIG_WRITES, "writes of more than a page"),
    (feature::MAX_PAGES, "requests of more than 32 pages"),
    // The directory's default access control list decides whether the umask applies.
    (feature::DONT_MASK, "creation without the umask"),
    (feature::HAS_IOCTL_DIR, "ioctls of directories"),
    (feature::DO_READDIRPLUS, "listings with attributes"),
    (feature::ASYNC_DIO, "asynchronous direct I/O"),
    (feature::PARALLEL_DIROPS, "parallel look-ups"),
    (feature::CACHE_SYMLINKS, "cached symbolic links"),
    // Without it the kernel queries a capability before each write.
    (feature::HANDLE_KILLPRIV_V2, "set-user-id bits cleared by the server"),
    (feature::EXPORT_SUPPORT, "look-ups by NFS servers"),
    // Only the kernel changes files, through this server.
    (feature::EXPLICIT_INVAL_DATA, "caches dropped by the server only"),
];

/// The result of the negotiation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Agreement {
    /// Several threads may write a file in parallel if it is open for direct I/O.
    pub(crate) parallel_direct: bool,
    /// Requests come over io_uring.
    pub(crate) ring: bool,
}

/// The answer to the kernel's offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Negotiated {
    /// Kernel and server agree.
    Agreed(InitOut, Agreement),
    /// The kernel's major version is newer. It offers again after this reply.
    Again(InitOut),
    /// The kernel's version is too old.
    TooOld(u32, u32),
}

/// Answers the kernel's offer. `ring` asks for requests over io_uring.
///
/// The kernel serializes direct writes to a file unless the server opts out. With the opt-out it
/// fails to update the times that it keeps for the writeback cache, so the two exclude each other.
pub(crate) fn negotiate(offer: &InitIn, options: &MountOptions, ring: bool) -> Negotiated {
    agree(offer, wanted(options) | if ring { feature::OVER_IO_URING } else { 0 })
}

/// As [`negotiate`], with a kernel that hears of no stale data: a guest's. It drops its pages where
/// the attributes of a file have changed. The processes of a guest are not those of this machine,
/// so the server cannot find the ids of callers.
pub(crate) fn negotiate_with_guest(offer: &InitIn, options: &MountOptions) -> Negotiated {
    let wanted = wanted(options) & !(feature::ALLOW_IDMAP | feature::EXPLICIT_INVAL_DATA);
    agree(offer, wanted | feature::AUTO_INVAL_DATA)
}

/// Returns the features that the options ask for.
fn wanted(options: &MountOptions) -> u64 {
    let mut wanted = feature::INIT_EXT | WANTED.iter().fold(0, |all, (flag, _)| all | flag);
    if options.default_permissions {
        // The kernel enforces access control lists, which implies all other permissions.
        wanted |= feature::POSIX_ACL;
        if finds_callers() && !options.allow_root {
            wanted |= feature::ALLOW_IDMAP;
        }
    }
    if options.gathers_writes() {
        wanted |= feature::WRITEBACK_CACHE;
    } else {
        // Kernels with this feature also keep parallel direct writes coherent with other openers'
        // cache.
        wanted |= feature::DIRECT_IO_ALLOW_MMAP;
    }
    wanted
}

fn agree(offer: &InitIn, wanted: u64) -> Negotiated {
    let nothing: InitOut = zerocopy::FromZeros::new_zeroed();
    let versions = InitOut { major: MAJOR, minor: MINOR, ..nothing };
    match offer.major {
        newer if newer > MAJOR => return Negotiated::Again(versions),
        MAJOR if offer.minor >= OLDEST_MINOR => {}
        _ => return Negotiated::TooOld(offer.major, offer.minor),
    }
    let mut offered = u64::from(offer.flags);
    if offered & feature::INIT_EXT != 0 {
        offered |= u64::from(offer.flags_high) << 32;
    }
    for (_, name) in WANTED.iter().filter(|(flag, _)| offered & flag == 0 && wanted & flag != 0) {
        tracing::info!("this kernel's FUSE lacks {name}");
    }
    let agreed = offered & wanted;
    let has = |flag| agreed & flag != 0;
    let out = InitOut {
        max_readahead: offer.max_readahead.max(MAX_WRITE),
        flags: agreed as u32,
        flags_high: (agreed >> 32) as u32,
        max_background: MAX_BACKGROUND,
        congestion_threshold: MAX_BACKGROUND / 4 * 3,
        max_write: MAX_WRITE,
        time_granularity_nanoseconds: 1,
        max_pages: (MAX_WRITE / PAGE) as u16,
        ..versions
    };
    let agreement =
        Agreement { parallel_direct: has(feature::DIRECT_IO_ALLOW_MMAP), ring: has(feature::OVER_IO_URING) };
    Negotiated::Agreed(out, agreement)
}

/// Returns whether the server finds the ids of callers by itself. With idmapped mounts the kernel
/// tells them only where it makes an inode. Root reads them in /proc, and only root can make such a
/// mount.
fn finds_callers() -> bool {
    rustix::process::geteuid().is_root() && std::path::Path::new("/proc/self/status").exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(major: u32, minor: u32, features: u64) -> InitIn {
        let nothing: InitIn = zerocopy::FromZeros::new_zeroed();
        let (flags, flags_high) = (features as u32, (features >> 32) as u32);
        InitIn { major, minor, flags, flags_high, max_readahead: 131_072, ..nothing }
    }

    fn agreed(offer: &InitIn, options: &str, ring: bool) -> (u64, Agreement) {
        match negotiate(offer, &MountOptions::parse(options).unwrap(), ring) {
            Negotiated::Agreed(out, agreement) => {
                (u64::from(out.flags) | u64::from(out.flags_high) << 32, agreement)
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_offered_features_are_agreed() {
        let all = u64::MAX;
        let (flags, agreement) = agreed(&offer(7, 45, all), "", true);
        assert!(flags & feature::WRITEBACK_CACHE != 0 && flags & feature::POSIX_ACL != 0);
        assert_eq!(agreement, Agreement { parallel_direct: false, ring: true });
        // Linux 5.4 offers protocol 7.31 and no high flags, even if these bytes hold something.
        let old = offer(7, 31, all & !feature::INIT_EXT & !feature::HANDLE_KILLPRIV_V2);
        let (flags, agreement) = agreed(&old, "nowriteback_cache", true);
        assert_eq!((flags >> 32, agreement), (0, Agreement::default()));
        assert_eq!(flags & feature::HANDLE_KILLPRIV_V2, 0);
        assert_eq!(agreed(&offer(7, 31, 0), "", true), (0, Agreement::default()));
    }

    #[test]
    fn a_guest_drops_pages_by_itself_and_has_no_mapped_callers() {
        let options = MountOptions::parse("nowriteback_cache").unwrap();
        let Negotiated::Agreed(out, agreement) = negotiate_with_guest(&offer(7, 45, u64::MAX), &options)
        else {
            panic!("they agree");
        };
        let flags = u64::from(out.flags) | u64::from(out.flags_high) << 32;
        let refused = feature::ALLOW_IDMAP
            | feature::EXPLICIT_INVAL_DATA
            | feature::OVER_IO_URING
            | feature::WRITEBACK_CACHE;
        assert_eq!(flags & refused, 0);
        assert!(flags & feature::AUTO_INVAL_DATA != 0 && flags & feature::POSIX_ACL != 0);
        assert!(!agreement.ring);
    }

    #[test]
    fn versions_are_compared() {
        let options = MountOptions::parse("").unwrap();
        let answer = |major, minor| negotiate(&offer(major, minor, 0), &options, false);
        assert!(matches!(answer(8, 0), Negotiated::Again(out) if (out.major, out.minor) == (7, MINOR)));
        assert_eq!(answer(7, 22), Negotiated::TooOld(7, 22));
        assert_eq!(answer(6, 99), Negotiated::TooOld(6, 99));
        assert!(matches!(answer(7, 23), Negotiated::Agreed(..)));
    }
}
