//! A call as the kernel tells of it.

/// `struct seccomp_notif`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Told {
    pub(super) id: u64,
    pub(super) thread: u32,
    pub(super) flags: u32,
    pub(super) number: i32,
    pub(super) architecture: u32,
    pub(super) instruction: u64,
    pub(super) arguments: [u64; 6],
}
