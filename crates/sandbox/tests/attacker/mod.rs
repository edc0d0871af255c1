//! The attacker: code that has taken over a process of Papilio.
//!
//! Owns [`run`], which takes the steps of the sandbox, tries everything, and prints the errors. The
//! arguments are harmless where the kernel would not refuse the call: they name what does not
//! exist, or have values that are wrong.

use papilio_sandbox::{Job, Mode, Sandbox};
use std::ffi::CString;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Another user than root.
const OTHER: libc::uid_t = 65534;

/// Makes a system call, and returns the error, 0 for success.
macro_rules! call {
    ($number:expr $(, $argument:expr)*) => {{
        // SAFETY: each argument is a number, or a pointer to memory that outlives the call and is
        // as large as the kernel expects.
        let result = unsafe { libc::syscall($number $(, $argument)*) };
        errno_of(result)
    }};
}

fn errno_of(result: libc::c_long) -> i32 {
    if result >= 0 { 0 } else { std::io::Error::last_os_error().raw_os_error().unwrap_or(-1) }
}

fn variable(name: &str) -> String {
    std::env::var(format!("PAPILIO_ATTACK_{name}")).unwrap()
}

fn text(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

/// Attacks that the server of a mount of root refuses.
const LOST_BY_MOUNTS: [&str; 45] = [
    "acct",
    "add-key",
    "bind-udp",
    "bpf",
    "chown-foreign",
    "chroot",
    "clock-adjtime",
    "clock-settime",
    "connect-abstract",
    "connect-tcp",
    "connect-udp",
    "delete-module",
    "execve",
    "execveat",
    "fanotify",
    "finit-module",
    "init-module",
    "kcmp",
    "kexec",
    "keyctl",
    "listen",
    "memfd",
    "mkfifo",
    "mknod",
    "move-pages",
    "msgget",
    "perf-event",
    "pivot-root",
    "process-madvise",
    "process-vm-read",
    "process-vm-write",
    "ptrace-attach",
    "quotactl",
    "reboot",
    "request-key",
    "sethostname",
    "setuid",
    "socket-netlink",
    "socket-packet",
    "socket-tcp",
    "socket-udp",
    "socket-unix",
    "swapon",
    "syslog",
    "userfaultfd",
];

/// The attacker's knowledge and means.
struct Attacker {
    job: Option<Job>,
    folder: PathBuf,
    image: File,
    parent: libc::c_long,
    sockets: [libc::c_long; 3],
}

/// Becomes the user, takes the steps, and attacks.
pub fn run(job: &str) {
    if variable("USER") == "other" {
        // SAFETY: the calls change this process only, and take numbers.
        let changed = unsafe {
            libc::setgroups(0, std::ptr::null()) == 0 && libc::setgid(OTHER) == 0 && libc::setuid(OTHER) == 0
        };
        assert!(changed || !super::is_root(), "cannot become another user");
    }
    let folder = PathBuf::from(variable("FOLDER"));
    // A job that reads files later, such as the objects of a repository.
    let reads_later = job == super::READS_LATER;
    let job = if reads_later { Job::Read.name() } else { job };
    let job = Job::ALL.into_iter().find(|known| known.name() == job);
    let image = File::open(folder.join("image")).unwrap();
    // SAFETY: numbers only.
    let sockets = [libc::SOCK_STREAM, libc::SOCK_DGRAM, 0].map(|kind| unsafe {
        match kind {
            0 => libc::syscall(libc::SYS_socket, libc::AF_UNIX, libc::SOCK_STREAM, 0),
            kind => libc::syscall(libc::SYS_socket, libc::AF_INET, kind, 0),
        }
    });
    // SAFETY: it has no preconditions.
    let parent = libc::c_long::from(unsafe { libc::getppid() });
    let attacker = Attacker { job, folder, image, parent, sockets };
    if let Some(job) = job {
        let mut sandbox = Sandbox::for_job(job, Mode::On);
        if job == Job::Extract {
            sandbox = sandbox.writes_below(&attacker.folder.join("target"));
        }
        if reads_later {
            sandbox = sandbox.reads(&attacker.folder.join("target"));
        }
        println!("entered: {}", sandbox.enter());
        // A thread that runs already when the second step comes. Until Linux 7.0, Landlock leaves
        // it out, so a job that opens files later starts its threads afterwards.
        let (sealed, is_sealed) = std::sync::mpsc::channel::<()>();
        let early = &attacker;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                is_sealed.recv().unwrap();
                let all = if job == Job::Read && !reads_later { early.files() } else { Vec::new() };
                all.iter().for_each(|(name, errno)| println!("attack: early-{name} {errno}"));
            });
            println!("sealed: {}", sandbox.seal(false));
            sealed.send(()).unwrap();
        });
    }
    attacker.works();
    if reads_later {
        let target = attacker.folder.join("target");
        assert_eq!(std::fs::read(target.join("object")).unwrap(), [7; 4096]);
        assert_eq!(std::fs::read_dir(&target).unwrap().count(), 1);
        assert!(std::fs::write(target.join("object"), b"changed").is_err());
        assert!(std::fs::write(target.join("other"), b"new").is_err());
    }
    // Threads that start later are confined, too.
    std::thread::scope(|scope| {
        scope.spawn(|| attacker.tries());
    });
}

