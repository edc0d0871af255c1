//! Writes after a change of state: a file is open for writing, then its subvolume becomes read-only
//! or is deleted, its flags change, space ends or a device is lost, and the program goes on.
//!
//! Rule: an acknowledged write is stored, or an error is reported at the file that was written and
//! at no other. On a mount, each step has the result that it has on the kernel's Btrfs.
//!
//! An ordinary run tries a few dozen cases. `PAPILIO_LATE_WRITES=2000` tries that many.

mod c_interface;
mod case;
mod descriptor;
pub mod disk;
mod library;
#[path = "../../../../nfs/tests/clients/raw.rs"]
#[allow(dead_code)] // The server's own tests use all of it.
mod nfs_client;

use crate::kernel::KernelMount;
use crate::world::{World, run, succeed};
use case::{Case, Change, Operation, Outcome, Way};
use papilio::{FileSystem, OpenOptions};
use papilio_oracle::Need;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Cases of an ordinary run, on mounts and through the library.
const CASES: u64 = 48;
/// Cases that share a mount.
const BATCH: u64 = 250;

fn cases() -> u64 {
    std::env::var("PAPILIO_LATE_WRITES").map_or(CASES, |number| number.parse().expect("a number of cases"))
}

/// Compares the files of an image with what the cases were told. An error that was reported allows
/// the content before the operation, too.
fn verify(image: &Path, outcomes: &[(Case, Outcome)], who: &str) {
    let fs = FileSystem::open_with(image, &OpenOptions::new()).unwrap();
    for (case, outcome) in outcomes {
        let found = fs.read(case.path()).ok();
        outcome.verify(found.as_deref(), &format!("{who}: {case:?}: {:?}", outcome.steps));
        assert!(fs.read(case.bystander()).unwrap() == case.bystander_content(), "{who}: {case:?}");
    }
    assert!(fs.subvolumes().unwrap().iter().all(|one| !one.is_being_deleted()), "{who}: deleted ones stay");
}

fn is_comparable(case: &Case) -> bool {
    // The kernel's Btrfs ends the program with SIGBUS where a page of a read-only subvolume is
    // first written. FUSE does not ask the server, so the data is stored. How many blocks fit last
    // is another matter, too.
    !(case.is_scarce() || case.way == Way::Mapped && case.change == Change::ReadOnly)
}

/// Performs a case on a mirror of two devices. The second is a file in another mount, whose server
/// is killed. The first one alone then has everything.
fn without_a_device(case: &Case, options: &[&str]) {
    let (Some(world), Some(helper)) = (World::new(crate::world::MOUNT), World::new(crate::world::MOUNT))
    else {
        return;
    };
    helper.mount(&[]);
    let second = helper.at("second.img");
    fs::File::create(&second).unwrap().set_len(256 << 20).unwrap();
    let image = world.image();
    succeed(["mkfs", "-q", "-f", "-d", "raid1", "-m", "raid1", image.to_str().unwrap(), &second]);
    let device = format!("device={second}");
    world.mount(&[options, &["-o", &device]].concat());
    let outcome = descriptor::perform(&world.directory(), case, || helper.kill_server());
    assert!(outcome.steps.iter().all(|(_, error)| error.is_none()), "{case:?}: {:?}", outcome.steps);
    succeed(["filesystem", "sync", world.directory().to_str().unwrap()]);
    world.unmount();
    let fs = FileSystem::open_with(&image, &OpenOptions::new().degraded(true)).unwrap();
    let found = fs.read(case.path()).ok();
    outcome.verify(found.as_deref(), &format!("one device: {case:?}"));
    assert!(fs.read(case.bystander()).unwrap() == case.bystander_content(), "{case:?}");
}

/// Waits until the space of deleted subvolumes is free, then syncs.
fn settle(root: &Path) {
    succeed(["subvolume", "sync", root.to_str().unwrap()]);
    succeed(["filesystem", "sync", root.to_str().unwrap()]);
}

