//! Streams of the kernel received by `papilio receive`, and streams of `papilio send` received by
//! the kernel's tools, compared with their source.
//!
//! `PAPILIO_SEND_PAIRS` sets the number of seeded pairs of snapshots (2).

use crate::churn::{Random, churn};
use crate::common::{assert_clean, command, fail, succeed, succeed_text, with_plain_strings};
use papilio::{SendCommand as Send, SendProtocol, Uuid};
use papilio_oracle::{
    CompareOptions, FileSystemSpec, HostTree, ImageSet, Need, Scratch, TreeSpec, compare, require, sys,
};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn btrfs<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Vec<u8> {
    let output = Command::new("btrfs").args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn missing() -> bool {
    require(Need::KERNEL_MOUNT).is_none() || require(&[Need::Command("btrfs")]).is_none()
}

/// Makes two snapshots, `s1` and `s2`, with changes between them.
fn source(scratch: &Scratch, seed: u64) -> ImageSet {
    let compress = ["compress=zstd", "compress=lzo", "compress=zlib"][seed as usize % 3];
    let spec = FileSystemSpec { mount_options: vec![compress.to_owned()], ..FileSystemSpec::default() };
    let images = spec.make(scratch).unwrap();
    let mounted = images.mount().unwrap();
    let at = |path: &str| mounted.path().join(path);
    sys::create_subvolume(&at("s")).unwrap();
    TreeSpec { files: 120, bytes: 6 << 20, seed, subvolumes: false }.populate(&at("s")).unwrap();
    let mut random = Random(seed);
    churn(&at("s"), &mut random, 40);
    mounted.sync().unwrap();
    sys::create_snapshot(&at("s"), &at("s1"), true).unwrap();
    churn(&at("s"), &mut random, 60);
    mounted.sync().unwrap();
    sys::create_snapshot(&at("s"), &at("s2"), true).unwrap();
    mounted.unmount().unwrap();
    images
}

/// Compares the subvolumes `s1` and `s2` of two images on kernel mounts. The root's time is left
/// out for subvolumes in `untimed`.
fn assert_equal(left: &ImageSet, right: &ImageSet, untimed: &[&str]) {
    let (left, right) = (left.mount_read_only().unwrap(), right.mount_read_only().unwrap());
    for name in ["s1", "s2"] {
        let (left, right) = (left.path().join(name), right.path().join(name));
        let mut report = compare(&HostTree::new(left), &HostTree::new(right), &CompareOptions::COPY);
        let is_root = |path: &Path| path == Path::new("");
        let before = report.differences.len();
        if untimed.contains(&name) {
            report.differences.retain(|found| !is_root(&found.path) || found.fact != "mtime");
        }
        report.total -= (before - report.differences.len()) as u64;
        report.assert_equal(80);
    }
}

fn pairs() -> u64 {
    std::env::var("PAPILIO_SEND_PAIRS").map_or(2, |count| count.parse().unwrap())
}

/// Has the kernel write a full stream of `s1` and an incremental one of `s2`.
fn kernel_streams(from: &ImageSet, folder: &Path, protocol: &str) -> [OsString; 2] {
    let mounted = from.mount_read_only().unwrap();
    let files = kernel_streams_of(mounted.path(), folder, protocol);
    mounted.unmount().unwrap();
    files
}

/// As [`kernel_streams`], for a file system that is mounted at `mount`.
fn kernel_streams_of(mount: &Path, folder: &Path, protocol: &str) -> [OsString; 2] {
    let [s1, s2] = ["s1", "s2"].map(|name| mount.join(name).into_os_string());
    let files = ["full", "next"].map(|name| folder.join(format!("{name}-{protocol}")).into_os_string());
    let start = || -> Vec<&OsStr> {
        let mut start = vec!["send".as_ref(), "-q".as_ref(), "--proto".as_ref(), protocol.as_ref()];
        if protocol == "2" {
            start.push("--compressed-data".as_ref());
        }
        start
    };
    btrfs([start(), vec!["-f".as_ref(), &files[0], &s1]].concat());
    btrfs([start(), vec!["-p".as_ref(), &s1, "-f".as_ref(), &files[1], &s2]].concat());
    files
}

/// Returns the subvolumes whose root has another mtime than its source when the kernel's tools
/// receive them. Orphan names pass through the root, and the kernel does not always send its times
/// after the last one.
fn untimed(scratch: &Scratch, from: &ImageSet, streams: &[OsString]) -> Vec<&'static str> {
    let to = FileSystemSpec::default().make(scratch).unwrap();
    let (from, to) = (from.mount_read_only().unwrap(), to.mount().unwrap());
    for stream in streams {
        btrfs(["receive".as_ref(), "-f".as_ref(), stream.as_os_str(), to.path().as_os_str()]);
    }
    let time = |root: &Path| fs::metadata(root).unwrap().modified().unwrap();
    let differs = |name: &&str| time(&from.path().join(name)) != time(&to.path().join(name));
    ["s1", "s2"].into_iter().filter(differs).collect()
}

