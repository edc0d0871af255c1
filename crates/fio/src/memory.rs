//! Reads of memory that may not be mapped.
//!
//! Owns [`peek`], by which `discover.rs` follows possible pointers. The kernel copies the bytes, so
//! a bad address yields an error instead of a fault.

use std::ffi::c_void;

/// Copies bytes from `address` on into `buffer`; returns how many could be read.
pub fn peek(address: usize, buffer: &mut [u8]) -> usize {
    let local = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let remote = libc::iovec { iov_base: address as *mut c_void, iov_len: buffer.len() };
    // SAFETY: `local` is one buffer that we own; the kernel checks the remote range, which is in
    // this process.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    usize::try_from(read).unwrap_or(0)
}

/// Returns the machine word at `address` if it can be read.
pub fn word(address: usize) -> Option<usize> {
    let mut bytes = [0; size_of::<usize>()];
    (peek(address, &mut bytes) == bytes.len()).then(|| usize::from_ne_bytes(bytes))
}

/// Returns the 32-bit integer at `address` if it can be read.
pub fn int(address: usize) -> Option<i32> {
    let mut bytes = [0; 4];
    (peek(address, &mut bytes) == bytes.len()).then(|| i32::from_ne_bytes(bytes))
}

/// Returns the NUL-terminated string at `address` if it can be read, has 1 to 63 bytes, and is
/// ASCII without control characters.
pub fn text(address: usize) -> Option<String> {
    let mut bytes = [0; 64];
    let read = peek(address, &mut bytes);
    let end = bytes[..read].iter().position(|byte| *byte == 0)?;
    let text = &bytes[..end];
    let printable = !text.is_empty() && text.iter().all(|byte| (0x20..0x7f).contains(byte));
    printable.then(|| String::from_utf8_lossy(text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmapped_addresses_yield_none() {
        let value: usize = 0x1234_5678_9abc;
        assert_eq!(word(&raw const value as usize), Some(value));
        assert_eq!(text(c"cpuload".as_ptr() as usize).as_deref(), Some("cpuload"));
        assert_eq!(text(c"a\x01b".as_ptr() as usize), None);
        assert_eq!(text(c"".as_ptr() as usize), None);
        for nowhere in [0, 8, usize::MAX - 7, 1 << 60] {
            assert_eq!((word(nowhere), int(nowhere), text(nowhere)), (None, None, None));
        }
    }
}
