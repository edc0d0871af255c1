//! Work on mounts of the kernel's Btrfs that is paused, cancelled, resumed, limited or waited for
//! while it runs, and mounts with a missing device.

use crate::common::binary;
use crate::kernel::KernelMount;
use crate::kernel_jobs::{needs, scrub};
use crate::world::{World, check_failure, eventually, fail, papilio, run, succeed, unmount_kernel};
use papilio_oracle::loop_device::LoopDevice;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

const FILES: u64 = 60;

/// Content that compresses badly, so that it takes its full space.
fn content(number: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(number);
    (0..1 << 20).map(|_| random.u8(..)).collect()
}

/// Makes large files, and many small ones, whose extents take a balance its time.
fn fill(root: &Path) {
    for number in 0..FILES {
        fs::write(root.join(format!("file {number}")), content(number)).unwrap();
    }
    for number in 0..6000 {
        fs::write(root.join(format!("small {number}")), vec![number as u8; 5000]).unwrap();
    }
    succeed(["filesystem", "sync", root.to_str().unwrap()]);
}

fn assert_files(root: &Path) {
    for number in 0..FILES {
        assert!(fs::read(root.join(format!("file {number}"))).unwrap() == content(number), "{number}");
    }
    for number in (0..6000).step_by(97) {
        assert_eq!(fs::read(root.join(format!("small {number}"))).unwrap(), vec![number as u8; 5000]);
    }
}

/// The exit code of `balance status`: 0 without a balance, 1 while one runs, 2 if it is paused.
fn balance_status(root: &str) -> i32 {
    papilio(["balance", "status", root]).status.code().unwrap()
}

/// Starts a balance in the background, and stops it while it runs. One that ends first is repeated.
fn stop_while_it_runs(root: &str, start: &[&str], stop: &str) {
    for _ in 0..50 {
        let started = papilio(start);
        if started.status.success() {
            for _ in 0..200 {
                if balance_status(root) == 1 {
                    break;
                }
            }
            if papilio(["balance", stop, root]).status.success() {
                return;
            }
        }
        eventually("the balance ends", || balance_status(root) != 1);
    }
    panic!("no balance ran long enough to {stop} it");
}

#[test]
fn a_balance_of_a_kernel_mount_is_paused_resumed_and_cancelled_while_it_runs() {
    let Some(world) = World::new(&needs()) else { return };
    let directory = world.directory();
    let kernel = KernelMount::new(&world.image(), &directory, "noatime");
    fill(&directory);
    let root = directory.to_str().unwrap();
    let start = ["balance", "start", "--bg", "-m", "-dusage=100", root];
    stop_while_it_runs(root, &start, "pause");
    assert_eq!(balance_status(root), 2);
    fail(1, "a balance is paused", ["balance", "start", root]);
    fail(1, "another operation runs, or a balance is paused", ["balance", "start", "--bg", root]);
    fail(1, "is not running", ["balance", "pause", root]);
    assert_files(&directory);
    // It goes on in the background, to its end.
    succeed(["balance", "resume", "--bg", root]);
    eventually("the balance ends", || balance_status(root) == 0);
    assert_files(&directory);
    stop_while_it_runs(root, &start, "cancel");
    assert_eq!(balance_status(root), 0);
    fail(1, "a balance is not running", ["balance", "resume", root]);
    assert_files(&directory);
    drop(kernel);
    world.assert_clean();
}