#[test]
fn streams_of_the_kernel_are_received_and_dumped() {
    if missing() {
        return;
    }
    for seed in 0..pairs() {
        let scratch = Scratch::new(1 << 30).unwrap();
        let from = source(&scratch, seed);
        for protocol in ["1", "2"] {
            let to = FileSystemSpec::default().make(&scratch).unwrap();
            let streams = kernel_streams(&from, scratch.path(), protocol);
            let untimed = untimed(&scratch, &from, &streams);
            for stream in streams {
                let dump: [&OsStr; 4] = ["receive".as_ref(), "--dump".as_ref(), "-f".as_ref(), &stream];
                let (ours, kernels) = (succeed(dump), btrfs(dump));
                let ours = if ours == kernels { ours } else { with_plain_strings(&ours) };
                assert!(ours.len() > 1000);
                let [ours, kernels] = [ours, kernels].map(|dump| String::from_utf8_lossy(&dump).into_owned());
                if let Some((ours, kernels)) = ours.lines().zip(kernels.lines()).find(|(a, b)| a != b) {
                    panic!("seed {seed}, protocol {protocol}:\n{ours}\n{kernels}");
                }
                assert_eq!(ours.len(), kernels.len());
                let into = format!("{}:/", to.paths()[0].display());
                succeed([
                    "-q".as_ref(),
                    "receive".as_ref(),
                    "-f".as_ref(),
                    stream.as_os_str(),
                    into.as_ref(),
                ]);
            }
            assert_clean(&to.paths()[0]);
            to.btrfs_check().unwrap();
            assert_equal(&from, &to, &untimed);
        }
    }
}

#[test]
fn our_streams_are_received_by_the_kernel() {
    if missing() {
        return;
    }
    for seed in 100..100 + pairs() {
        let scratch = Scratch::new(1 << 30).unwrap();
        let from = source(&scratch, seed);
        let image = from.paths()[0].display();
        let [s1, s2] = [format!("{image}:/s1"), format!("{image}:/s2")];
        for protocol in ["1", "2"] {
            let to = FileSystemSpec::default().make(&scratch).unwrap();
            let stream = scratch.unique("stream");
            let stream = stream.to_str().unwrap();
            succeed(["send", "--proto", protocol, "-f", stream, &s1, &s2]);
            let mounted = to.mount().unwrap();
            btrfs(["receive", "-f", stream, mounted.path().to_str().unwrap()]);
            mounted.unmount().unwrap();
            assert_equal(&from, &to, &[]);
        }
    }
}

/// A mount of Papilio, which a drop unmounts.
struct OurMount(PathBuf);

impl OurMount {
    fn new(image: &Path, directory: PathBuf) -> Self {
        fs::create_dir(&directory).unwrap();
        succeed(["mount".as_ref(), image.as_os_str(), directory.as_os_str()]);
        Self(directory)
    }

