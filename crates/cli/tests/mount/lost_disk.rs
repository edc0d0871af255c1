//! A disk of a mirror is lost while the file system is mounted: reads and writes go on, the errors
//! are counted and logged, and a replacement brings everything back. The kernel does the same.

use crate::kernel_jobs::needs;
use crate::world::{MOUNT, World, papilio, run, succeed, unmount, unmount_kernel};
use papilio_oracle::loop_device::LoopDevice;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

const SIZE: u64 = 400 << 20;

/// A mirror on two loop devices. The file of the second is in a mount whose server can be killed:
/// the device then fails with EIO.
struct Mirror {
    first: LoopDevice,
    second: Option<LoopDevice>,
    directory: PathBuf,
    log: PathBuf,
    is_kernel: bool,
    files: BTreeMap<String, Vec<u8>>,
}

impl Mirror {
    fn new(world: &World, is_kernel: bool) -> Self {
        let (directory, log) = (world.beside("nested"), world.beside("log"));
        fs::create_dir_all(&directory).unwrap();
        let first = world.beside("first.img");
        let second = PathBuf::from(world.at("second.img"));
        let [first, second] = [first, second].map(|image| {
            File::create(&image).unwrap().set_len(SIZE).unwrap();
            LoopDevice::attach(&image, false).unwrap()
        });
        let names = [&first, &second].map(|device| device.path().to_str().unwrap());
        succeed(["mkfs", "-q", "-f", "-d", "raid1", "-m", "raid1", names[0], names[1]]);
        Self { first, second: Some(second), directory, log, is_kernel, files: BTreeMap::new() }
    }

    fn mount(&self, options: &str) {
        let (first, point) = (self.first.path().to_str().unwrap(), self.directory.to_str().unwrap());
        if self.is_kernel {
            run("mount", &["-t", "btrfs", "-o", options, first, point]);
            return;
        }
        let log = self.log.to_str().unwrap();
        let mounted = papilio(["mount", "-o", options, "--log", log, first, point]);
        assert!(mounted.status.success(), "{mounted:?}");
    }

    fn unmount(&self) {
        match self.is_kernel {
            true => assert!(unmount_kernel(&self.directory)),
            false => unmount(&self.directory),
        }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn write(&mut self, name: &str, byte: u8) {
        let content: Vec<u8> = (0..3 << 20).map(|at: u32| byte ^ (at / 4096) as u8).collect();
        fs::write(self.at(name), &content).unwrap();
        File::open(self.at(name)).unwrap().sync_all().unwrap();
        self.files.insert(name.to_owned(), content);
    }

    fn assert_files(&self) {
        for (name, content) in &self.files {
            assert!(fs::read(self.at(name)).unwrap() == *content, "{name}");
        }
        assert_eq!(fs::read_dir(&self.directory).unwrap().count(), self.files.len());
    }

    /// Makes the next reads go to the devices.
    fn forget_pages(&self) {
        let devices = [Some(&self.first), self.second.as_ref()].into_iter().flatten();
        let devices = devices.map(|device| device.path().to_path_buf());
        for path in self.files.keys().map(|name| self.at(name)).chain(devices) {
            let file = File::open(path).unwrap();
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        }
    }

    /// Returns the sum of a device's error counters.
    fn errors_of(&self, device: &Path) -> u64 {
        let stats = succeed(["device", "stats", self.directory.to_str().unwrap()]);
        let prefix = format!("[{}].", device.display());
        let lines = stats.lines().filter(|line| line.starts_with(&prefix));
        lines.map(|line| line.split_whitespace().last().unwrap().parse::<u64>().unwrap()).sum()
    }

    fn sync(&self) {
        succeed(["filesystem", "sync", self.directory.to_str().unwrap()]);
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = papilio([Path::new("umount"), "--lazy".as_ref(), &self.directory]);
            let _ = Command::new("umount").arg("--lazy").arg(&self.directory).output();
        }
    }
}

