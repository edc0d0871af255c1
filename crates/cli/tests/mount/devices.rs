//! The devices of a file system are found by its UUID among block devices.

use crate::world::{MOUNT, World, binary, fail, papilio, run, succeed, unmount};
use papilio::format::{DeviceId, PhysicalAddress};
use papilio_ioctl::client::MountedPath;
use papilio_oracle::Need;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// A loop device on a file, detached at the end.
struct Loop(String);

impl Loop {
    fn new(file: &Path) -> Self {
        Self(run("losetup", &["--find", "--show", file.to_str().unwrap()]).trim().to_owned())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

/// Runs the command under the name `btrfs`, and returns its output.
fn btrfs(arguments: &[&str]) -> String {
    let output = Command::new(binary()).arg0("btrfs").args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn needs() -> Vec<Need> {
    [MOUNT, &[Need::Command("mkfs.btrfs"), Need::Command("losetup"), Need::Command("btrfs")]].concat()
}

#[test]
fn other_devices_are_found() {
    let Some(world) = World::new(&needs()) else { return };
    let images = [world.beside("a.img"), world.beside("b.img")];
    for image in &images {
        fs::File::create(image).unwrap().set_len(300 << 20).unwrap();
    }
    let [first, second] = images.each_ref().map(|image| image.to_str().unwrap());
    run("mkfs.btrfs", &["-q", "-L", "both", "-d", "raid1", "-m", "raid1", first, second]);
    let directory = world.directory();
    let directory = directory.to_str().unwrap();
    // A file beside an image is not searched.
    fail(1, "is missing", ["mount", first, directory]);
    fail(1, "only 1 of 2 devices are present", ["device", "ready", first]);
    succeed(["device", "ready", "--device", second, first]);
    let loops = images.each_ref().map(|image| Loop::new(image));
    // The kernel's Btrfs, if there is one, knows no device that nobody told it of.
    succeed(["device", "scan", &loops[0].0, &loops[1].0]);
    succeed(["device", "ready", &loops[0].0]);
    succeed(["device", "ready", first]);
    let scanned = succeed(["device", "scan"]);
    for (index, device) in loops.iter().enumerate() {
        let line = format!(" devid {} of 2 path {}", index + 1, device.0);
        assert!(scanned.lines().any(|found| found.ends_with(&line)), "{line}: {scanned}");
    }
    let shown = succeed(["filesystem", "show"]);
    assert!(shown.contains("Label: 'both'") && shown.contains(&loops[1].0), "{shown}");
    let json = succeed(["device", "scan", "--json", first, second]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json[0]["path"], &json[1]["devid"]), (&first.into(), &2.into()));
    // Commands on images and mounts find the second device.
    let listed = succeed(["filesystem", "show", &loops[0].0]);
    assert!(listed.contains(&loops[1].0), "{listed}");
    succeed(["mount", &loops[0].0, directory]);
    fs::write(world.at("f"), vec![5; 5 << 20]).unwrap();
    // Each device stands for the mount, and has counters of its own under the name of btrfs-progs.
    for device in &loops {
        let shown = succeed(["filesystem", "show", &device.0]);
        assert!(loops.iter().all(|device| shown.contains(&device.0)), "{shown}");
        let dumped = succeed(["inspect", "dump-tree", "-t", "chunk", &device.0]);
        assert!(dumped.contains("CHUNK_ITEM"), "{dumped}");
        let counters = btrfs(&["device", "stats", &device.0]);
        let named = format!("[{}].", device.0);
        assert!(counters.lines().all(|line| line.starts_with(&named)), "{counters}");
        assert_eq!(counters.lines().count(), 5);
        assert_eq!(succeed(["device", "stats", &device.0]).lines().count(), 10);
    }
    let refused = Command::new(binary()).arg0("btrfs").args(["device", "remove", "3", directory]).output();
    let said = String::from_utf8(refused.unwrap().stderr).unwrap();
    assert_eq!(said, "ERROR: error removing devid 3: No such file or directory\n");
    // The other device is that of the running mount.
    let again = world.beside("again");
    fs::create_dir(&again).unwrap();
    succeed(["mount", "-r", &loops[1].0, again.to_str().unwrap()]);
    assert_eq!(fs::read(again.join("f")).unwrap(), vec![5; 5 << 20]);
    unmount(&again);
    world.unmount();
    run("btrfs", &["check", "--check-data-csum", &loops[0].0]);
    succeed(["check", "--check-data-csum", &loops[1].0]);
}

/// mount(8) prints nothing where a mount succeeds, and scripts compare the output. The log and `-v`
/// name the missing device.
#[test]
fn a_degraded_mount_names_the_missing_device_in_its_log() {
    let Some(world) = World::new(MOUNT) else { return };
    let images = [world.beside("a.img"), world.beside("b.img")];
    for image in &images {
        fs::File::create(image).unwrap().set_len(300 << 20).unwrap();
    }
    let [first, second] = images.each_ref().map(|image| image.to_str().unwrap());
    succeed(["mkfs", "-d", "raid1", "-m", "raid1", first, second]);
    let directory = world.directory();
    let directory = directory.to_str().unwrap();
    fail(1, "is missing", ["mount", first, directory]);
    let log = world.beside("log");
    let logged = ["--log", log.to_str().unwrap()];
    for (more, shown) in [(&[][..], false), (&["-v"], true), (&logged, false)] {
        let words = ["mount", "-o", "degraded", first, directory];
        let mounted = papilio(words.iter().chain(more));
        let said = String::from_utf8_lossy(&mounted.stderr).into_owned();
        assert!(mounted.status.success(), "{said}");
        assert_eq!((said.is_empty(), said.contains("a device is missing")), (!shown, shown), "{said}");
        world.unmount();
    }
    let said = fs::read_to_string(log).unwrap();
    assert_eq!(said.matches("papilio: WARN: a device is missing").count(), 1, "{said}");
}

#[test]
fn files_without_a_file_system_are_refused() {
    let Some(world) = World::new(&[]) else { return };
    let (image, directory) = (world.image(), world.directory());
    let (image, directory) = (image.to_str().unwrap(), directory.to_str().unwrap());
    let empty = world.beside("empty");
    fs::write(&empty, vec![0; 1 << 20]).unwrap();
    let empty = empty.to_str().unwrap();
    let shown = succeed(["device", "scan", image]);
    assert!(shown.ends_with(&format!(" devid 1 of 1 path {image}\n")), "{shown}");
    succeed(["device", "ready", image]);
    for command in ["scan", "ready"] {
        fail(1, "no Btrfs file system", ["device", command, empty]);
        fail(1, "neither a regular file nor a block device", ["device", command, directory]);
        fail(1, "", ["device", command, "/no/such/file"]);
    }
    assert_eq!(papilio(["device", "ready"]).status.code(), Some(2));
}

#[test]
fn devices_are_found_by_uuid_and_label() {
    let Some(world) = World::new(&needs()) else { return };
    let (image, copy) = (world.beside("tagged.img"), world.beside("other.img"));
    let label = format!("papilio test {}", std::process::id());
    for path in [&image, &copy] {
        fs::File::create(path).unwrap().set_len(128 << 20).unwrap();
        succeed(["mkfs", "-q", "-L", &label, path.to_str().unwrap()]);
    }
    let directory = world.directory();
    let directory = directory.to_str().unwrap();
    let by_label = format!("LABEL={label}");
    // Images that are on no block device are not searched.
    fail(1, "no block device that can be read has this file system", ["mount", &by_label, directory]);
    fail(1, "not a UUID", ["mount", "UUID=12", directory]);
    fail(1, "only UUID= and LABEL= are understood", ["mount", "PARTUUID=12", directory]);
    let device = Loop::new(&image);
    let uuid = papilio::FoundDevice::read(&image).unwrap().unwrap().fsid;
    for source in [format!("UUID={uuid}"), by_label.clone(), format!("LABEL=\"{label}\"")] {
        succeed(["mount", &source, directory]);
        assert_eq!(world.entry().unwrap().source, Path::new(&device.0));
        // The same file system joins the mount.
        let again = world.beside("again");
        fs::create_dir_all(&again).unwrap();
        succeed(["mount", &source, again.to_str().unwrap()]);
        unmount(&again);
        world.unmount();
    }
    // The label is that of two file systems now; the UUIDs differ.
    let _other = Loop::new(&copy);
    fail(1, "have this label: use UUID=", ["mount", &by_label, directory]);
    succeed(["mount", &format!("UUID={uuid}"), directory]);
    world.unmount();
}

/// `btrfs scrub start` calls `BTRFS_IOC_SCRUB` for all devices at the same time.
#[test]
fn scrubs_of_all_devices_may_begin_at_once() {
    let Some(world) = World::new(MOUNT) else { return };
    let images = ["a.img", "b.img", "c.img"].map(|name| {
        let image = world.beside(name);
        fs::File::create(&image).unwrap().set_len(400 << 20).unwrap();
        image.to_str().unwrap().to_owned()
    });
    let [first, second, third] = &images;
    succeed(["mkfs", "-q", "-f", "-d", "raid5", "-m", "raid1", first, second, third]);
    let directory = world.directory();
    let members = format!("device={second},device={third}");
    assert!(papilio(["mount", "-o", &members, first, directory.to_str().unwrap()]).status.success());
    fs::write(world.at("f"), vec![5; 30 << 20]).unwrap();
    succeed(["filesystem", "sync", directory.to_str().unwrap()]);
    let scrubbed: u64 = std::thread::scope(|scope| {
        let start = |devid| {
            let mounted = MountedPath::open(&directory).unwrap();
            scope.spawn(move || {
                let (counts, _, result) = mounted.scrub_by_kernel(DeviceId(devid), PhysicalAddress(0), false);
                result.unwrap_or_else(|error| panic!("device {devid}: {error}"));
                counts.data_bytes_scrubbed
            })
        };
        let scrubs: Vec<_> = [1, 2, 3].map(start).into();
        scrubs.into_iter().map(|scrub| scrub.join().unwrap()).sum()
    });
    assert!(scrubbed >= 30 << 20, "{scrubbed} bytes of data");
    let mounted = MountedPath::open(&directory).unwrap();
    assert_eq!(mounted.kernel_scrub_progress(DeviceId(1)).unwrap(), None);
    drop(mounted);
    world.unmount();
}