impl Attacker {
    fn path(&self, name: &str) -> CString {
        text(&self.folder.join(name))
    }

    /// Does what the job consists of.
    fn works(&self) {
        use std::os::unix::fs::FileExt;
        let mut bytes = [0; 4096];
        self.image.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, [7; 4096]);
        let large = vec![1_u8; 4 << 20];
        assert_eq!(large.iter().filter(|byte| **byte == 1).count(), 4 << 20);
        assert!(std::thread::spawn(|| std::time::Instant::now().elapsed().as_secs() < 3600).join().unwrap());
        if matches!(self.job, Some(Job::Extract | Job::Mount) | None) {
            let made = self.folder.join("target/made");
            std::fs::create_dir(&made).unwrap();
            std::fs::write(made.join("file"), b"content").unwrap();
            std::fs::rename(made.join("file"), self.folder.join("target/file")).unwrap();
            std::os::unix::fs::symlink("/etc/shadow", made.join("link")).unwrap();
            let file = File::open(self.folder.join("target/file")).unwrap();
            file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o640)).unwrap();
            assert_eq!(std::fs::read(self.folder.join("target/file")).unwrap(), b"content");
            std::fs::remove_dir_all(&made).unwrap();
        }
        println!("job: works");
    }

    fn tries(&self) {
        let mut all = self.files();
        all.extend(self.network());
        all.extend(self.processes());
        all.extend(self.machine());
        for (name, errno) in all {
            let kind = if self.is_of_job(name) { "needed" } else { "attack" };
            println!("{kind}: {name} {errno}");
        }
    }

    /// Whether the job needs this, or keeps it. docs/sandbox.md lists these.
    fn is_of_job(&self, name: &str) -> bool {
        match self.job {
            None | Some(Job::Read) => false,
            Some(Job::Extract) => name == "flags-of-image",
            Some(Job::Serve) => ["flags-of-image", "sendto-udp", "setsockopt"].contains(&name),
            Some(Job::Mount) => !LOST_BY_MOUNTS.contains(&name),
        }
    }

    fn files(&self) -> Vec<(&'static str, i32)> {
        let at = libc::AT_FDCWD;
        let (image, secret, victim) = (self.path("image"), self.path("secret"), self.path("victim"));
        let new = |name: &str| self.path(&format!("beside/{name}"));
        let reads = libc::O_RDONLY | libc::O_CLOEXEC;
        let open = |path: &CString, flags: i32| call!(libc::SYS_openat, at, path.as_ptr(), flags, 0o600);
        // struct open_how: flags, mode, resolve.
        let how = [0_u64; 3];
        let handle = [0_u64; 32];
        let times = [libc::timespec { tv_sec: 1, tv_nsec: 0 }; 2];
        // FS_IOC_SETFLAGS sets what is set already: nothing.
        let flags = 0_i64;
        let mut all = vec![
            ("open-secret", open(&secret, reads)),
            ("open-passwd", open(&c"/etc/passwd".to_owned(), reads)),
            ("open-shadow", open(&c"/etc/shadow".to_owned(), reads)),
            ("write-beside", open(&new("file"), libc::O_CREAT | libc::O_WRONLY)),
            ("overwrite-image", open(&image, libc::O_RDWR)),
            ("open-temporary", open(&self.path("beside"), libc::O_TMPFILE | libc::O_RDWR)),
            ("open-openat2", call!(libc::SYS_openat2, at, secret.as_ptr(), &raw const how, 24)),
            ("open-by-handle", call!(libc::SYS_open_by_handle_at, at, &raw const handle, 0)),
            ("name-to-handle", call!(libc::SYS_name_to_handle_at, at, victim.as_ptr(), 0, 0, 0)),
            ("open-memory", open(&text(Path::new(&format!("/proc/{}/mem", self.parent))), libc::O_RDWR)),
            ("truncate", call!(libc::SYS_truncate, self.path("beside/none").as_ptr(), 0)),
            ("link", call!(libc::SYS_linkat, at, victim.as_ptr(), at, new("link").as_ptr(), 0)),
            ("symlink", call!(libc::SYS_symlinkat, c"/etc".as_ptr(), at, new("symlink").as_ptr())),
            ("mkdir", call!(libc::SYS_mkdirat, at, new("directory").as_ptr(), 0o755)),
            ("mknod", call!(libc::SYS_mknodat, at, new("device").as_ptr(), libc::S_IFCHR | 0o600, 0x103)),
            ("mkfifo", call!(libc::SYS_mknodat, at, new("pipe").as_ptr(), libc::S_IFIFO | 0o600, 0)),
            ("chmod-foreign", call!(libc::SYS_fchmodat, at, secret.as_ptr(), 0o666)),
            ("fchmodat-foreign", call!(452, at, secret.as_ptr(), 0o666, 0)),
            ("chown-foreign", call!(libc::SYS_fchownat, at, secret.as_ptr(), OTHER, OTHER, 0)),
            ("utimes-foreign", call!(libc::SYS_utimensat, at, secret.as_ptr(), times.as_ptr(), 0)),
            (
                "setxattr-foreign",
                call!(libc::SYS_setxattr, secret.as_ptr(), c"trusted.papilio".as_ptr(), c"1".as_ptr(), 1, 0),
            ),
            ("rename", call!(libc::SYS_renameat2, at, victim.as_ptr(), at, new("renamed").as_ptr(), 0)),
            ("unlink", call!(libc::SYS_unlinkat, at, image.as_ptr(), 0)),
            (
                "flags-of-image",
                call!(libc::SYS_ioctl, self.image.as_raw_fd(), 0x4008_6602_u64, &raw const flags),
            ),
            ("inotify", call!(libc::SYS_inotify_init1, 0)),
            ("fanotify", call!(libc::SYS_fanotify_init, 0, 0)),
            ("memfd", call!(libc::SYS_memfd_create, c"code".as_ptr(), 0)),
            ("quotactl", call!(libc::SYS_quotactl, 0x8000_0700_u32, 0, 0, 0)),
            ("acct", call!(libc::SYS_acct, c"/nowhere".as_ptr())),
        ];
        all.push(("symlink-escape", self.symlink_escape(&secret)));
        #[cfg(target_arch = "x86_64")]
        {
            all.push(("open-old", call!(libc::SYS_open, secret.as_ptr(), libc::O_RDONLY)));
            all.push(("creat", call!(libc::SYS_creat, new("created").as_ptr(), 0o600)));
            all.push(("chmod-old", call!(libc::SYS_chmod, secret.as_ptr(), 0o666)));
            all.push(("unlink-old", call!(libc::SYS_unlink, victim.as_ptr())));
        }
        all
    }

    /// Makes a link inside the directory that the job may write to, and opens the secret by it.
    fn symlink_escape(&self, secret: &CString) -> i32 {
        let link = self.path("target/escape");
        let made = call!(libc::SYS_symlinkat, secret.as_ptr(), libc::AT_FDCWD, link.as_ptr());
        if made != 0 {
            assert!(self.job != Some(Job::Extract), "the job makes links there");
            return made;
        }
        call!(libc::SYS_openat, libc::AT_FDCWD, link.as_ptr(), libc::O_RDWR)
    }

    fn network(&self) -> Vec<(&'static str, i32)> {
        let [tcp, udp, unix] = self.sockets;
        let address = |port: &str| {
            let mut bytes = [0_u8; 16];
            bytes[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
            bytes[2..4].copy_from_slice(&variable(port).parse::<u16>().unwrap().to_be_bytes());
            bytes[4..8].copy_from_slice(&[127, 0, 0, 1]);
            bytes
        };
        let (to_tcp, to_udp) = (address("TCP"), address("UDP"));
        let mut abstract_name = (libc::AF_UNIX as u16).to_ne_bytes().to_vec();
        abstract_name.push(0);
        abstract_name.extend_from_slice(variable("UNIX").as_bytes());
        let anywhere = [libc::AF_INET as u8, 0, 0, 0, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
        let (mut pair, one) = ([0_i32; 2], 1_i32);
        let kind = |family: i32, kind: i32| call!(libc::SYS_socket, family, kind, 0);
        vec![
            ("socket-tcp", kind(libc::AF_INET, libc::SOCK_STREAM)),
            ("socket-udp", kind(libc::AF_INET, libc::SOCK_DGRAM)),
            ("socket-unix", kind(libc::AF_UNIX, libc::SOCK_STREAM)),
            ("socket-netlink", kind(libc::AF_NETLINK, libc::SOCK_RAW)),
            ("socket-packet", kind(libc::AF_PACKET, libc::SOCK_RAW)),
            (
                "socketpair",
                call!(libc::SYS_socketpair, libc::AF_UNIX, libc::SOCK_STREAM, 0, pair.as_mut_ptr()),
            ),
            ("connect-tcp", call!(libc::SYS_connect, tcp, to_tcp.as_ptr(), 16)),
            ("connect-udp", call!(libc::SYS_connect, udp, to_udp.as_ptr(), 16)),
            ("connect-abstract", call!(libc::SYS_connect, unix, abstract_name.as_ptr(), abstract_name.len())),
            ("sendto-udp", call!(libc::SYS_sendto, udp, c"x".as_ptr(), 1, 0, to_udp.as_ptr(), 16)),
            ("bind-udp", call!(libc::SYS_bind, udp, anywhere.as_ptr(), 16)),
            ("listen", call!(libc::SYS_listen, tcp, 1)),
            (
                "setsockopt",
                call!(libc::SYS_setsockopt, udp, libc::SOL_SOCKET, libc::SO_BROADCAST, &raw const one, 4),
            ),
        ]
    }

    fn processes(&self) -> Vec<(&'static str, i32)> {
        let parent = self.parent;
        let nothing = std::ptr::null::<u8>();
        let fork = |flags: i32| {
            // SAFETY: the child only ends; without CLONE_VM it has its own memory.
            let result = unsafe { libc::syscall(libc::SYS_clone, flags | libc::SIGCHLD, 0, 0, 0, 0) };
            if result == 0 {
                // SAFETY: it ends the child at once.
                unsafe { libc::_exit(0) };
            }
            errno_of(result)
        };
        let mut old = [0_u64; 2];
        let parameter = 0_i32;
        // struct clone_args, all zero, of a size that the kernel does not know.
        let clone3 = call!(libc::SYS_clone3, nothing, 1);
        vec![
            ("execve", call!(libc::SYS_execve, c"/nowhere".as_ptr(), 0, 0)),
            ("execveat", call!(libc::SYS_execveat, libc::AT_FDCWD, c"/nowhere".as_ptr(), 0, 0, 0)),
            ("fork", fork(0)),
            ("clone-user-namespace", fork(libc::CLONE_NEWUSER)),
            ("clone-mount-namespace", fork(libc::CLONE_NEWNS)),
            ("clone3", clone3),
            ("unshare-user", call!(libc::SYS_unshare, 0x4000_0000 | 0x1)),
            ("unshare-files", call!(libc::SYS_unshare, libc::CLONE_FILES)),
            ("setns", call!(libc::SYS_setns, -1, 0)),
            ("ptrace-attach", call!(libc::SYS_ptrace, libc::PTRACE_DETACH, parent, 0, 0)),
            ("process-vm-read", call!(libc::SYS_process_vm_readv, parent, 0, 0, 0, 0, 0)),
            ("process-vm-write", call!(libc::SYS_process_vm_writev, parent, 0, 0, 0, 0, 0)),
            ("kill-parent", call!(libc::SYS_kill, parent, 0)),
            ("kill-all", call!(libc::SYS_kill, -1, 0)),
            ("tgkill-parent", call!(libc::SYS_tgkill, parent, parent, 0)),
            ("tkill", call!(libc::SYS_tkill, parent, 0)),
            ("sigqueue", call!(libc::SYS_rt_sigqueueinfo, parent, 0, 0)),
            ("pidfd-open", call!(libc::SYS_pidfd_open, parent, 0)),
            ("pidfd-signal", call!(libc::SYS_pidfd_send_signal, -1, 0, 0, 0)),
            ("pidfd-getfd", call!(libc::SYS_pidfd_getfd, -1, 0, 0)),
            ("kcmp", call!(libc::SYS_kcmp, parent, parent, 0, 0, 0)),
            ("process-madvise", call!(libc::SYS_process_madvise, -1, 0, 0, 0, 0)),
            ("move-pages", call!(libc::SYS_move_pages, parent, 0, 0, 0, 0, 0)),
            ("prlimit-parent", call!(libc::SYS_prlimit64, parent, libc::RLIMIT_CORE, 0, old.as_mut_ptr())),
            ("setpriority", call!(libc::SYS_setpriority, libc::PRIO_PROCESS, 0, 0)),
            (
                "sched-setscheduler",
                call!(libc::SYS_sched_setscheduler, 0, libc::SCHED_OTHER, &raw const parameter),
            ),
            ("setsid", call!(libc::SYS_setpgid, 0, 0)),
            ("setuid", call!(libc::SYS_setuid, 0)),
            ("setresuid", call!(libc::SYS_setresuid, -1, -1, -1)),
            ("setgid", call!(libc::SYS_setgid, 0)),
            ("setgroups", call!(libc::SYS_setgroups, 0, 0)),
            ("setfsuid", call!(libc::SYS_setfsuid, 0)),
            ("capset", call!(libc::SYS_capset, nothing, nothing)),
            ("personality", call!(libc::SYS_personality, 0)),
            ("dumpable", call!(libc::SYS_prctl, libc::PR_SET_DUMPABLE, 1, 0, 0, 0)),
            ("prctl-memory", call!(libc::SYS_prctl, libc::PR_SET_MM, 0, 0, 0, 0)),
            ("seccomp", call!(libc::SYS_seccomp, 99, 0, 0)),
            ("landlock", call!(libc::SYS_landlock_create_ruleset, 0, 0, 1)),
        ]
    }

    fn machine(&self) -> Vec<(&'static str, i32)> {
        let nowhere = c"/nowhere".as_ptr();
        let nothing = std::ptr::null::<u8>();
        let typed = c"x".as_ptr();
        vec![
            ("mount", call!(libc::SYS_mount, nowhere, nowhere, nothing, 4096, 0)),
            ("umount", call!(libc::SYS_umount2, nowhere, 0)),
            ("pivot-root", call!(libc::SYS_pivot_root, nowhere, nowhere)),
            ("chroot", call!(libc::SYS_chroot, nowhere)),
            ("fsopen", call!(libc::SYS_fsopen, c"none-such".as_ptr(), 0)),
            ("open-tree", call!(libc::SYS_open_tree, -1, nowhere, 0)),
            ("move-mount", call!(libc::SYS_move_mount, -1, nowhere, -1, nowhere, 0)),
            ("mount-setattr", call!(libc::SYS_mount_setattr, -1, nowhere, 0, 0, 0)),
            ("keyctl", call!(libc::SYS_keyctl, 0, -3, 0, 0, 0)),
            ("add-key", call!(libc::SYS_add_key, c"none-such".as_ptr(), typed, 0, 0, -3)),
            ("request-key", call!(libc::SYS_request_key, c"none-such".as_ptr(), typed, 0, 0)),
            ("bpf", call!(libc::SYS_bpf, 9999, 0, 0)),
            ("perf-event", call!(libc::SYS_perf_event_open, 0, 0, -1, -1, 0)),
            ("userfaultfd", call!(libc::SYS_userfaultfd, 0x4000_0000)),
            ("io-uring", call!(libc::SYS_io_uring_setup, 0, 0)),
            ("init-module", call!(libc::SYS_init_module, 0, 0, 0)),
            ("finit-module", call!(libc::SYS_finit_module, -1, 0, 0)),
            ("delete-module", call!(libc::SYS_delete_module, c"none_such".as_ptr(), libc::O_NONBLOCK)),
            ("kexec", call!(libc::SYS_kexec_load, 0, 99_999, 0, 0)),
            ("reboot", call!(libc::SYS_reboot, 1, 2, 3, 0)),
            ("swapon", call!(libc::SYS_swapon, nowhere, 0)),
            ("swapoff", call!(libc::SYS_swapoff, nowhere)),
            ("clock-settime", call!(libc::SYS_clock_settime, 9999, 0)),
            ("settimeofday", call!(libc::SYS_settimeofday, 1, 0)),
            ("clock-adjtime", call!(libc::SYS_clock_adjtime, 9999, 0)),
            ("sethostname", call!(libc::SYS_sethostname, 0, -1)),
            ("setdomainname", call!(libc::SYS_setdomainname, 0, -1)),
            ("syslog", call!(libc::SYS_syslog, 10, 0, 0)),
            ("shmget", call!(libc::SYS_shmget, 0, 4096, 0)),
            ("semget", call!(libc::SYS_semget, 0, 0, 0)),
            ("msgget", call!(libc::SYS_msgget, 0, 0)),
            ("mq-open", call!(libc::SYS_mq_open, c"none-such".as_ptr(), 0, 0, 0)),
            ("type-into-terminal", call!(libc::SYS_ioctl, 0, 0x5412, typed)),
        ]
    }
}
