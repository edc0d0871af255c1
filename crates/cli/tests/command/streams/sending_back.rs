//! Streams that travel: from the copy back to the origin, over three machines, from twins, and with
//! sources of clones alone. Each is received by Papilio and by the kernel.

use super::btrfs;
use crate::common::succeed;
use papilio_oracle::{FileSystemSpec, Need, Scratch, require};
use std::fs;
use std::path::{Path, PathBuf};

/// A machine: an image that Papilio changes.
struct Machine(PathBuf);

impl Machine {
    fn new(folder: &Path, name: &str) -> Self {
        let image = folder.join(name);
        succeed(["-q", "mkfs", "--size", "256M", image.to_str().unwrap()]);
        Self(image)
    }

    fn at(&self, path: &str) -> String {
        format!("{}:/{path}", self.0.display())
    }

    fn write(&self, folder: &Path, path: &str, content: &str) {
        let host = folder.join("content");
        fs::write(&host, content.repeat(5000)).unwrap();
        succeed(["cp", host.to_str().unwrap(), &self.at(path)]);
    }

    fn snapshot(&self, from: &str, to: &str) {
        succeed(["subvolume", "snapshot", "-r", &self.at(from), &self.at(to)]);
    }

    /// Sends a snapshot to a file.
    fn send(&self, stream: &str, options: &[&str], snapshot: &str) {
        succeed([&["-q", "send", "-f", stream], options, &[&self.at(snapshot)]].concat());
    }

    fn receive(&self, stream: &str) {
        succeed(["-q", "receive", "-f", stream, &self.at("")]);
    }

    fn starts_with(&self, path: &str, start: &str) {
        let content = succeed(["cat", &self.at(path)]);
        assert!(content.starts_with(start.as_bytes()), "{path}");
    }
}

/// Makes a writable snapshot of a received one, changes it, and takes a snapshot.
fn work_on(machine: &Machine, folder: &Path, base: &str, name: &str, content: &str) {
    let work = format!("work-{name}");
    succeed(["subvolume", "snapshot", &machine.at(base), &machine.at(&work)]);
    machine.write(folder, &format!("{work}/{name}-file"), content);
    machine.snapshot(&work, name);
}

#[test]
fn streams_come_back_and_travel_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let [origin, copy, third] = ["origin", "copy", "third"].map(|name| Machine::new(folder.path(), name));
    succeed(["subvolume", "create", &origin.at("s")]);
    origin.write(folder.path(), "s/base", "base ");
    origin.snapshot("s", "one");
    let [full, back, on, again] = ["full", "back", "on", "again"].map(path);
    origin.send(&full, &[], "one");
    copy.receive(&full);
    // From the copy to the origin: the parent is the origin's own snapshot.
    work_on(&copy, folder.path(), "one", "two", "copy ");
    copy.send(&back, &["-p", &copy.at("one")], "two");
    origin.receive(&back);
    origin.starts_with("two/two-file", "copy ");
    origin.starts_with("two/base", "base ");
    // Over three machines, and from the third back to the first.
    copy.send(&on, &[], "one");
    third.receive(&on);
    third.receive(&back);
    work_on(&third, folder.path(), "two", "three", "third ");
    third.send(&again, &["-p", &third.at("two")], "three");
    for machine in [&origin, &copy] {
        machine.receive(&again);
        machine.starts_with("three/three-file", "third ");
        machine.starts_with("three/two-file", "copy ");
    }
    // Twins: the parent was received twice, into two directories.
    succeed(["mkdir", &third.at("twins")]);
    succeed(["-q", "receive", "-f", &full, &third.at("twins")]);
    let [twin, clones] = ["twin", "clones"].map(path);
    work_on(&origin, folder.path(), "one", "four", "twin ");
    origin.send(&twin, &["-p", &origin.at("one")], "four");
    third.receive(&twin);
    third.starts_with("four/four-file", "twin ");
    third.starts_with("four/base", "base ");
    // A source of clones alone: without a parent that is related, the stream is a full one.
    succeed(["subvolume", "create", &origin.at("other")]);
    succeed(["cp", &origin.at("one/base"), &origin.at("other/cloned")]);
    origin.snapshot("other", "five");
    origin.send(&clones, &["-c", &origin.at("one")], "five");
    let dump = succeed(["receive", "--dump", "-f", &clones]);
    let dump = String::from_utf8_lossy(&dump).into_owned();
    assert!(dump.starts_with("subvol ") && dump.contains("\nclone "), "{dump}");
    copy.receive(&clones);
    copy.starts_with("five/cloned", "base ");
    received_by_the_kernel(&[&[&full, &back, &again], &[&full, &twin], &[&full, &clones]]);
}

/// Receives each sequence with the stock tool on a file system of the kernel.
fn received_by_the_kernel(sequences: &[&[&String]]) {
    let needs = [Need::KERNEL_MOUNT, &[Need::Command("btrfs")]].concat();
    if require(&needs).is_none() {
        return;
    }
    let scratch = Scratch::new(1 << 30).unwrap();
    let mounted = FileSystemSpec::default().make(&scratch).unwrap().mount().unwrap();
    for (number, streams) in sequences.iter().enumerate() {
        let directory = mounted.path().join(number.to_string());
        fs::create_dir(&directory).unwrap();
        for stream in *streams {
            btrfs(["receive", "-q", "-f", stream, directory.to_str().unwrap()]);
        }
    }
    let read = |path: &str| fs::read_to_string(mounted.path().join(path)).unwrap();
    assert!(read("0/three/two-file").starts_with("copy "));
    assert!(read("1/four/base").starts_with("base "));
    assert!(read("2/five/cloned").starts_with("base "));
    mounted.unmount().unwrap();
}
