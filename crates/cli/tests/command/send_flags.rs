//! Inode flags in streams of protocol 2: sent as the kernel sends them, left alone by receivers.

use crate::common::{command, succeed, succeed_text, text};
use papilio_oracle::{FileSystemSpec, ImageSet, Need, Scratch, require, sys};
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

/// The letters of `lsattr` that a test sets.
const FLAGS: [(&str, &str); 4] = [("f", "+A"), ("d", "+C"), ("g", "+d"), ("kept", "=")];

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn string(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Makes snapshots `s1` and `s2`, between which flags change.
fn source(scratch: &Scratch) -> ImageSet {
    let images = FileSystemSpec::default().make(scratch).unwrap();
    let mounted = images.mount().unwrap();
    let at = |path: &str| mounted.path().join(path);
    sys::create_subvolume(&at("s")).unwrap();
    fs::create_dir(at("s/d")).unwrap();
    for name in ["s/f", "s/g", "s/kept"] {
        fs::write(at(name), vec![7; 20_000]).unwrap();
    }
    run("chattr", &["+A", string(&at("s/kept"))]);
    mounted.sync().unwrap();
    sys::create_snapshot(&at("s"), &at("s1"), true).unwrap();
    for (name, flags) in FLAGS.into_iter().filter(|(_, flags)| *flags != "=") {
        run("chattr", &[flags, string(&at("s").join(name))]);
    }
    // Of a new file, no flags are sent.
    fs::write(at("s/new"), "new").unwrap();
    run("chattr", &["+A", string(&at("s/new"))]);
    mounted.sync().unwrap();
    sys::create_snapshot(&at("s"), &at("s2"), true).unwrap();
    mounted.unmount().unwrap();
    images
}

/// Returns the lines of a dump about flags, sorted.
fn flags_in(stream: &Path) -> Vec<String> {
    let dump = succeed_text(["receive", "--dump", "-f", string(stream)]);
    let mut lines: Vec<_> =
        dump.lines().filter(|line| line.starts_with("fileattr")).map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn flags_are_sent_as_the_kernel_sends_them() {
    let needs = [Need::Command("btrfs"), Need::Command("chattr")];
    if require(Need::KERNEL_MOUNT).is_none() || require(&needs).is_none() {
        return;
    }
    let scratch = Scratch::new(700 << 20).unwrap();
    let images = source(&scratch);
    let image = string(&images.paths()[0]).to_owned();
    let [kernels, ours, first] = ["kernels", "ours", "first"].map(|name| scratch.path().join(name));
    let full = |file: &Path| {
        let arguments = ["send", "--proto", "2", "-f", string(file), &format!("{image}:/s1")];
        assert!(command().args(arguments).status().unwrap().success());
    };
    full(&first);
    let mut dumps = Vec::new();
    for protocol in ["1", "2"] {
        let mounted = images.mount_read_only().unwrap();
        let [s1, s2] = ["s1", "s2"].map(|name| string(&mounted.path().join(name)).to_owned());
        run("btrfs", &["send", "-q", "--proto", protocol, "-p", &s1, "-f", string(&kernels), &s2]);
        mounted.unmount().unwrap();
        let [s1, s2] = ["s1", "s2"].map(|name| format!("{image}:/{name}"));
        let arguments = ["send", "--proto", protocol, "-p", &s1, "-f", string(&ours), &s2];
        assert!(command().args(arguments).status().unwrap().success());
        assert_eq!(flags_in(&ours), flags_in(&kernels), "protocol {protocol}");
        dumps.push(flags_in(&ours));
    }
    assert!(dumps[0].is_empty(), "{dumps:?}");
    assert_eq!(dumps[1].len(), 3, "{dumps:?}");

    // Both receivers take the command, and leave the flags of the parent.
    let theirs = FileSystemSpec::default().make(&scratch).unwrap();
    let mounted = theirs.mount().unwrap();
    let own = scratch.image("own", 512 << 20).unwrap();
    succeed(["mkfs", "-q", string(&own)]);
    for stream in [&first, &ours] {
        run("btrfs", &["receive", "-f", string(stream), string(mounted.path())]);
    }
    for stream in [&first, &kernels] {
        succeed(["receive", "-q", "-f", string(stream), &format!("{}:/", own.display())]);
    }
    succeed(["check", "--check-data-csum", string(&own)]);
    let received = ImageSet::open(&scratch, vec![own]);
    let received = received.mount_read_only().unwrap();
    for (name, _) in FLAGS {
        let flags = |root: &Path| {
            let file = File::open(root.join("s2").join(name)).unwrap();
            rustix::fs::ioctl_getflags(&file).unwrap()
        };
        assert_eq!(flags(received.path()), flags(mounted.path()), "{name}");
    }
    assert_eq!(fs::read(received.path().join("s2/new")).unwrap(), b"new");
}
