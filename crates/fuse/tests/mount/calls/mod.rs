//! Random system calls of three users on a mounted Papilio and on the kernel's Btrfs, with every
//! result compared.
//!
//! `SEEK_DATA` is not among them: the kernel counts some holes as data, such as the last block of a
//! file that gets preallocated space after its end.
//!
//! A history is a list of calls in a directory of its own. One that differs is shortened, in new
//! directories of the same two mounts, until no call can be left out. Afterwards both trees are
//! walked and compared; also that of the image once the kernel has mounted it.
//!
//! `PAPILIO_CALLS_SEED` is the first seed, `PAPILIO_CALLS` the number of histories.

mod call;
mod processes;
mod side;

use crate::server::{Mount, NEEDS, check, make_image};
use call::{Call, Step};
use fastrand::Rng;
use papilio_oracle::{FileSystemSpec, ImageSet, Need, Scratch, require};
use processes::Callers;
use side::{Side, walk};
use std::path::Path;

/// Calls of a history.
const LENGTH: usize = 300;
/// Histories of one pair of mounts.
const OF_MOUNT: u64 = 40;
const SIZE: u64 = 2 << 30;

/// Processes of a history of several.
const PROCESSES: usize = 8;

/// Returns the steps of a seed. Those of several processes also have locks and mappings.
fn history(seed: u64, protects: bool, processes: usize) -> Vec<Step> {
    let mut random = Rng::with_seed(seed);
    // From two processes on, as the seed says.
    let processes = if processes > 1 { 2 + seed as usize % (processes - 1) } else { 1 };
    (0..LENGTH).map(|number| Step::random(&mut random, protects, number, processes)).collect()
}

/// Gives this thread its own umask, and clears it.
fn own_umask() {
    // SAFETY: system calls without pointers.
    unsafe {
        assert_eq!(libc::unshare(libc::CLONE_FS), 0);
        libc::umask(0);
    }
}

/// The two mounts, and the number of directories in each.
struct Pair<'a> {
    ours: &'a Path,
    theirs: &'a Path,
    directories: usize,
    /// The processes that make the calls; none for this process.
    callers: Callers,
    seed: u64,
}

impl Pair<'_> {
    /// Runs a history on both. Returns the first call with different results, and these.
    fn run(&mut self, history: &[Step]) -> Option<(usize, String)> {
        self.directories += 1;
        let name = format!("h{}", self.directories);
        if self.callers.len() > 0 {
            self.callers.begin(self.seed, &name);
            return find_difference(history, |step| self.callers.run(step));
        }
        let (mut ours, mut theirs) = (Side::new(self.ours, &name), Side::new(self.theirs, &name));
        find_difference(history, |step| (ours.run(step), theirs.run(step)))
    }

    /// Leaves out calls that a difference does not need.
    fn shorten(&mut self, mut history: Vec<Step>, mut difference: String) -> (Vec<Step>, String) {
        let mut size = history.len() / 2;
        while size > 0 {
            let mut start = 0;
            while start < history.len() {
                let end = (start + size).min(history.len());
                let shorter = [&history[..start], &history[end..]].concat();
                match self.run(&shorter) {
                    Some((last, found)) => {
                        history = shorter;
                        history.truncate(last + 1);
                        difference = found;
                    }
                    None => start = end,
                }
            }
            size /= 2;
        }
        (history, difference)
    }
}

/// Runs steps until both sides differ. Returns that step, and the results.
fn find_difference(
    history: &[Step],
    mut run: impl FnMut(&Step) -> (String, String),
) -> Option<(usize, String)> {
    history.iter().enumerate().find_map(|(number, step)| {
        let (here, there) = run(step);
        let protects = history[..number].iter().any(|step| step.call.protects());
        let alike = here == there || may_differ(step, protects, &here, &there);
        (!alike).then(|| (number, format!("here {here}, there {there}")))
    })
}

