//! Hints to the processor's caches: prefetches, and copies that bypass them.
//!
//! Owns no state. Nothing here changes results, only the time at which memory is moved. On
//! processors without these instructions, and under Miri, a hint is a no-op and a copy a plain
//! copy.

#[cfg(all(target_arch = "x86_64", not(miri)))]
use std::arch::x86_64::{__m128i, _MM_HINT_T0, _mm_loadu_si128, _mm_prefetch, _mm_sfence, _mm_stream_si128};
use std::ptr::NonNull;

/// Bytes copied per step: a cache line.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const LINE: usize = 64;

/// Starts loading a value that will be used soon.
#[inline(always)]
pub(crate) fn prefetch<T>(value: &T) {
    prefetch_address(NonNull::from(value).cast());
}

/// Starts loading the cache line at an address.
#[inline(always)]
pub(crate) fn prefetch_address(address: NonNull<u8>) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch of any address has no architectural effect and never faults. SSE is part
    // of x86-64.
    unsafe {
        _mm_prefetch::<_MM_HINT_T0>(address.as_ptr().cast_const().cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

/// Copies bytes to memory that is probably uncached and not read soon. The copy neither loads the
/// old contents first nor evicts other cache lines.
///
/// # Panics
/// If the lengths differ.
pub(crate) fn copy_past_caches(to: &mut [u8], from: &[u8]) {
    assert_eq!(to.len(), from.len());
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if to.as_ptr().addr().is_multiple_of(LINE) && to.len().is_multiple_of(LINE) {
        for (to, from) in to.chunks_exact_mut(LINE).zip(from.chunks_exact(LINE)) {
            for at in (0..LINE).step_by(size_of::<__m128i>()) {
                // SAFETY: both slices have `LINE` bytes, and `at` is a multiple of 16 below that.
                // The target is aligned to `LINE`. SSE2 is part of x86-64.
                unsafe {
                    let value = _mm_loadu_si128(from.as_ptr().add(at).cast());
                    _mm_stream_si128(to.as_mut_ptr().add(at).cast(), value);
                }
            }
        }
        // Non-temporal stores are not ordered by the release of a lock: fence them, so that the
        // next reader sees them.
        // SAFETY: SSE is part of x86-64.
        unsafe { _mm_sfence() };
        return;
    }
    to.copy_from_slice(from);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_past_caches_copies_all_bytes() {
        let from: Vec<u8> = (0..8192u32).map(|byte| (byte * 7 + byte / 256) as u8).collect();
        let mut to = vec![0; 8192 + 64];
        for (skip, start, length) in
            [(0, 0, 4096), (0, 3, 4096), (1, 0, 4096), (0, 0, 8192), (0, 5, 100), (0, 0, 0)]
        {
            to.fill(0xee);
            let aligned = to.as_ptr().align_offset(64) + skip;
            copy_past_caches(&mut to[aligned..aligned + length], &from[start..start + length]);
            assert_eq!(to[aligned..aligned + length], from[start..start + length]);
            assert!(to[..aligned].iter().chain(&to[aligned + length..]).all(|byte| *byte == 0xee));
        }
    }
}