    fn at(&self, path: &str) -> String {
        self.0.join(path).to_str().unwrap().to_owned()
    }
}

impl Drop for OurMount {
    fn drop(&mut self) {
        let unmount = |lazy: &[&str]| {
            let output = command().arg("umount").args(lazy).arg(&self.0).output().unwrap();
            output.status.success()
        };
        assert!(unmount(&[]) || unmount(&["--lazy"]) && std::thread::panicking(), "the mount is busy");
    }
}

/// Compares two trees of the host. The times of the roots are left out, and what file systems count
/// in their own ways: sizes and links of directories.
fn assert_trees_equal(left: &Path, right: &Path, plain: bool) {
    let options = CompareOptions { keep: 100_000, ..CompareOptions::COPY };
    let mut report = compare(&HostTree::new(left), &HostTree::new(right), &options);
    let before = report.differences.len();
    report.differences.retain(|found| match found.fact.as_str() {
        // A plain directory has a mark, and none of Btrfs's properties.
        fact if fact.contains("\"user.papilio.received\"") || fact.contains("\"btrfs.") => !plain,
        "mtime" => found.path != Path::new(""),
        "size" | "nlink" => !left.join(&found.path).is_dir(),
        _ => true,
    });
    report.total -= (before - report.differences.len()) as u64;
    report.assert_equal(80);
}

#[test]
fn mounts_and_directories_send_and_receive() {
    if missing() || require(&[Need::Fuse]).is_none() {
        return;
    }
    let scratch = Scratch::new(1 << 30).unwrap();
    let from = source(&scratch, 1);
    let streams = ["full", "next"].map(|name| scratch.path().join(name).to_str().unwrap().to_owned());
    let [full, next] = &streams;
    // From a mount of the kernel, compressed; the output of both tools is the same.
    let mounted = from.mount_read_only().unwrap();
    let [s1, s2] = ["s1", "s2"].map(|name| mounted.path().join(name).to_str().unwrap().to_owned());
    succeed(["-q", "send", "--proto", "2", "--compressed-data", "-f", full, &s1]);
    succeed(["-q", "send", "--proto", "2", "--compressed-data", "-p", &s1, "-f", next, &s2]);
    let stock = kernel_streams_of(mounted.path(), scratch.path(), "2");
    for (ours, stock) in streams.iter().zip(&stock) {
        assert!(fs::read(ours).unwrap() == fs::read(stock).unwrap(), "{ours}");
    }
    let dropped = [full.as_str(), next];
    // Into a mount of the kernel, a mount of Papilio, and a directory of another file system.
    let kernel = FileSystemSpec::default().make(&scratch).unwrap();
    let kernel_mount = kernel.mount().unwrap();
    let image = empty(scratch.path());
    let ours = OurMount::new(&image, scratch.unique("ours"));
    let plain = tempfile::tempdir_in("/dev/shm").unwrap();
    for target in [kernel_mount.path(), &ours.0, plain.path()] {
        for stream in dropped {
            succeed(["-q", "receive", "-f", stream, target.to_str().unwrap()]);
        }
        for name in ["s1", "s2"] {
            assert_trees_equal(&mounted.path().join(name), &target.join(name), target == plain.path());
        }
        let stderr = fail(1, "already exists", ["-q", "receive", "-f", full, target.to_str().unwrap()]);
        assert!(!stderr.contains("incomplete"), "{stderr}");
    }
    for target in [kernel_mount.path(), &ours.0] {
        let shown = succeed_text(["property", "get", target.join("s2").to_str().unwrap(), "ro"]);
        assert_eq!(shown, "ro=true\n");
    }
    // What Papilio received serves as a parent for stock tools, and its mount sends.
    let [again, more] = ["again", "more"].map(|name| scratch.path().join(name).to_str().unwrap().to_owned());
    succeed(["-q", "send", "-f", &again, &ours.at("s1")]);
    succeed(["-q", "send", "-p", &ours.at("s1"), "-f", &more, &ours.at("s2")]);
    drop(ours);
    assert_clean(&image);
    let last = FileSystemSpec::default().make(&scratch).unwrap();
    let last = last.mount().unwrap();
    btrfs(["receive", "-f", &again, last.path().to_str().unwrap()]);
    btrfs(["receive", "-f", &more, last.path().to_str().unwrap()]);
    for name in ["s1", "s2"] {
        assert_trees_equal(&mounted.path().join(name), &last.path().join(name), false);
    }
    kernel_mount.unmount().unwrap();
    kernel.btrfs_check().unwrap();
}