fn batch(world: &World, options: &[&str], numbers: std::ops::Range<u64>) {
    let all = numbers.map(Case::new).filter(Case::is_on_a_mount);
    let (alone, cases): (Vec<_>, Vec<_>) = all.partition(Case::is_alone);
    alone.iter().for_each(|case| without_a_device(case, options));
    let log = world.beside("log");
    let logged = ["--log", log.to_str().unwrap()];
    let on_ours: Vec<_> = {
        world.mount(&[options, &logged].concat());
        let perform = |case| descriptor::perform(&world.directory(), case, || {});
        let outcomes = cases.iter().map(|case| (case.clone(), perform(case))).collect();
        settle(&world.directory());
        world.unmount();
        outcomes
    };
    verify(&world.image(), &on_ours, "our mount");
    // No step has this reason to fail; the log names it.
    let said = fs::read_to_string(&log).unwrap_or_default();
    assert!(!said.contains("input/output error"), "{said}");
    world.assert_clean();
    {
        // The kernel reads the same.
        let _kernel = KernelMount::new(&world.image(), &world.directory(), "ro");
        for (case, outcome) in &on_ours {
            let found = fs::read(world.directory().join(&case.path()[1..])).ok();
            outcome.verify(found.as_deref(), &format!("the kernel reads {case:?}"));
        }
    }
    let image = world.beside("kernel.img");
    fs::File::create(&image).unwrap().set_len(512 << 20).unwrap();
    run("mkfs.btrfs", &["-q", image.to_str().unwrap()]);
    let kernel = KernelMount::new(&image, &world.directory(), "rw");
    for (case, ours) in on_ours.iter().filter(|(case, _)| is_comparable(case)) {
        let theirs = descriptor::perform(&world.directory(), case, || {});
        // The kernel refuses these with EROFS where it has to set a time, and not within the
        // clock's resolution after a write.
        let by_chance = case.change == Change::ReadOnly
            && matches!(case.operation, Operation::Allocate | Operation::PunchHole);
        let from = usize::from(by_chance);
        assert_eq!(ours.steps[from..], theirs.steps[from..], "ours beside the kernel's: {case:?}");
        if by_chance {
            assert_eq!(ours.steps[0].1, Some(libc::EROFS), "{case:?}");
        }
    }
    drop(kernel);
    fs::remove_file(image).unwrap();
}

#[test]
fn what_a_descriptor_accepts_after_a_change_is_stored() {
    let needs = [Need::KERNEL_MOUNT, &[Need::Fuse, Need::Command("btrfs"), Need::Command("mkfs.btrfs")]];
    let all = cases();
    let mut from = 0;
    while from < all {
        let Some(world) = World::new(&needs.concat()) else { return };
        let to = all.min(from + BATCH);
        let options: &[&str] = if from / BATCH % 4 == 3 { &["-o", "nowriteback_cache"] } else { &[] };
        batch(&world, options, from..to);
        from = to;
    }
}

#[test]
fn what_the_library_accepts_after_a_change_is_stored() {
    let all = (0..cases()).map(Case::new).filter(|case| !case.is_on_a_mount());
    let (in_c, others): (Vec<_>, Vec<_>) = all.partition(|case| case.way == Way::C);
    let (alone, together): (Vec<_>, Vec<_>) = others.into_iter().partition(Case::is_alone);
    for (number, cases) in together.chunks(BATCH as usize).enumerate() {
        library::batch(cases, number % 2 == 0);
    }
    for case in &alone {
        library::without_a_device(case);
    }
    c_interface::batch(&in_c);
}