/// A command that runs in the background.
fn begin(arguments: &[&str]) -> Child {
    let mut command = Command::new(binary());
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// Sets the bytes that a scrub or a replacement reads of each device in a second.
fn limit(root: &str, bytes: &str) {
    succeed(["scrub", "limit", "-l", bytes, root]);
}

fn loop_of(world: &World, name: &str, mib: u64) -> LoopDevice {
    let path = world.beside(name);
    fs::File::create(&path).unwrap().set_len(mib << 20).unwrap();
    LoopDevice::attach(&path, false).unwrap()
}

#[test]
fn a_replacement_of_a_kernel_mount_is_cancelled_while_it_runs_and_others_wait() {
    let Some(world) = World::new(&needs()) else { return };
    let (target, added) = (loop_of(&world, "target.img", 512), loop_of(&world, "added.img", 512));
    let [target, added] = [&target, &added].map(|device| device.path().to_str().unwrap());
    let directory = world.directory();
    let kernel = KernelMount::new(&world.image(), &directory, "noatime");
    fill(&directory);
    let root = directory.to_str().unwrap();
    limit(root, "4M");
    let replacement = begin(&["replace", "start", "1", target, root]);
    let runs =
        |part: &str| String::from_utf8_lossy(&papilio(["replace", "status", root]).stdout).contains(part);
    eventually("the replacement runs", || runs("% done"));
    fail(1, "another operation runs", ["device", "add", added, root]);
    fail(1, "another operation runs", ["balance", "start", root]);
    fail(1, "another operation runs", ["replace", "start", "1", added, root]);
    // This one waits until the replacement has ended.
    let waiting = begin(&["device", "add", "--enqueue", added, root]);
    std::thread::sleep(Duration::from_millis(300));
    assert!(runs("% done"), "the replacement is not at its end yet");
    succeed(["replace", "cancel", root]);
    let ended = replacement.wait_with_output().unwrap();
    check_failure(&ended, 1, "was cancelled");
    assert!(runs("canceled"));
    let added_to = waiting.wait_with_output().unwrap();
    assert!(added_to.status.success(), "{added_to:?}");
    let shown = run("btrfs", &["filesystem", "show", root]);
    assert!(shown.contains("Total devices 2") && shown.contains(added), "{shown}");
    limit(root, "0");
    assert!(succeed(["replace", "start", "-f", "1", target, root]).contains("device 1: finished"));
    assert_eq!(succeed(["device", "remove", added, root]), "device 2 removed\n");
    assert_files(&directory);
    drop(kernel);
    run("btrfs", &["check", "--check-data-csum", target]);
}

#[test]
fn a_removal_from_a_kernel_mount_is_cancelled_while_it_runs() {
    let Some(world) = World::new(&needs()) else { return };
    let added = loop_of(&world, "added.img", 512);
    let added = added.path().to_str().unwrap();
    let directory = world.directory();
    let kernel = KernelMount::new(&world.image(), &directory, "noatime");
    fill(&directory);
    let root = directory.to_str().unwrap();
    succeed(["device", "add", added, root]);
    // Half of the block groups go to the new device.
    succeed(["balance", "start", root]);
    let is_cancelled = (0..50).any(|_| {
        let removal = begin(&["device", "remove", "2", root]);
        let mut cancels = (0..200).map(|_| papilio(["device", "remove", "cancel", root]).status.success());
        let is_cancelled = cancels.any(|is_cancelled| is_cancelled);
        let ended = removal.wait_with_output().unwrap();
        if ended.status.success() {
            // It was over before the other command came.
            succeed(["device", "add", added, root]);
            succeed(["balance", "start", root]);
            return false;
        }
        assert!(is_cancelled, "{ended:?}");
        check_failure(&ended, 1, "was cancelled");
        true
    });
    assert!(is_cancelled, "no removal ran long enough to cancel it");
    assert_files(&directory);
    let shown = run("btrfs", &["filesystem", "show", root]);
    assert!(shown.contains("Total devices 2"), "{shown}");
    assert_eq!(succeed(["device", "remove", "2", root]), "device 2 removed\n");
    assert_files(&directory);
    drop(kernel);
    world.assert_clean();
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns a counter of the last scrub.
fn counter(world: &World, name: &str) -> u64 {
    let shown = text(&scrub(world, &["status", "-R"]));
    let line =
        shown.lines().find_map(|line| line.trim().strip_prefix(&format!("{name}: ")).map(str::to_owned));
    line.unwrap_or_else(|| panic!("{shown}")).parse().unwrap()
}

#[test]
fn a_scrub_of_a_kernel_mount_is_limited_cancelled_and_resumed() {
    let Some(world) = World::new(&needs()) else { return };
    let directory = world.directory();
    let kernel = KernelMount::new(&world.image(), &directory, "noatime");
    fill(&directory);
    check_failure(&scrub(&world, &["resume"]), 2, "there is no scrub to resume");
    assert_eq!(text(&scrub(&world, &["limit"])), "device 1: no limit\n");
    text(&scrub(&world, &["limit", "-l", "1g"]));
    assert_eq!(text(&scrub(&world, &["limit"])), "device 1: 1073741824 bytes per second\n");
    assert!(text(&scrub(&world, &["start", "-B"])).contains("finished"));
    let whole = counter(&world, "data_bytes_scrubbed");
    assert!(whole > FILES << 20);

    text(&scrub(&world, &["start", "--limit", "8m"]));
    eventually("the scrub runs", || text(&scrub(&world, &["status"])).contains("running"));
    assert_eq!(text(&scrub(&world, &["limit"])), "device 1: 8388608 bytes per second\n");
    check_failure(&scrub(&world, &["start"]), 1, "a scrub is running already");
    eventually("some is verified", || counter(&world, "data_bytes_scrubbed") > 4 << 20);
    assert_eq!(text(&scrub(&world, &["cancel"])), "scrub cancelled\n");
    eventually("the result is kept", || text(&scrub(&world, &["status"])).contains("aborted"));
    let part = counter(&world, "data_bytes_scrubbed");
    assert!(0 < part && part < whole, "{part} of {whole}");
    // The limit before holds again.
    assert_eq!(text(&scrub(&world, &["limit"])), "device 1: 1073741824 bytes per second\n");

    text(&scrub(&world, &["resume", "-B"]));
    let shown = text(&scrub(&world, &["status"]));
    assert!(shown.contains("finished") && shown.contains("resumed"), "{shown}");
    let sum = counter(&world, "data_bytes_scrubbed");
    // The kernel begins with the block group in which it stopped.
    assert!(whole <= sum && sum <= whole + part, "{part}, then {sum} of {whole}");
    check_failure(&scrub(&world, &["resume"]), 2, "there is no scrub to resume");
    drop(kernel);
    world.assert_clean();
}

#[test]
fn a_kernel_mount_without_a_device_is_scrubbed_and_repaired() {
    let Some(world) = World::new(&needs()) else { return };
    let [first, second, third, spare] =
        ["1", "2", "3", "4"].map(|name| loop_of(&world, &format!("device{name}.img"), 400));
    let paths = [&first, &second, &third, &spare].map(|device| device.path().to_str().unwrap().to_owned());
    succeed(["mkfs", "-q", "-d", "raid1", "-m", "raid1", &paths[0], &paths[1], &paths[2]]);
    let directory = world.directory();
    let root = directory.to_str().unwrap();
    let devices = format!("noatime,device={},device={},device={}", paths[0], paths[1], paths[2]);
    run("mount", &["-t", "btrfs", "-o", &devices, &paths[0], root]);
    fill(&directory);
    assert!(unmount_kernel(&directory));
    // The second device is gone.
    run("wipefs", &["-q", "-a", &paths[1]]);
    drop(second);
    run("btrfs", &["device", "scan", "--forget"]);
    let devices = format!("noatime,degraded,device={}", paths[2]);
    run("mount", &["-t", "btrfs", "-o", &devices, &paths[0], root]);
    assert_files(&directory);
    fail(1, "is not a device of the file system", ["replace", "start", "9", &paths[3], root]);
    assert!(succeed(["replace", "start", "2", &paths[3], root]).contains("device 2: finished"));
    assert!(text(&scrub(&world, &["start", "-B"])).contains("finished"));
    assert_eq!(counter(&world, "uncorrectable_errors"), 0);
    assert_files(&directory);
    assert!(unmount_kernel(&directory));

    // Now the third one, which is removed and not replaced.
    run("wipefs", &["-q", "-a", &paths[2]]);
    drop(third);
    run("btrfs", &["device", "scan", "--forget"]);
    let devices = format!("noatime,degraded,device={}", paths[3]);
    run("mount", &["-t", "btrfs", "-o", &devices, &paths[0], root]);
    assert_eq!(succeed(["device", "remove", "missing", root]), "the missing device was removed\n");
    fail(1, "profile RAID1 needs 2 devices", ["device", "remove", &paths[3], root]);
    assert_files(&directory);
    assert!(unmount_kernel(&directory));
    run("btrfs", &["check", "--check-data-csum", &paths[0]]);
    run("btrfs", &["device", "scan", "--forget"]);
}
