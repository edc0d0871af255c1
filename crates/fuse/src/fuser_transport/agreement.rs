//! The agreement with the kernel at the start of a mount.
//!
//! Owns [`Agreed`] and [`agree`], which negotiates it.

use crate::options::MountOptions;
use fuser::{InitFlags, KernelConfig};
use std::sync::atomic::{AtomicBool, Ordering};

/// Maximum size of one read or write in bytes. It is the kernel's own limit unless root raised that
/// (`fs.fuse.max_pages_limit`).
pub(crate) const MAX_WRITE: u32 = 1 << 20;
/// Maximum number of readahead and writeback requests that the kernel has in flight.
const MAX_BACKGROUND: u16 = 64;

/// The result of the negotiation, for the other transport.
#[derive(Debug, Default)]
pub(crate) struct Agreed {
    /// Several threads may write a file in parallel if it is open for direct I/O.
    pub(crate) parallel_direct: AtomicBool,
    /// Requests come over io_uring. Set beforehand to ask the kernel for that.
    pub(crate) ring: AtomicBool,
}

/// Negotiates the features of this transport with the kernel.
///
/// The kernel serializes direct writes to a file unless the server opts out. With the opt-out it
/// fails to update the times that it keeps for the writeback cache, so the two exclude each other.
pub(super) fn agree(config: &mut KernelConfig, options: &MountOptions, agreed: &Agreed) {
    let mut wanted = vec![
        // The directory's default access control list decides whether the umask applies.
        InitFlags::FUSE_DONT_MASK,
        InitFlags::FUSE_HAS_IOCTL_DIR,
        InitFlags::FUSE_DO_READDIRPLUS,
        InitFlags::FUSE_READDIRPLUS_AUTO,
        InitFlags::FUSE_ASYNC_DIO,
        InitFlags::FUSE_PARALLEL_DIROPS,
        InitFlags::FUSE_CACHE_SYMLINKS,
        // Without it the kernel queries a capability before each write.
        InitFlags::FUSE_HANDLE_KILLPRIV_V2,
        InitFlags::FUSE_EXPORT_SUPPORT,
        // Only the kernel changes files, through this server.
        InitFlags::FUSE_EXPLICIT_INVAL_DATA,
    ];
    if options.default_permissions {
        // The kernel enforces access control lists, which implies all other permissions.
        wanted.push(InitFlags::FUSE_POSIX_ACL);
    }
    let writeback_cache = options.writeback_cache && !options.read_only;
    if writeback_cache {
        wanted.push(InitFlags::FUSE_WRITEBACK_CACHE);
    }
    for flag in wanted {
        if config.add_capabilities(flag).is_err() {
            tracing::info!("this kernel's FUSE lacks {flag:?}");
        }
    }
    // A refused limit yields the kernel's maximum.
    if let Err(most) = config.set_max_write(MAX_WRITE) {
        let _ = config.set_max_write(most);
    }
    if let Err(most) = config.set_max_readahead(MAX_WRITE) {
        let _ = config.set_max_readahead(most);
    }
    let _ = config.set_max_background(MAX_BACKGROUND);
    let _ = config.set_congestion_threshold(MAX_BACKGROUND / 4 * 3);
    // Kernels with this feature also keep parallel direct writes coherent with other openers'
    // cache.
    let parallel = !writeback_cache && config.add_capabilities(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP).is_ok();
    agreed.parallel_direct.store(parallel, Ordering::Release);
    let ring =
        agreed.ring.load(Ordering::Acquire) && config.add_capabilities(InitFlags::FUSE_OVER_IO_URING).is_ok();
    agreed.ring.store(ring, Ordering::Release);
}