fn lose_a_disk(is_kernel: bool) {
    let Some(world) = World::new(&[MOUNT, &needs()].concat()) else { return };
    world.mount(&[]);
    let mut mirror = Mirror::new(&world, is_kernel);
    let second = mirror.second.as_ref().unwrap().path().to_path_buf();
    mirror.mount(&format!("device={}", second.display()));
    for number in 0..6 {
        mirror.write(&format!("before{number}"), number);
    }
    mirror.sync();
    mirror.forget_pages();

    world.kill_server();
    mirror.assert_files();
    for number in 10..13 {
        mirror.write(&format!("after{number}"), number);
    }
    fs::rename(mirror.at("before0"), mirror.at("renamed")).unwrap();
    let renamed = mirror.files.remove("before0").unwrap();
    mirror.files.insert("renamed".to_owned(), renamed);
    fs::remove_file(mirror.at("before1")).unwrap();
    mirror.files.remove("before1");
    mirror.sync();
    mirror.write("last", 20);
    mirror.sync();
    mirror.forget_pages();
    mirror.assert_files();
    assert!(mirror.errors_of(&second) > 0);
    assert_eq!(mirror.errors_of(mirror.first.path()), 0);
    mirror.unmount();
    if !is_kernel {
        let log = fs::read_to_string(&mirror.log).unwrap();
        let said = log.lines().find(|line| line.contains("the device fails")).expect(&log);
        assert!(said.contains(second.to_str().unwrap()) && said.contains("devid=2"), "{said}");
        // The disk takes no writes, and the other one has everything.
        for line in log.lines().filter(|line| line.contains("that a read found bad")) {
            assert!(line.contains("could not be rewritten") && line.contains("lost=0"), "{line}");
        }
    }

    // The disk is taken out, and another one put in.
    mirror.second = None;
    run("umount", &["-i", "-l", world.directory().to_str().unwrap()]);
    mirror.mount("degraded");
    mirror.assert_files();
    mirror.write("degraded", 30);
    let image = world.beside("third.img");
    File::create(&image).unwrap().set_len(SIZE).unwrap();
    let third = LoopDevice::attach(&image, false).unwrap();
    let (target, point) = (third.path().to_str().unwrap(), mirror.directory.to_str().unwrap());
    let replaced = papilio(["replace", "start", "-B", "--restore-redundancy", "2", target, point]);
    assert!(replaced.status.success(), "{replaced:?}");
    mirror.assert_files();
    let scrubbed = succeed(["scrub", "start", "-B", point]);
    assert!(scrubbed.contains("no errors found"), "{scrubbed}");
    mirror.unmount();
    let first = mirror.first.path().to_str().unwrap();
    succeed(["check", "--check-data-csum", "--device", target, first]);
}

#[test]
fn a_mount_goes_on_without_a_disk_of_a_mirror() {
    lose_a_disk(false);
}

#[test]
fn a_kernel_mount_goes_on_without_a_disk_of_a_mirror() {
    lose_a_disk(true);
}

/// The kernel's mount becomes read-only by this.
#[test]
fn a_conversion_to_fewer_copies_goes_on_without_a_lost_disk() {
    let Some(world) = World::new(&[MOUNT, &needs()].concat()) else { return };
    world.mount(&[]);
    let mut mirror = Mirror::new(&world, false);
    let second = mirror.second.as_ref().unwrap().path().to_path_buf();
    mirror.mount(&format!("device={}", second.display()));
    mirror.write("before", 1);
    mirror.sync();
    world.kill_server();
    let point = mirror.directory.to_str().unwrap().to_owned();
    // The balance itself meets the errors.
    let converted = papilio(["balance", "start", "-f", "-dconvert=single", "-mconvert=dup", &point]);
    assert!(converted.status.success(), "{converted:?}");
    mirror.write("after", 2);
    mirror.sync();
    let shown = succeed(["filesystem", "show", &point]);
    assert!(!shown.contains("Read-only"), "{shown}");
    mirror.unmount();
    mirror.second = None;
    run("umount", &["-i", "-l", world.directory().to_str().unwrap()]);
    mirror.mount("degraded");
    mirror.assert_files();
    mirror.unmount();
}
