//! The calls that are told to the supervisor, and the seccomp filter that picks them.
//!
//! Owns [`PLAIN`] and [`program`]. An `ioctl` is picked by its request, so that other ones cost
//! nothing more.

use crate::calls::{FICLONE, FICLONERANGE, FIDEDUPERANGE, FIEMAP};

/// The calls that are always told. The older calls are those of x86-64 only.
pub const PLAIN: &[libc::c_long] = &[
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_newfstatat,
    libc::SYS_fstat,
    libc::SYS_statx,
    libc::SYS_openat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lstat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
];

/// The requests of `ioctl` that are told.
const REQUESTS: [u32; 4] = [FICLONE, FICLONERANGE, FIDEDUPERANGE, FIEMAP];

/// `AUDIT_ARCH_*` of this processor (`include/uapi/linux/audit.h`).
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;
#[cfg(target_arch = "riscv64")]
const ARCHITECTURE: u32 = 0xc000_00f3;

/// Offsets in `struct seccomp_data`; of the second argument its lower half.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const SECOND_ARGUMENT: u32 = 24;

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

fn step(code: u16, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

/// Returns the filter. Programs for 32-bit processors are left alone.
pub fn program() -> Vec<libc::sock_filter> {
    let (calls, requests) = (PLAIN.len() as u8, REQUESTS.len() as u8);
    let mut steps = vec![
        step(LOAD, ARCH, 0, 0),
        // To the end, which allows.
        step(JUMP_IF_EQUAL, ARCHITECTURE, 0, calls + requests + 3),
        step(LOAD, NUMBER, 0, 0),
    ];
    for (at, &call) in PLAIN.iter().enumerate() {
        // Over the other calls and the part for `ioctl`.
        let left = calls - at as u8 - 1;
        steps.push(step(JUMP_IF_EQUAL, call as u32, left + requests + 3, 0));
    }
    steps.push(step(JUMP_IF_EQUAL, libc::SYS_ioctl as u32, 0, requests + 1));
    steps.push(step(LOAD, SECOND_ARGUMENT, 0, 0));
    for (at, &request) in REQUESTS.iter().enumerate() {
        steps.push(step(JUMP_IF_EQUAL, request, requests - at as u8, 0));
    }
    steps.push(step(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0));
    steps.push(step(RETURN, libc::SECCOMP_RET_USER_NOTIF, 0, 0));
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the filter as the kernel does, for the steps that it has.
    fn verdict(number: u32, arch: u32, argument: u32) -> u32 {
        let (steps, mut at, mut loaded) = (program(), 0, 0);
        loop {
            let step = steps[at];
            at += 1;
            match step.code {
                LOAD => {
                    loaded = match step.k {
                        NUMBER => number,
                        ARCH => arch,
                        SECOND_ARGUMENT => argument,
                        other => panic!("offset {other}"),
                    }
                }
                JUMP_IF_EQUAL if loaded == step.k => at += usize::from(step.jt),
                JUMP_IF_EQUAL => at += usize::from(step.jf),
                RETURN => return step.k,
                other => panic!("code {other}"),
            }
        }
    }

    #[test]
    fn the_filter_picks_the_calls_and_no_others() {
        for number in 0..600 {
            let expected = match PLAIN.contains(&i64::from(number)) {
                true => libc::SECCOMP_RET_USER_NOTIF,
                false => libc::SECCOMP_RET_ALLOW,
            };
            assert_eq!(verdict(number, ARCHITECTURE, 0), expected, "{number}");
            assert_eq!(verdict(number, ARCHITECTURE ^ 1, FICLONE), libc::SECCOMP_RET_ALLOW);
        }
        let ioctl = libc::SYS_ioctl as u32;
        for request in REQUESTS {
            assert_eq!(verdict(ioctl, ARCHITECTURE, request), libc::SECCOMP_RET_USER_NOTIF);
            assert_eq!(verdict(ioctl, ARCHITECTURE, request + 1), libc::SECCOMP_RET_ALLOW);
        }
    }
}