/// Takes and sends snapshots of the subvolume `s` below `root` in turn, with changes between them.
/// A writable snapshot of a sent one is no change of it. Returns the streams.
fn chain(root: &str, folder: &Path, write: impl Fn(&str, &str)) -> Vec<String> {
    let at = |path: &str| format!("{root}/{path}");
    succeed(["subvolume", "create", &at("s")]);
    let mut streams = Vec::new();
    for number in 1..4 {
        write(&at(&format!("s/f{number}")), &format!("content {number}"));
        let (snapshot, parent) = (at(&format!("s{number}")), at(&format!("s{}", number - 1)));
        succeed(["subvolume", "snapshot", "-r", &at("s"), &snapshot]);
        let stream = folder.join(format!("stream-{number}")).to_str().unwrap().to_owned();
        match number {
            1 => succeed(["-q", "send", "-f", &stream, &snapshot]),
            _ => succeed(["-q", "send", "-p", &parent, "-f", &stream, &snapshot]),
        };
        succeed(["subvolume", "snapshot", &snapshot, &at(&format!("w{number}"))]);
        streams.push(stream);
    }
    streams
}

#[test]
fn each_snapshot_is_sent_at_once_and_fits_the_one_before() {
    if missing() || require(&[Need::Fuse]).is_none() {
        return;
    }
    let scratch = Scratch::new(1 << 30).unwrap();
    let host = scratch.unique("host");
    for mounted in [false, true] {
        let folder = scratch.unique("streams");
        fs::create_dir(&folder).unwrap();
        let (image, target) = (empty(&folder), scratch.unique("target"));
        let streams = if mounted {
            let mount = OurMount::new(&image, scratch.unique("from"));
            chain(mount.0.to_str().unwrap(), &folder, |path, content| fs::write(path, content).unwrap())
        } else {
            chain(&format!("{}:", image.display()), &folder, |path, content| {
                fs::write(&host, content).unwrap();
                succeed(["cp", host.to_str().unwrap(), path]);
            })
        };
        assert_clean(&image);
        // Each stream names its parent as the stream before has announced it.
        let announced: Vec<String> = streams
            .iter()
            .map(|stream| {
                succeed_text(["receive", "--dump", "-f", stream]).lines().next().unwrap().to_owned()
            })
            .collect();
        for pair in announced.windows(2) {
            let word = |line: &str, key: &str| {
                line.split_whitespace().find_map(|word| word.strip_prefix(key)).unwrap().to_owned()
            };
            assert_eq!(word(&pair[0], "uuid="), word(&pair[1], "parent_uuid="));
            assert_eq!(word(&pair[0], "transid="), word(&pair[1], "parent_transid="), "{pair:?}");
        }
        let kernel = FileSystemSpec::default().make(&scratch).unwrap();
        let kernel_mount = kernel.mount().unwrap();
        let other = folder.join("other");
        fs::create_dir(&other).unwrap();
        let ours = OurMount::new(&empty(&other), target);
        for stream in &streams {
            btrfs(["receive", "-f", stream, kernel_mount.path().to_str().unwrap()]);
            succeed(["-q", "receive", "-f", stream, ours.0.to_str().unwrap()]);
        }
        for received in [kernel_mount.path(), &ours.0] {
            for number in 1..4 {
                let content = fs::read_to_string(received.join(format!("s3/f{number}"))).unwrap();
                assert_eq!(content, format!("content {number}"));
            }
            assert!(!received.join("s2/f3").exists());
        }
        drop(ours);
        kernel_mount.unmount().unwrap();
    }
}

