//! The filters of system calls: seccomp programs.
//!
//! Owns [`allow_only`], the list of a job's calls, and [`refuse`], which takes calls out of it. The
//! kernel runs all filters of a process, and the strictest answer counts.
//!
//! **Invariants**
//! - A call that is in no list fails with `EPERM`, or ends the process under `Mode::Kill`.
//! - Calls that have a substitute, and calls younger than the lists, fail with `ENOSYS`, so that
//!   the C library and Papilio go on without.
//! - A thread is the only thing that `clone` makes: no process, no namespace.

use crate::system_calls;
use crate::{Job, Mode};
use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, apply_filter_all_threads, sock_filter,
};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;
type Error = Box<dyn std::error::Error>;

/// Calls that are refused as if the kernel did not have them.
const SUBSTITUTED: &[c_long] = &[libc::SYS_clone3, libc::SYS_io_uring_setup];

/// Calls that are younger than the lists. All processors number them alike. A C library tries the
/// calls that it knows, and goes on without one that the kernel does not have.
const NEWER: RangeInclusive<i64> = 449..=600;

/// ioctls of terminals and pipes: `TCGETS` to `TCSETSF`, `TIOCGPGRP`, `TIOCGWINSZ`, `FIONREAD`,
/// `FIONBIO`, `FIOCLEX`, `FIONCLEX`, `TCGETS2` to `TCSETSF2`. Never `TIOCSTI`, which types.
const TERMINAL: &[u64] = &[
    0x5401,
    0x5402,
    0x5403,
    0x5404,
    0x540f,
    0x5413,
    0x541b,
    0x5421,
    0x5450,
    0x5451,
    0x802c_542a,
    0x402c_542b,
    0x402c_542c,
    0x402c_542d,
];

/// ioctls that ask a block device or a file: `BLKROGET`, `BLKGETSIZE`, `BLKSSZGET`, `BLKIOMIN`,
/// `BLKIOOPT`, `BLKALIGNOFF`, `BLKPBSZGET`, `BLKROTATIONAL`, `BLKGETSIZE64`, `BLKGETZONESZ`,
/// `FIGETBSZ`, `FIBMAP`'s successor `FS_IOC_FIEMAP`, `FS_IOC_GETFLAGS`, `FS_IOC_FSGETXATTR`.
const QUESTIONS: &[u64] = &[
    0x125e,
    0x1260,
    0x1268,
    0x1278,
    0x1279,
    0x127a,
    0x127b,
    0x127e,
    0x8008_1272,
    0x8004_1284,
    0x2,
    0xc020_660b,
    0x8008_6601,
    0x801c_581f,
];

/// ioctls that change a file or give space of a device back: `FS_IOC_SETFLAGS`,
/// `FS_IOC_FSSETXATTR`, `FICLONE`, `FICLONERANGE`, `BLKDISCARD`, `BLKSECDISCARD`, `BLKZEROOUT`.
const CHANGES: &[u64] = &[0x4008_6602, 0x401c_5820, 0x4004_9409, 0x4020_940d, 0x1277, 0x127d, 0x127f];

/// The types of Btrfs's ioctls and Papilio's, which ask a mount that has an image open.
const MOUNTS: [u64; 2] = [0x9400, 0xbd00];
const TYPE_MASK: u64 = 0xff00;

/// `prctl` options that name threads and memory, ask, or give up rights: `PR_GET_DUMPABLE`,
/// `PR_SET_DUMPABLE` (to 0 only, see below), `PR_SET_NAME`, `PR_GET_NAME`, `PR_GET_SECCOMP`,
/// `PR_CAPBSET_READ`, `PR_CAPBSET_DROP`, `PR_SET_TIMERSLACK`, `PR_GET_TIMERSLACK`,
/// `PR_SET_NO_NEW_PRIVS`, `PR_GET_NO_NEW_PRIVS`, `PR_CAP_AMBIENT`, `PR_SET_VMA`.
const PRCTL: &[u64] = &[3, 15, 16, 21, 23, 24, 29, 30, 38, 39, 47, 0x5356_4d41];
const PR_SET_DUMPABLE: u64 = 4;

/// The bits of `openat`'s flags that are more than reading.
const WRITING: u64 = (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC | libc::O_APPEND) as u64;
/// The bits that make or empty a file.
const MAKING: u64 = (libc::O_CREAT | libc::O_TRUNC) as u64;
/// `O_TMPFILE` without `O_DIRECTORY`, which it includes.
const TEMPORARY: u64 = (libc::O_TMPFILE & !libc::O_DIRECTORY) as u64;

/// Namespaces of `clone` and `CLONE_THREAD`, which is the only one of them that is allowed.
const CLONE_BITS: u64 =
    (libc::CLONE_THREAD | libc::CLONE_VFORK | libc::CLONE_PTRACE | libc::CLONE_PARENT) as u64 | 0x7e02_0000;

/// A condition on one argument, by its lower half or as a whole.
fn is(argument: u8, operator: SeccompCmpOp, value: u64) -> Result<SeccompCondition, Error> {
    Ok(SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)?)
}

fn rule(conditions: Vec<SeccompCondition>) -> Result<SeccompRule, Error> {
    Ok(SeccompRule::new(conditions)?)
}

/// Returns one rule for each value of an argument.
fn one_of(argument: u8, values: &[u64]) -> Result<Vec<SeccompRule>, Error> {
    values.iter().map(|value| rule(vec![is(argument, SeccompCmpOp::Eq, *value)?])).collect()
}

