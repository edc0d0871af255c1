//! Checks of the machine.
//!
//! Owns [`findings`] and [`facts`].

use super::finding::{CheckState, Finding};
use std::fs;

/// Returns what kind of machine this is. No value names it.
pub(super) fn facts() -> Vec<(&'static str, String)> {
    let kernel = rustix::system::uname();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let mut facts = vec![
        ("host", format!("{} {}", std::env::consts::OS, std::env::consts::ARCH)),
        ("kernel", kernel.release().to_string_lossy().into_owned()),
        ("processors", processors.to_string()),
        ("page size", rustix::param::page_size().to_string()),
    ];
    if let Some(name) = distribution() {
        facts.push(("distribution", name));
    }
    if let Some(memory) = memory() {
        facts.push(("memory", format!("{} MiB", memory >> 20)));
    }
    facts
}

/// Returns the name of the distribution (os-release(5)).
fn distribution() -> Option<String> {
    let text = fs::read_to_string("/etc/os-release").ok()?;
    let name = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(name.trim_matches('"').to_owned())
}

/// Returns the memory that is available, in bytes (proc_meminfo(5)).
fn memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// Checks the machine.
pub(super) fn findings() -> Vec<Finding> {
    let mut findings = vec![images()];
    #[cfg(target_os = "linux")]
    findings.extend(linux::findings());
    #[cfg(not(target_os = "linux"))]
    findings.push(Finding::missing(
        "mount",
        "mounts need FUSE on Linux",
        "all other commands work on image files; papilio serve --nfs makes the files of one a mount",
    ));
    findings.push(sandbox());
    findings.push(descriptors());
    findings
}

fn images() -> Finding {
    let found = match cfg!(feature = "images") {
        true => "raw images and devices, qcow2, VMDK and VHDX, no rights needed",
        false => "raw images and devices only",
    };
    let state = if cfg!(feature = "images") { CheckState::Works } else { CheckState::Limited };
    let advice = (state != CheckState::Works).then_some("build with the feature images");
    Finding { name: "images", state, found: found.to_owned(), advice }
}

/// Checks the parts of the sandbox of commands that read images.
fn sandbox() -> Finding {
    let parts = papilio_sandbox::kernel_parts();
    let shown = |part: &papilio_sandbox::Part| match &part.state {
        Ok(state) => format!("{}: {state}", part.name),
        Err(reason) => format!("no {}: {reason}", part.name),
    };
    let found = parts.iter().map(shown).collect::<Vec<_>>().join("; ");
    let advice = "commands that read images keep more rights than they need: docs/sandbox.md";
    match parts.iter().filter(|part| part.state.is_ok()).count() {
        0 => Finding::missing("sandbox", found, advice),
        some if some < parts.len() => Finding::limited("sandbox", found, advice),
        _ => Finding::works("sandbox", found),
    }
}