#[test]
fn compressed_extents_arrive_as_they_were_sent() {
    if missing() {
        return;
    }
    let scratch = Scratch::new(1 << 30).unwrap();
    for seed in 0..3 {
        let from = source(&scratch, seed);
        let [full, _] = kernel_streams(&from, scratch.path(), "2");
        let sizes = |image: &Path| {
            let text = succeed_text(["compsize", "-b", &format!("{}:/s1", image.display())]);
            let line =
                text.lines().find(|line| ["zstd", "lzo", "zlib"].iter().any(|name| line.starts_with(name)));
            line.map(|line| line.split_whitespace().skip(1).map(str::to_owned).collect::<Vec<_>>())
        };
        let sent = sizes(&from.paths()[0]).expect("the source is compressed");
        for (options, kept) in
            [(&["-q", "receive"][..], true), (&["-q", "receive", "--force-decompress"], false)]
        {
            let folder = tempfile::tempdir_in("/dev/shm").unwrap();
            let image = empty(folder.path());
            let into = format!("{}:/", image.display());
            let rest = ["-f", full.to_str().unwrap(), &into];
            succeed([options, &rest].concat());
            assert_clean(&image);
            let number = |sizes: &[String]| sizes[3].parse::<f64>().unwrap();
            let found = sizes(&image).map_or(0.0, |found| number(&found)) / number(&sent);
            // The kernel sends parts of some extents as plain bytes. Files with the property are
            // compressed again.
            assert!(if kept { found > 0.8 } else { found < 0.3 }, "seed {seed}: {found}, kept: {kept}");
        }
    }
}

#[test]
fn a_stream_that_ended_early_is_resumed() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let (stream, cut) = (folder.path().join("stream"), folder.path().join("cut"));
    let file = |name: &str, inode| Send::Mkfile { path: name.into(), inode };
    let text = |name: &str| Send::Write { path: name.into(), offset: 0, data: name.into() };
    let rename = |from: &str, to: &str| Send::Rename { from: from.into(), to: to.into() };
    let commands = [
        subvol("got"),
        file("o1", 257),
        rename("o1", "first"),
        text("first"),
        file("o2", 258),
        rename("o2", "second"),
        Send::Link { path: b"third".to_vec(), existing: b"second".to_vec() },
        Send::Unlink { path: b"first".to_vec() },
        text("second"),
        Send::End,
    ];
    let ends = write_stream(&stream, &commands);
    let whole = fs::read(&stream).unwrap();
    for (count, end) in ends.iter().enumerate().take(commands.len()).skip(1) {
        // Also in the middle of the next command.
        fs::write(&cut, &whole[..end + count % 2 * 3]).unwrap();
        let work = tempfile::tempdir_in("/dev/shm").unwrap();
        let (image, plain) = (empty(work.path()), work.path().join("plain"));
        fs::create_dir(&plain).unwrap();
        let into = format!("{}:/", image.display());
        for target in [into.as_str(), plain.to_str().unwrap()] {
            let receive = |file: &Path| {
                ["-q", "receive", "--resume", "-f", file.to_str().unwrap(), target].map(str::to_owned)
            };
            fail(1, "--resume completes it", receive(&cut));
            // Without the option, the destination exists.
            fail(1, "already exists", ["-q", "receive", "-f", stream.to_str().unwrap(), target]);
            // Another stream is refused, and does not spoil the record.
            let mut other = commands.clone();
            other[0] = Send::Subvol { path: b"got".to_vec(), uuid: Uuid::from_u128(78), ctransid: 5 };
            write_stream(&folder.path().join("other"), &other);
            fail(1, "not from this stream", receive(&folder.path().join("other")));
            succeed(receive(&stream));
            // A complete one is passed over.
            succeed(receive(&stream));
        }
        let fs = papilio::FileSystem::open(&image).unwrap();
        for name in ["second", "third"] {
            assert_eq!(fs.read(format!("/got/{name}")).unwrap(), b"second", "{count}");
            assert_eq!(std::fs::read(plain.join("got").join(name)).unwrap(), b"second");
        }
        assert!(fs.inode("/got/first").is_err() && !plain.join("got/first").exists());
        let received = fs.subvolumes().unwrap().into_iter().find(|s| s.name == b"got").unwrap();
        assert!(received.is_read_only() && received.received_uuid.as_u128() == 77);
        assert!(fs.inode("/got").unwrap().xattrs().unwrap().is_empty());
        assert_clean(&image);
    }
}

