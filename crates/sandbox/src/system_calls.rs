//! The system calls of each job.
//!
//! Owns the lists from which [`filter`](crate::filter) makes programs for the kernel. Names are the
//! kernel's; a processor that lacks a call has no line for it.
//!
//! A list has the needs of a job, by the code and by runs of the tests under `Mode::Kill`. Never in
//! any of them:
//! - `execve`, `ptrace`, `process_vm_*`, `kill` of others, `unshare`, `setns`, `setuid`,
//! - the `mount` family, `open_by_handle_at`, the keyring, `bpf`, `kexec_*`, `*_module`,
//! - `socket`, `connect`, `perf_event_open`, `userfaultfd`, the setting of clocks.
//!
//! `io_uring_setup` fails as if the kernel did not have it: requests in a ring pass no filter.
//!
//! The server of a mount has a list of calls that it loses instead.

use crate::Job;
use libc::c_long;

// The library lacks these names on some processors.
#[cfg(target_arch = "x86_64")]
const SYNC_FILE_RANGE: c_long = libc::SYS_sync_file_range;
#[cfg(not(target_arch = "x86_64"))]
const SYNC_FILE_RANGE: c_long = 84;
#[cfg(target_arch = "aarch64")]
const RENAMEAT: c_long = 38;

/// Calls that work on what the process has: memory, threads, time, open descriptors.
const OWN: &[c_long] = &[
    libc::SYS_brk,
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    // Refused by a filter of its own, with an errno that lets the C library use `clone`.
    libc::SYS_clone3,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_copy_file_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_eventfd2,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_fadvise64,
    libc::SYS_fcntl,
    libc::SYS_fdatasync,
    libc::SYS_flock,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_futex,
    libc::SYS_get_robust_list,
    libc::SYS_getcpu,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getgroups,
    libc::SYS_getitimer,
    libc::SYS_getpgid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getpriority,
    libc::SYS_getrandom,
    libc::SYS_getresgid,
    libc::SYS_getresuid,
    libc::SYS_getrusage,
    libc::SYS_getsid,
    libc::SYS_gettid,
    libc::SYS_gettimeofday,
    libc::SYS_getuid,
    // As clone3: the device then uses threads.
    libc::SYS_io_uring_setup,
    libc::SYS_lseek,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_mincore,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_msync,
    libc::SYS_munlock,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_pipe2,
    libc::SYS_ppoll,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_pselect6,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_read,
    libc::SYS_readahead,
    libc::SYS_readv,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigsuspend,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_yield,
    libc::SYS_sendfile,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_sigaltstack,
    libc::SYS_signalfd4,
    libc::SYS_splice,
    // A mount is synced before its device is read.
    libc::SYS_syncfs,
    libc::SYS_sysinfo,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_gettime,
    libc::SYS_timerfd_settime,
    libc::SYS_umask,
    libc::SYS_uname,
    libc::SYS_write,
    libc::SYS_writev,
];

#[cfg(target_arch = "x86_64")]
const OWN_LEGACY: &[c_long] = &[
    libc::SYS_arch_prctl,
    libc::SYS_dup2,
    libc::SYS_epoll_wait,
    libc::SYS_getpgrp,
    libc::SYS_pause,
    libc::SYS_pipe,
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_time,
];
#[cfg(not(target_arch = "x86_64"))]
const OWN_LEGACY: &[c_long] = &[];

/// Calls that look at paths and change nothing. `openat` has conditions.
const LOOK: &[c_long] = &[
    libc::SYS_chdir,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fchdir,
    libc::SYS_fgetxattr,
    libc::SYS_flistxattr,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_getxattr,
    libc::SYS_lgetxattr,
    libc::SYS_listxattr,
    libc::SYS_llistxattr,
    libc::SYS_newfstatat,
    libc::SYS_readlinkat,
    libc::SYS_statfs,
    libc::SYS_statx,
];

#[cfg(target_arch = "x86_64")]
const LOOK_LEGACY: &[c_long] = &[libc::SYS_access, libc::SYS_lstat, libc::SYS_readlink, libc::SYS_stat];
#[cfg(not(target_arch = "x86_64"))]
const LOOK_LEGACY: &[c_long] = &[];

/// Calls that take rights away, which the second step needs.
const GIVE_UP: &[c_long] = &[
    libc::SYS_capget,
    libc::SYS_capset,
    libc::SYS_landlock_add_rule,
    libc::SYS_landlock_create_ruleset,
    libc::SYS_landlock_restrict_self,
    libc::SYS_seccomp,
];