fn descriptors() -> Finding {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let shown = |value: Option<u64>| value.map_or("no limit".to_owned(), |value| value.to_string());
    let found = format!("{} open files (at most {})", shown(limit.current), shown(limit.maximum));
    match limit.current.is_some_and(|most| most < 1024) {
        false => Finding::works("descriptors", found),
        true => Finding::limited("descriptors", found, "ulimit -n 1024 or more"),
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use super::*;
    use std::fs::File;
    use std::io::ErrorKind;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    /// The bit of `CAP_SYS_ADMIN` (capabilities(7)).
    const SYS_ADMIN: u64 = 1 << 21;

    pub(super) fn findings() -> Vec<Finding> {
        vec![fuse(), mount(), helpers(), fuse_ring(), io_uring(), kernel_btrfs(), loop_devices()]
    }

    fn opened(path: &str) -> Result<(), ErrorKind> {
        File::options().read(true).write(true).open(path).map(drop).map_err(|error| error.kind())
    }

    fn fuse() -> Finding {
        match opened("/dev/fuse") {
            Ok(()) => Finding::works("fuse", "/dev/fuse can be opened"),
            Err(ErrorKind::PermissionDenied) => Finding::missing(
                "fuse",
                "/dev/fuse may not be opened",
                "in a container: --device /dev/fuse; else let this user read and write it",
            ),
            Err(_) => Finding::missing(
                "fuse",
                "there is no /dev/fuse",
                "modprobe fuse; in a container: --device /dev/fuse. Without mounts, use cp, find, shell",
            ),
        }
    }

    /// Returns whether this process has `CAP_SYS_ADMIN`.
    fn is_administrator() -> bool {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let effective = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
        effective.is_some_and(|bits| bits & SYS_ADMIN != 0)
    }

    /// Returns whether `PATH` has a program that runs as its owner.
    fn has_setuid_program(name: &str) -> bool {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|folder| {
            let found = fs::metadata(folder.join(name));
            found.is_ok_and(|found| found.permissions().mode() & 0o4000 != 0)
        })
    }

    fn mount() -> Finding {
        if is_administrator() {
            return Finding::works("mount", "this user may mount");
        }
        if !has_setuid_program("fusermount3") {
            let advice = "install fuse3 (fusermount3), or mount as root; papilio serve needs neither";
            return Finding::missing("mount", "this user may not mount, and there is no fusermount3", advice);
        }
        let fuse_conf = fs::read_to_string("/etc/fuse.conf").unwrap_or_default();
        match fuse_conf.lines().any(|line| line.trim() == "user_allow_other") {
            true => Finding::works("mount", "through fusermount3, also with allow_other"),
            false => Finding::works("mount", "through fusermount3, for this user only"),
        }
    }

    fn helpers() -> Finding {
        let folders = ["/sbin", "/usr/sbin"];
        match folders.iter().any(|folder| Path::new(folder).join("mount.fuse.papilio").exists()) {
            true => Finding::works("helpers", "mount -t fuse.papilio, fstab(5), and umount(8) that waits"),
            false => Finding::limited(
                "helpers",
                "mount(8) has no helper of Papilio",
                "make install or a package has them; papilio mount and papilio umount need none",
            ),
        }
    }

    fn fuse_ring() -> Finding {
        match fs::read_to_string("/sys/module/fuse/parameters/enable_uring").as_deref().map(str::trim) {
            Ok("Y") => Finding::works("fuse-ring", "transport=ring is possible"),
            Ok(_) => Finding::limited(
                "fuse-ring",
                "FUSE over io_uring is off",
                "echo Y > /sys/module/fuse/parameters/enable_uring, as root",
            ),
            Err(_) => Finding::limited(
                "fuse-ring",
                "this kernel has no FUSE over io_uring",
                "Linux 6.14 and newer have it; mounts work without",
            ),
        }
    }

    fn io_uring() -> Finding {
        let Err(error) = papilio::device::io_uring_available() else {
            return Finding::works("io_uring", "many requests to devices are in flight without threads");
        };
        let switch = fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
        match switch.as_deref().map(str::trim) {
            Ok("0") | Err(_) => Finding::limited(
                "io_uring",
                format!("it is refused: {error}"),
                "containers often forbid it; threads carry the requests instead",
            ),
            Ok(_) => Finding::limited(
                "io_uring",
                format!("it is off: {error}"),
                "sysctl kernel.io_uring_disabled=0; until then threads carry the requests",
            ),
        }
    }

    fn kernel_btrfs() -> Finding {
        let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
        if known.lines().any(|line| line.trim() == "btrfs") {
            return Finding::works("kernel-btrfs", "this kernel mounts Btrfs, too");
        }
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        let modules = format!("/lib/modules/{release}/modules.dep");
        match fs::read_to_string(modules).is_ok_and(|text| text.contains("/btrfs.ko")) {
            true => Finding::limited("kernel-btrfs", "a module that is not loaded", "modprobe btrfs"),
            false => Finding::limited(
                "kernel-btrfs",
                "this kernel has no Btrfs",
                "Papilio needs none: papilio mount does its work",
            ),
        }
    }

    fn loop_devices() -> Finding {
        match opened("/dev/loop-control") {
            Ok(()) => Finding::works("loop", "images can become block devices for other programs"),
            Err(_) => Finding::limited(
                "loop",
                "no loop devices for this user",
                "Papilio opens images by itself; for other programs: papilio serve",
            ),
        }
    }
}