/// The steps of the report: a line that was written after `property set ro true`.
#[test]
fn a_line_after_a_subvolume_became_read_only_is_in_the_image() {
    use std::io::Write as _;
    let Some(world) = World::new(crate::world::MOUNT) else { return };
    for options in [&[][..], &["-o", "nowriteback_cache"]] {
        world.mount(options);
        succeed(["subvolume", "create", &world.at("c")]);
        fs::write(world.at("c/g"), "first\n").unwrap();
        let mut open = fs::File::options().append(true).open(world.at("c/g")).unwrap();
        // Created, but not written before the change.
        let mut new = fs::File::create(world.at("c/new")).unwrap();
        succeed(["property", "set", &world.at("c"), "ro", "true"]);
        let refused = fs::File::options().append(true).open(world.at("c/g")).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
        open.write_all(b"more\n").unwrap();
        new.write_all(b"new\n").unwrap();
        drop((open, new));
        world.unmount();
        let fs = FileSystem::open_with(world.image(), &OpenOptions::new().write(true)).unwrap();
        assert_eq!(fs.read("/c/g").unwrap(), b"first\nmore\n");
        assert_eq!(fs.read("/c/new").unwrap(), b"new\n");
        fs.delete_subvolume("/c").unwrap();
        fs.close().unwrap();
    }
}

/// A subvolume that is deleted while a program writes: the program goes on, every sync succeeds,
/// and the space is free after its last file is closed.
#[test]
fn a_deleted_subvolume_stays_while_a_program_writes() {
    use std::os::unix::fs::FileExt as _;
    let Some(world) = World::new(crate::world::MOUNT) else { return };
    for options in ["opens=server", "opens=kernel", "nowriteback_cache"] {
        world.mount(&["-o", options]);
        let root = world.directory();
        settle(&root);
        let free = || {
            let sizes = rustix::fs::statvfs(&root).unwrap();
            sizes.f_bfree * sizes.f_frsize
        };
        let before = free();
        succeed(["subvolume", "create", &world.at("s")]);
        let file = fs::File::options().read(true).write(true).create_new(true).open(world.at("s/f")).unwrap();
        file.write_all_at(&[1; 3 << 20], 0).unwrap();
        succeed(["subvolume", "delete", &world.at("s")]);
        file.write_all_at(&[2; 3 << 20], 3 << 20).unwrap();
        file.sync_all().unwrap();
        file.set_len(5 << 20).unwrap();
        file.write_all_at(&[3; 1 << 20], 9 << 20).unwrap();
        succeed(["filesystem", "sync", root.to_str().unwrap()]);
        assert!(before - free() >= 6 << 20, "{options}: the space is in use");
        assert!(Command::new("sync").arg("-f").arg(&root).status().unwrap().success());
        let mut all = vec![9; 10 << 20];
        file.read_exact_at(&mut all, 0).unwrap();
        let expected = [vec![1; 3 << 20], vec![2; 2 << 20], vec![0; 4 << 20], vec![3; 1 << 20]].concat();
        assert!(all == expected && file.metadata().unwrap().len() == 10 << 20, "{options}");
        drop(file);
        settle(&root);
        assert!(before.abs_diff(free()) <= 1 << 20, "{options}: {before} {}", free());
        world.unmount();
        succeed(["check", world.image().to_str().unwrap()]);
    }
}

/// Files that are open for writing keep a mount from becoming read-only, as the kernel does. What
/// they have written is stored.
#[test]
fn remounting_read_only_waits_for_writers() {
    use std::io::Write as _;
    let Some(world) = World::new(crate::world::MOUNT) else { return };
    for options in ["opens=server", "opens=kernel"] {
        world.mount(&["-o", options]);
        let path = world.at(options);
        let mut open = fs::File::create(&path).unwrap();
        open.write_all(b"before").unwrap();
        let remount = || {
            let (image, directory) = (world.image(), world.directory());
            crate::world::papilio([
                Path::new("mount"),
                "-o".as_ref(),
                "remount,ro".as_ref(),
                &image,
                &directory,
            ])
        };
        assert!(!remount().status.success(), "{options}: a file is open for writing");
        open.write_all(b" and after").unwrap();
        drop(open);
        assert!(remount().status.success(), "{options}");
        let refused = fs::File::options().append(true).open(&path).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
        world.unmount();
        let fs = FileSystem::open_with(world.image(), &OpenOptions::new()).unwrap();
        assert_eq!(fs.read(format!("/{options}")).unwrap(), b"before and after");
    }
}
