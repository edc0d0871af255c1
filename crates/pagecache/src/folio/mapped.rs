//! Mappings of anonymous memory.
//!
//! Owns [`Mapped`], which unmaps its memory when it is dropped. Miri knows no partial unmapping and
//! no advice, so under Miri the memory comes from the allocator.

use crate::processor::prefetch_address;
use crate::{MAX_ORDER, PAGE_SIZE};
use std::ptr::NonNull;

/// Bytes of a page to prefetch. After a few lines the processor's own prefetcher takes over.
const PREFETCHED: usize = 256;
/// Size and alignment of a huge page in bytes.
const HUGE_PAGE: usize = PAGE_SIZE << MAX_ORDER;

/// A mapping of anonymous memory.
pub(super) struct Mapped {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory at this address belongs to the process, not to a thread.
unsafe impl Send for Mapped {}
// SAFETY: `&Mapped` gives access to nothing but the address.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Maps `bytes` zeroed bytes, a multiple of the page size. A mapping of at least a huge page is
    /// aligned to one.
    pub fn new(bytes: usize, huge_pages: bool) -> rustix::io::Result<Self> {
        Ok(Self { base: system::map(bytes, huge_pages)?, bytes })
    }

    /// Returns the address of the first byte.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Returns the number of bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Starts loading the first cache lines from `offset` on.
    #[inline]
    pub fn prefetch(&self, offset: usize) {
        for line in (offset..self.bytes.min(offset + PREFETCHED)).step_by(64) {
            // SAFETY: the byte lies in the mapping.
            prefetch_address(unsafe { self.base.add(line) });
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours. Every folio in use keeps the cache alive, so nothing refers
        // to the memory once the arena is dropped.
        unsafe { system::unmap(self.base, self.bytes) };
    }
}

#[cfg(not(miri))]
mod system {
    use super::HUGE_PAGE;
    #[cfg(target_os = "linux")]
    use rustix::mm::{Advice, madvise};
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
    use std::ptr::NonNull;

    /// Memory of this process, which takes no swap space before it is used. Where the flag is
    /// missing, that is so anyway.
    #[cfg(not(target_os = "freebsd"))]
    const PRIVATE: MapFlags = MapFlags::PRIVATE.union(MapFlags::NORESERVE);
    #[cfg(target_os = "freebsd")]
    const PRIVATE: MapFlags = MapFlags::PRIVATE;

    pub fn map(bytes: usize, huge_pages: bool) -> rustix::io::Result<NonNull<u8>> {
        let slack = if bytes >= HUGE_PAGE { HUGE_PAGE } else { 0 };
        // SAFETY: a new mapping at an address chosen by the kernel overlaps no existing one.
        let start = unsafe {
            mmap_anonymous(std::ptr::null_mut(), bytes + slack, ProtFlags::READ | ProtFlags::WRITE, PRIVATE)
        }?
        .cast::<u8>();
        let skip = if slack == 0 { 0 } else { start.align_offset(HUGE_PAGE) };
        // SAFETY: both ends lie in the new mapping, outside the part that is kept, and nobody
        // refers to them.
        unsafe {
            if skip > 0 {
                munmap(start.cast(), skip)?;
            }
            if slack > skip {
                munmap(start.add(skip + bytes).cast(), slack - skip)?;
            }
        }
        // SAFETY: `skip` is at most the slack, so this address lies in the mapping.
        let base = unsafe { start.add(skip) };
        advise_on_huge_pages(base, bytes, huge_pages);
        Ok(NonNull::new(base).expect("the kernel maps nothing at 0"))
    }

    /// Asks for huge pages, or against them. Only Linux takes the advice.
    #[cfg_attr(not(target_os = "linux"), allow(unused_variables))]
    fn advise_on_huge_pages(base: *mut u8, bytes: usize, wanted: bool) {
        #[cfg(target_os = "linux")]
        {
            let advice = if wanted { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage };
            // SAFETY: advice on huge pages changes no contents. A failure is harmless.
            let _ = unsafe { madvise(base.cast(), bytes, advice) };
        }
    }

    /// # Safety
    /// The memory comes from [`map`] with the same size, and nothing refers to it.
    pub unsafe fn unmap(base: NonNull<u8>, bytes: usize) {
        // SAFETY: the caller's promise.
        let _ = unsafe { munmap(base.as_ptr().cast(), bytes) };
    }
}

#[cfg(miri)]
mod system {
    use super::HUGE_PAGE;
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::ptr::NonNull;

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, HUGE_PAGE).expect("a region is far smaller than an address space")
    }

    pub fn map(bytes: usize, _huge_pages: bool) -> rustix::io::Result<NonNull<u8>> {
        // SAFETY: the size is not 0.
        NonNull::new(unsafe { alloc_zeroed(layout(bytes)) }).ok_or(rustix::io::Errno::NOMEM)
    }

    /// # Safety
    /// The memory comes from [`map`] with the same size, and nothing refers to it.
    pub unsafe fn unmap(base: NonNull<u8>, bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe { dealloc(base.as_ptr(), layout(bytes)) };
    }
}