/// Returns the rules of a job.
fn rules(job: Job) -> Result<Rules, Error> {
    let mut rules: Rules = system_calls::allowed(job).into_iter().map(|call| (call, Vec::new())).collect();
    let process = u64::from(std::process::id());
    let threads = SeccompCmpOp::MaskedEq(CLONE_BITS);
    rules.insert(libc::SYS_clone, vec![rule(vec![is(0, threads, libc::CLONE_THREAD as u64)?])?]);
    // A process may abort, and signal its own threads.
    rules.insert(libc::SYS_tgkill, vec![rule(vec![is(0, SeccompCmpOp::Eq, process)?])?]);
    rules.insert(libc::SYS_kill, vec![rule(vec![is(0, SeccompCmpOp::Eq, process)?])?]);
    let limits = [0, process].map(|whose| rule(vec![is(0, SeccompCmpOp::Eq, whose)?]));
    rules.insert(libc::SYS_prlimit64, limits.into_iter().collect::<Result<_, _>>()?);
    let mut prctl = one_of(0, PRCTL)?;
    prctl.push(rule(vec![is(0, SeccompCmpOp::Eq, PR_SET_DUMPABLE)?, is(1, SeccompCmpOp::Eq, 0)?])?);
    rules.insert(libc::SYS_prctl, prctl);

    let mut ioctl = one_of(1, &[TERMINAL, QUESTIONS].concat())?;
    ioctl.extend(of_mounts()?);
    match job {
        Job::Read | Job::Mount => {}
        Job::Extract | Job::Serve => ioctl.extend(one_of(1, CHANGES)?),
    }
    rules.insert(libc::SYS_ioctl, ioctl);

    rules.insert(libc::SYS_openat, opening(job, 2)?);
    #[cfg(target_arch = "x86_64")]
    rules.insert(libc::SYS_open, opening(job, 1)?);
    Ok(rules)
}

/// Returns rules for the ioctls of mounts.
fn of_mounts() -> Result<Vec<SeccompRule>, Error> {
    MOUNTS.iter().map(|kind| rule(vec![is(1, SeccompCmpOp::MaskedEq(TYPE_MASK), *kind)?])).collect()
}

/// Returns the rules for opening files, with the flags in this argument.
fn opening(job: Job, flags: u8) -> Result<Vec<SeccompRule>, Error> {
    let none_of = |bits: u64| rule(vec![is(flags, SeccompCmpOp::MaskedEq(bits | TEMPORARY), 0)?]);
    Ok(match job {
        Job::Read => vec![none_of(WRITING)?],
        // The image, for writing.
        Job::Serve => vec![none_of(MAKING)?],
        Job::Extract | Job::Mount => Vec::new(),
    })
}

fn architecture() -> Result<TargetArch, Error> {
    TargetArch::try_from(std::env::consts::ARCH).map_err(|_| "not on this processor".into())
}

fn program(rules: Rules, otherwise: SeccompAction, matched: SeccompAction) -> Result<BpfProgram, Error> {
    Ok(SeccompFilter::new(rules, otherwise, matched, architecture()?)?.try_into()?)
}

/// Puts the answer to all newer calls in front of a program. As rules they would be most of its
/// instructions, and the kernel runs a new filter once for each call that it knows.
///
/// It comes before the check of the architecture, which [`allow_only`]'s other instructions do: a
/// foreign call with one of these numbers fails with `ENOSYS`, too.
fn with_newer(answer: SeccompAction, program: BpfProgram) -> BpfProgram {
    /// `BPF_LD | BPF_W | BPF_ABS`, `BPF_JMP | BPF_JGE | BPF_K`, `BPF_JMP | BPF_JGT | BPF_K` and
    /// `BPF_RET | BPF_K`.
    const LOAD: u16 = 0x20;
    const JUMP_FROM: u16 = 0x35;
    const JUMP_ABOVE: u16 = 0x25;
    const RETURN: u16 = 0x06;
    let step = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    let first = vec![
        // The number of the call is the first field of `struct seccomp_data`.
        step(LOAD, 0, 0, 0),
        step(JUMP_FROM, 0, 2, *NEWER.start() as u32),
        step(JUMP_ABOVE, 1, 0, *NEWER.end() as u32),
        step(RETURN, 0, 0, answer.into()),
    ];
    [first, program].concat()
}

fn errno(number: i32) -> SeccompAction {
    SeccompAction::Errno(number.unsigned_abs())
}

/// Leaves all threads with the calls of `job` only.
pub(crate) fn allow_only(job: Job, mode: Mode) -> Result<String, Error> {
    let refused = match mode {
        Mode::Kill => SeccompAction::KillProcess,
        Mode::On | Mode::Off => errno(libc::EPERM),
    };
    let missing = errno(libc::ENOSYS);
    let substituted = SUBSTITUTED.iter().map(|call| (*call, Vec::new())).collect();
    let substituted = program(substituted, SeccompAction::Allow, missing.clone())?;
    apply_filter_all_threads(&with_newer(missing, substituted))?;
    let rules = rules(job)?;
    let count = rules.len();
    let allowed = program(rules, refused, SeccompAction::Allow)?;
    // The last of several filters gives the errno, so this one lets newer calls pass.
    apply_filter_all_threads(&with_newer(SeccompAction::Allow, allowed))?;
    Ok(format!("with {count} calls"))
}

/// Takes the calls from all threads that `job` needs no more. They fail in any mode: libraries try
/// some of them and go on without. `opens` is as in [`system_calls::sealed`].
pub(crate) fn refuse(job: Job, opens: bool) -> Result<String, Error> {
    let mut rules: Rules =
        system_calls::sealed(job, opens).into_iter().map(|call| (call, Vec::new())).collect();
    if job == Job::Read {
        rules.insert(libc::SYS_ioctl, of_mounts()?);
    }
    let count = rules.len();
    apply_filter_all_threads(&program(rules, SeccompAction::Allow, errno(libc::EPERM))?)?;
    Ok(format!("without {count} more"))
}