#[test]
fn hostile_streams_do_not_leave_a_directory() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let (stream, target) = (folder.path().join("stream"), folder.path().join("target"));
    let outside = folder.path().join("outside");
    fs::create_dir(&target).unwrap();
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("file"), "kept").unwrap();
    let arguments = ["-q", "receive", "-f", stream.to_str().unwrap(), target.to_str().unwrap()];
    let to = |link: &str, path: &Path| Send::Symlink {
        path: link.into(),
        inode: 257,
        target: path.as_os_str().as_encoded_bytes().to_vec(),
    };
    let made = [to("dir", &outside), to("link", &outside.join("file"))];
    let path = |path: &str| path.as_bytes().to_vec();
    let hostile = [
        Send::Mkfile { path: path("dir/new"), inode: 258 },
        Send::Unlink { path: path("dir/file") },
        Send::Rename { from: path("dir/file"), to: path("taken") },
        Send::Link { path: path("linked"), existing: path("dir/file") },
        Send::Write { path: path("link"), offset: 0, data: b"lost".to_vec() },
        Send::Truncate { path: path("link"), size: 0 },
        Send::Chmod { path: path("link"), mode: 0o777 },
        Send::SetXattr { path: path("dir/file"), name: b"user.x".to_vec(), value: b"y".to_vec() },
        Send::Mkdir { path: path("../outside/new"), inode: 258 },
        Send::Rmdir { path: path("../outside") },
    ];
    let mode =
        |path: &Path| std::os::unix::fs::PermissionsExt::mode(&fs::metadata(path).unwrap().permissions());
    let before = mode(&outside.join("file"));
    for (at, command) in hostile.into_iter().enumerate() {
        let mut commands = vec![subvol(&format!("got{at}"))];
        commands.extend(made.clone());
        commands.extend([command, Send::End]);
        write_stream(&stream, &commands);
        fail(1, "incomplete", arguments);
        assert_eq!(fs::read(outside.join("file")).unwrap(), b"kept", "{at}");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1, "{at}");
        assert_eq!(mode(&outside.join("file")), before, "{at}");
    }
    for name in ["../x", "a/b", "..", ""] {
        write_stream(&stream, &[subvol(name), Send::End]);
        fail(1, "invalid name", arguments);
    }
}

/// Makes an image with an empty file system.
fn empty(folder: &Path) -> PathBuf {
    let image = folder.join("image");
    papilio::mkfs(&image, &papilio::MkfsOptions::new().size(256 << 20)).unwrap();
    image
}

/// Writes a stream of commands to a file; returns the ends of its header and of each command.
fn write_stream(file: &Path, commands: &[Send]) -> Vec<usize> {
    let mut bytes = SendProtocol::V2.header().to_vec();
    let mut ends = vec![bytes.len()];
    for command in commands {
        command.append_to(SendProtocol::V2, &mut bytes).unwrap();
        ends.push(bytes.len());
    }
    fs::write(file, bytes).unwrap();
    ends
}

fn subvol(path: &str) -> Send {
    Send::Subvol { path: path.into(), uuid: Uuid::from_u128(77), ctransid: 5 }
}

