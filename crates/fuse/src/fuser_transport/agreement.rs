//! The agreement with the kernel when a mount begins.
//!
//! Owns [`Agreed`] and [`agree`], which negotiates it.

use crate::options::MountOptions;
use fuser::{InitFlags, KernelConfig};
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of one read or write at most; the kernel's own limit unless root raised it (`fs.fuse.max_pages_limit`).
pub(crate) const MAX_WRITE: u32 = 1 << 20;
/// Requests of readahead and writeback that the kernel has under way at once.
const MAX_BACKGROUND: u16 = 64;

/// What was agreed on when the mount began, for who serves beside.
#[derive(Debug, Default)]
pub(crate) struct Agreed {
    /// Whether files that are opened for direct I/O may be written by several at once.
    pub(crate) parallel_direct: AtomicBool,
    /// Whether requests come over io_uring. Asked for where it is set before.
    pub(crate) ring: AtomicBool,
}

/// Agrees with the kernel on what this transport does.
///
/// The kernel writes a file that is opened for direct I/O under its lock, unless it is told that the server does not need
/// that. Then it forgets to update the times that it keeps with the writeback cache, so that it is either or.
pub(super) fn agree(config: &mut KernelConfig, options: &MountOptions, agreed: &Agreed) {
    let mut wanted = vec![
        // Which umask counts is decided by the directory's default access control list.
        InitFlags::FUSE_DONT_MASK,
        InitFlags::FUSE_HAS_IOCTL_DIR,
        InitFlags::FUSE_DO_READDIRPLUS,
        InitFlags::FUSE_READDIRPLUS_AUTO,
        InitFlags::FUSE_ASYNC_DIO,
        InitFlags::FUSE_PARALLEL_DIROPS,
        InitFlags::FUSE_CACHE_SYMLINKS,
        // Without it the kernel asks for a capability before each write.
        InitFlags::FUSE_HANDLE_KILLPRIV_V2,
        InitFlags::FUSE_EXPORT_SUPPORT,
        // Nobody else changes the files.
        InitFlags::FUSE_EXPLICIT_INVAL_DATA,
    ];
    if options.default_permissions {
        // The kernel enforces access control lists, which implies all other permissions.
        wanted.push(InitFlags::FUSE_POSIX_ACL);
    }
    let gathers = options.writeback_cache && !options.read_only;
    if gathers {
        wanted.push(InitFlags::FUSE_WRITEBACK_CACHE);
    }
    for flag in wanted {
        if config.add_capabilities(flag).is_err() {
            tracing::info!("this kernel's FUSE lacks {flag:?}");
        }
    }
    // The one limit that can be refused is the kernel's own, which then is the answer.
    if let Err(most) = config.set_max_write(MAX_WRITE) {
        let _ = config.set_max_write(most);
    }
    if let Err(most) = config.set_max_readahead(MAX_WRITE) {
        let _ = config.set_max_readahead(most);
    }
    let _ = config.set_max_background(MAX_BACKGROUND);
    let _ = config.set_congestion_threshold(MAX_BACKGROUND / 4 * 3);
    // Kernels that know this also keep such writes and the cache of who else has the file open in line.
    let parallel = !gathers && config.add_capabilities(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP).is_ok();
    agreed.parallel_direct.store(parallel, Ordering::Release);
    let ring =
        agreed.ring.load(Ordering::Acquire) && config.add_capabilities(InitFlags::FUSE_OVER_IO_URING).is_ok();
    agreed.ring.store(ring, Ordering::Release);
}