/// Calls that make, change and remove files.
const CHANGE_FILES: &[c_long] = &[
    libc::SYS_fallocate,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_fremovexattr,
    libc::SYS_fsetxattr,
    libc::SYS_linkat,
    libc::SYS_lremovexattr,
    libc::SYS_lsetxattr,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_openat2,
    libc::SYS_removexattr,
    libc::SYS_renameat2,
    libc::SYS_setxattr,
    libc::SYS_symlinkat,
    SYNC_FILE_RANGE,
    libc::SYS_unlinkat,
    libc::SYS_utimensat,
];

#[cfg(target_arch = "x86_64")]
const CHANGE_FILES_LEGACY: &[c_long] = &[
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_link,
    libc::SYS_mkdir,
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_rmdir,
    libc::SYS_symlink,
    libc::SYS_unlink,
];
#[cfg(target_arch = "aarch64")]
const CHANGE_FILES_LEGACY: &[c_long] = &[RENAMEAT];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const CHANGE_FILES_LEGACY: &[c_long] = &[];

/// Calls of a process that has a listening socket, or sockets of clients.
const SERVE: &[c_long] = &[
    libc::SYS_accept,
    libc::SYS_accept4,
    // Images are changed and get holes.
    libc::SYS_fallocate,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    SYNC_FILE_RANGE,
    // The file of the socket is removed at the end.
    libc::SYS_unlinkat,
];

#[cfg(target_arch = "x86_64")]
const SERVE_LEGACY: &[c_long] = &[libc::SYS_unlink];
#[cfg(not(target_arch = "x86_64"))]
const SERVE_LEGACY: &[c_long] = &[];

/// Calls that the server of a mount has no use for. It keeps all others: for ioctls it looks into
/// its callers, opens devices, and mounts and unmounts.
const NEVER_MOUNT: &[c_long] = &[
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_adjtimex,
    libc::SYS_bind,
    libc::SYS_bpf,
    libc::SYS_chroot,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_connect,
    libc::SYS_delete_module,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_fanotify_init,
    libc::SYS_finit_module,
    libc::SYS_init_module,
    libc::SYS_kcmp,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_listen,
    libc::SYS_memfd_create,
    libc::SYS_mknodat,
    libc::SYS_move_pages,
    libc::SYS_mq_open,
    libc::SYS_msgget,
    libc::SYS_perf_event_open,
    libc::SYS_personality,
    libc::SYS_pidfd_send_signal,
    libc::SYS_pivot_root,
    libc::SYS_process_madvise,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_quotactl,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_semget,
    libc::SYS_setdomainname,
    libc::SYS_setfsgid,
    libc::SYS_setfsuid,
    libc::SYS_setgid,
    libc::SYS_setgroups,
    libc::SYS_sethostname,
    libc::SYS_setregid,
    libc::SYS_setresgid,
    libc::SYS_setresuid,
    libc::SYS_setreuid,
    libc::SYS_settimeofday,
    libc::SYS_setuid,
    libc::SYS_shmget,
    libc::SYS_socket,
    libc::SYS_socketpair,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_tkill,
    libc::SYS_userfaultfd,
];

/// Returns the calls of a job that need no look at their arguments.
pub(crate) fn allowed(job: Job) -> Vec<c_long> {
    let mut lists = vec![OWN, OWN_LEGACY, LOOK, LOOK_LEGACY, GIVE_UP];
    match job {
        Job::Read => {}
        Job::Extract => lists.extend([CHANGE_FILES, CHANGE_FILES_LEGACY]),
        Job::Serve => lists.extend([SERVE, SERVE_LEGACY]),
        // It has no list: see `NEVER_MOUNT`.
        Job::Mount => {}
    }
    lists.concat()
}

/// Returns the calls that a job needs no more once its devices are open. With `opens`, a job that
/// reads goes on opening files for that.
pub(crate) fn sealed(job: Job, opens: bool) -> Vec<c_long> {
    match job {
        Job::Read if opens => [LOOK_PATHS, LOOK_LEGACY, GIVE_UP].concat(),
        Job::Read => [OPEN, LOOK_PATHS, LOOK_LEGACY, GIVE_UP].concat(),
        Job::Extract | Job::Serve => GIVE_UP.to_vec(),
        Job::Mount => NEVER_MOUNT.to_vec(),
    }
}

/// The calls that open files; the filter has conditions for them.
#[cfg(target_arch = "x86_64")]
const OPEN: &[c_long] = &[libc::SYS_open, libc::SYS_openat];
#[cfg(not(target_arch = "x86_64"))]
const OPEN: &[c_long] = &[libc::SYS_openat];

/// The calls of [`LOOK`] that take paths. Those for descriptors stay.
const LOOK_PATHS: &[c_long] = &[
    libc::SYS_chdir,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fchdir,
    libc::SYS_getxattr,
    libc::SYS_lgetxattr,
    libc::SYS_listxattr,
    libc::SYS_llistxattr,
    libc::SYS_readlinkat,
    libc::SYS_statfs,
];