#[test]
fn a_stream_cut_after_any_command_leaves_nothing_complete() {
    let scratch = tempfile::tempdir().unwrap();
    let stream = scratch.path().join("stream");
    let path = b"f".to_vec();
    let commands = [
        subvol("got"),
        Send::Mkfile { path: path.clone(), inode: 257 },
        Send::Write { path: path.clone(), offset: 0, data: b"text".to_vec() },
        Send::Fallocate { path: path.clone(), mode: 1, offset: 0, size: 8192 },
        Send::Truncate { path, size: 2 },
        Send::End,
    ];
    let ends = write_stream(&stream, &commands);
    let whole = fs::read(&stream).unwrap();
    for (count, end) in ends.iter().enumerate() {
        fs::write(&stream, &whole[..*end]).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let image = empty(folder.path());
        let into = format!("{}:/", image.display());
        let arguments = ["-q", "receive", "-f", stream.to_str().unwrap(), &into];
        let complete = count == commands.len();
        if complete {
            succeed(arguments);
        } else {
            fail(1, "the stream ends early", arguments);
        }
        let fs = papilio::FileSystem::open(&image).unwrap();
        let received: Vec<_> = fs.subvolumes().unwrap().into_iter().filter(|s| s.name == b"got").collect();
        assert_eq!(received.len(), usize::from(count > 0), "{count} commands");
        for subvolume in received {
            assert_eq!(subvolume.is_read_only(), complete, "{count} commands");
            assert_eq!(subvolume.received_uuid.as_u128(), if complete { 77 } else { 0 });
            assert_eq!(subvolume.sent.get(), if complete { 5 } else { 0 });
        }
        if complete {
            assert_eq!(fs.read("/got/f").unwrap(), b"te");
        }
        assert_clean(&image);
    }
}

#[test]
fn paths_that_leave_the_subvolume_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (image, stream) = (empty(folder.path()), folder.path().join("stream"));
    let fs = papilio::FileSystem::open_with(&image, &papilio::OpenOptions::new().write(true)).unwrap();
    fs.create_dir("/outside").unwrap();
    fs.close().unwrap();
    let into = format!("{}:/", image.display());
    let arguments = ["-q", "receive", "-f", stream.to_str().unwrap(), &into];
    let link = Send::Symlink { path: b"link".to_vec(), inode: 257, target: b"/outside".to_vec() };
    for (at, path) in ["../outside/x", "/outside/x", "a//x", "./x", "link/x", "", ".."].iter().enumerate() {
        let file = Send::Mkfile { path: (*path).into(), inode: 258 };
        write_stream(&stream, &[subvol(&format!("got{at}")), link.clone(), file, Send::End]);
        let message = fail(1, "mkfile", arguments);
        assert!(message.contains("incomplete"), "{message}");
    }
    for name in ["", ".", "..", "a/b", "../a", "/a"] {
        write_stream(&stream, &[subvol(name), Send::End]);
        fail(1, "invalid name", arguments);
    }
    assert_eq!(succeed_text(["ls", &format!("{}:/outside", image.display())]), "");
    assert_clean(&image);
}

#[test]
fn a_missing_parent_is_named_and_usage_is_checked() {
    let folder = tempfile::tempdir().unwrap();
    let (image, stream) = (empty(folder.path()), folder.path().join("stream"));
    let (path, uuid, clone_uuid) = (b"got".to_vec(), Uuid::from_u128(7), Uuid::from_u128(9));
    write_stream(&stream, &[Send::Snapshot { path, uuid, ctransid: 5, clone_uuid, clone_ctransid: 4 }]);
    let into = format!("{}:/", image.display());
    let message = fail(
        1,
        "no subvolume has the parent's UUID",
        ["-q", "receive", "-f", stream.to_str().unwrap(), &into],
    );
    assert!(message.contains(&clone_uuid.to_string()), "{message}");
    assert_eq!(command().arg("receive").output().unwrap().status.code(), Some(2));
    fail(1, "not read-only", ["-q", "send", "-f", "/dev/null", &into]);
}