/// Returns whether results may differ because the kernel's FUSE does not ask the server. It does
/// not know which inodes are protected, so it finds other reasons to refuse first, answers
/// `access`, and copies nothing from behind the end. It lets only owners set flags, also those of a
/// fifo.
fn may_differ(step: &Step, protects: bool, here: &str, there: &str) -> bool {
    let fails = |answer: &str| answer.starts_with("error");
    let protected = protects && there.starts_with(&format!("error {} ", libc::EPERM));
    match step.call {
        Call::Access(..) | Call::CopyRange(..) if protected => true,
        Call::SetFlags(..) => fails(here) && fails(there),
        // It looks like the request before a write to a file with set-user-id, which is no `chown`.
        Call::Chown(_, None, None) => fails(there),
        _ => protected && fails(here),
    }
}

/// Runs histories on two new file systems. Returns the histories that differ, shortened.
fn on_new_mounts(
    options: &str,
    protects: bool,
    processes: usize,
    seeds: std::ops::Range<u64>,
) -> Vec<String> {
    let scratch = Scratch::new(2 * SIZE).unwrap();
    let spec = FileSystemSpec { device_size: SIZE, ..FileSystemSpec::default() }.make(&scratch).unwrap();
    let kernel = spec.mount().unwrap();
    let image = make_image(&scratch, SIZE);
    let mount = Mount::new(&scratch, &image, options);
    std::fs::set_permissions(mount.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let callers = match processes {
        1 => Callers::default(),
        count => Callers::start(count, mount.path(), kernel.path()),
    };
    let mut pair = Pair { ours: mount.path(), theirs: kernel.path(), directories: 0, callers, seed: 0 };
    let mut failures = Vec::new();
    for seed in seeds {
        pair.seed = seed;
        let history = history(seed, protects, processes);
        let Some((last, difference)) = pair.run(&history) else { continue };
        let (history, difference) = pair.shorten(history[..=last].to_vec(), difference);
        let calls: Vec<_> = history.iter().map(|step| format!("    {step:?}")).collect();
        failures.push(format!("PAPILIO_CALLS_SEED={seed}: {difference}\n{}", calls.join("\n")));
    }
    // Their files are closed, too.
    drop(pair);
    kernel.sync().unwrap();
    let (here, there) = (walk(mount.path()), walk(kernel.path()));
    // Shortened histories leave different trees.
    let all_equal = failures.is_empty();
    if all_equal {
        failures.extend(lines_that_differ("mounted", &here, &there));
    }
    mount.unmount();
    check(&image);
    let again = ImageSet::open(&scratch, vec![image]).mount_read_only().unwrap();
    if all_equal {
        failures.extend(lines_that_differ("mounted by the kernel", &walk(again.path()), &there));
    }
    failures
}

fn lines_that_differ(when: &str, here: &[String], there: &[String]) -> Vec<String> {
    let only = |of: &[String], other: &[String], side: &str| {
        let lines = of.iter().filter(|line| other.binary_search(line).is_err()).take(5);
        lines.map(|line| format!("{when}, only {side}: {line}")).collect::<Vec<_>>()
    };
    [only(here, there, "here"), only(there, here, "there")].concat()
}

fn run(options: &str, protects: bool, processes: usize) {
    let needs = [NEEDS, Need::KERNEL_MOUNT].concat();
    let Some(_) = require(&needs) else { return };
    own_umask();
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (first, count) = (number("PAPILIO_CALLS_SEED").unwrap_or(1), number("PAPILIO_CALLS").unwrap_or(5));
    let mut failures = Vec::new();
    for from in (first..first + count).step_by(OF_MOUNT as usize) {
        failures.extend(on_new_mounts(
            options,
            protects,
            processes,
            from..(from + OF_MOUNT).min(first + count),
        ));
    }
    println!("{count} histories of {LENGTH} calls from seed {first} on: {} differences", failures.len());
    assert!(failures.is_empty(), "{} differences:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn random_calls() {
    run("noatime,allow_other", true, 1);
}

#[test]
fn random_calls_without_the_writeback_cache() {
    run("noatime,allow_other,nowriteback_cache", true, 1);
}

/// Without protected inodes: the server learns of no `open`, where such a flag counts.
#[test]
fn random_calls_with_opens_by_the_kernel() {
    run("noatime,allow_other,opens=kernel", false, 1);
}

/// Two to eight processes in an agreed order, also with locks and shared mappings.
#[test]
fn random_calls_of_processes() {
    run("noatime,allow_other", true, PROCESSES);
}
