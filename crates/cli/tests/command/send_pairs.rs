//! Seeded pairs of snapshots, made by the simulator's operations: streams of Papilio received by
//! the kernel's tools, streams of the kernel received by Papilio, the dumps of both tools, and the
//! order of commands. The order is that of kernel 6.18; others may send times elsewhere.
//!
//! Many pairs share one image. Each pair is a subvolume with a snapshot before and one after its
//! last operations. Streams are full, incremental, and incremental from the snapshot of another
//! pair, where inode numbers are alike and inodes are not.
//!
//! `PAPILIO_SEND_PAIRS` sets the number of pairs (4), `PAPILIO_SEND_SEED` the first seed (1).

use crate::common::{succeed, with_plain_strings};
use crate::pairs::{BATCH, source};
use papilio::{FileSystem, MkfsOptions, OpenOptions, Receive, SendOptions, SendProtocol};
use papilio_oracle::{CompareOptions, FileSystemSpec, HostTree, ImageSet, Need, Scratch, compare, require};
use rustix::fs::{SeekFrom, seek};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Bytes of the header of a stream, and of the command that ends it.
const HEADER: usize = 17;
const END: usize = 10;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().expect("the setting is a number"))
}

/// How a stream is written.
#[derive(Clone, Copy, Debug)]
struct Form {
    name: &'static str,
    protocol: SendProtocol,
    compressed: bool,
}

const FORMS: [Form; 3] = [
    Form { name: "1", protocol: SendProtocol::V1, compressed: false },
    Form { name: "2", protocol: SendProtocol::V2, compressed: false },
    Form { name: "compressed", protocol: SendProtocol::V2, compressed: true },
];

/// A snapshot to send, and the one that the receiver has.
struct Step {
    name: String,
    parent: Option<String>,
}

/// The steps of a batch, in the order of their streams.
fn steps(pairs: u64) -> Vec<Step> {
    let mut steps = Vec::new();
    for pair in 0..pairs {
        let (first, second) = (format!("first{pair}"), format!("second{pair}"));
        steps.push(Step { name: first.clone(), parent: None });
        steps.push(Step { name: second, parent: Some(first.clone()) });
        if pair > 0 {
            let parent = Some(format!("second{}", pair - 1));
            steps.push(Step { name: format!("other{pair}"), parent });
        }
    }
    steps
}

fn our_streams(image: &Path, form: Form, steps: &[Step]) -> Vec<Vec<u8>> {
    let fs = FileSystem::open(image).unwrap();
    let id = |name: &String| fs.inode(format!("/{name}")).unwrap().tree();
    let send = |step: &Step| {
        let mut bytes = Vec::new();
        let options = SendOptions::new().protocol(form.protocol).compressed_data(form.compressed);
        let options = options.parent(step.parent.as_ref().map(id));
        options.send(&fs, id(&step.name), &mut bytes, &mut ()).unwrap();
        bytes
    };
    steps.iter().map(send).collect()
}

fn btrfs<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Vec<u8> {
    let output = Command::new("btrfs").args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn kernel_streams(images: &ImageSet, scratch: &Scratch, form: Form, steps: &[Step]) -> Vec<Vec<u8>> {
    let mounted = images.mount_read_only().unwrap();
    let file = scratch.unique("sent");
    let send = |step: &Step| {
        let proto = if form.protocol == SendProtocol::V1 { "1" } else { "2" };
        let mut command = Command::new("btrfs");
        command.args(["send", "-q", "--proto", proto]).arg("-f").arg(&file);
        if form.compressed {
            command.arg("--compressed-data");
        }
        if let Some(parent) = &step.parent {
            command.arg("-p").arg(mounted.path().join(parent));
        }
        let output = command.arg(mounted.path().join(&step.name)).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let bytes = fs::read(&file).unwrap();
        fs::remove_file(&file).unwrap();
        bytes
    };
    let streams = steps.iter().map(send).collect();
    mounted.unmount().unwrap();
    streams
}

/// Writes all streams into one file, one behind another.
fn joined(scratch: &Scratch, streams: &[Vec<u8>]) -> PathBuf {
    let path = scratch.unique("streams");
    let mut file = File::create(&path).unwrap();
    streams.iter().for_each(|stream| file.write_all(stream).unwrap());
    path
}

/// Compares the dumps of both tools, of all commands as one stream.
fn assert_dumps_equal(label: &str, scratch: &Scratch, streams: &[Vec<u8>]) {
    let path = scratch.unique("dumped");
    let mut file = File::create(&path).unwrap();
    file.write_all(&streams[0][..HEADER]).unwrap();
    for stream in streams {
        file.write_all(&stream[HEADER..stream.len() - END]).unwrap();
    }
    file.write_all(&streams[0][streams[0].len() - END..]).unwrap();
    let dump = ["receive".as_ref(), "--dump".as_ref(), "-f".as_ref(), path.as_os_str()];
    // The stock tool comes first: a stream that it cannot dump was sent wrong.
    let (kernels, ours) = (btrfs(dump), succeed(dump));
    fs::remove_file(path).unwrap();
    let lines = |dump: &[u8]| dump.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect::<Vec<_>>();
    let plain = with_plain_strings(&ours);
    let (ours, kernels) = (lines(if ours == kernels { &ours } else { &plain }), lines(&kernels));
    assert!(ours.len() > 30 * streams.len(), "{label}: {} commands", ours.len());
    for (ours, kernels) in ours.iter().zip(&kernels) {
        assert!(ours == kernels, "{label}:\n{}\n{}", ours.escape_ascii(), kernels.escape_ascii());
    }
    assert_eq!(ours.len(), kernels.len(), "{label}");
}

/// The numbers of commands that carry data or cut a file, and of chmod.
const OF_DATA: [u16; 6] = [15, 16, 17, 18, 23, 25];

/// Returns the commands of a stream as they lie.
fn commands(stream: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = &stream[HEADER..];
    std::iter::from_fn(move || {
        let length = END + u32::from_le_bytes(rest.get(..4)?.try_into().unwrap()) as usize;
        let (command, after) = rest.split_at(length);
        rest = after;
        Some(command)
    })
}

/// Returns the commands that carry no data.
fn skeleton(stream: &[u8]) -> Vec<&[u8]> {
    let kind = |command: &[u8]| u16::from_le_bytes(command[4..6].try_into().unwrap());
    commands(stream).filter(|command| !OF_DATA.contains(&kind(command))).collect()
}

/// How many streams are those of the kernel.
#[derive(Clone, Copy, Debug, Default)]
struct Alike {
    /// Full streams, and those whose every byte is the kernel's.
    full: usize,
    bytes: usize,
    /// Incremental streams, and those whose commands without data are the kernel's, byte by byte.
    incremental: usize,
    order: usize,
}

/// Compares with the kernel's streams. The commands without data of full streams must be alike.
///
/// Data may differ: where the kernel's choice of a clone is not possible, Papilio looks for another
/// one. In incremental streams the kernel sends an extent again if a part of it changed, and no
/// mode after a change of owner removed a part of it.
fn compare_orders(label: &str, steps: &[Step], ours: &[Vec<u8>], kernels: &[Vec<u8>]) -> Alike {
    let mut alike = Alike::default();
    for (step, (ours, kernels)) in steps.iter().zip(ours.iter().zip(kernels)) {
        let (left, right) = (skeleton(ours), skeleton(kernels));
        if step.parent.is_none() {
            for (at, (ours, kernels)) in left.iter().zip(&right).enumerate() {
                let (left, right) = (ours.escape_ascii(), kernels.escape_ascii());
                assert!(ours == kernels, "{label}, {}, command {at}:\n{left}\n{right}", step.name);
            }
            assert_eq!(left.len(), right.len(), "{label}, {}", step.name);
            alike.full += 1;
            alike.bytes += usize::from(ours == kernels);
        } else if step.name.starts_with("second") {
            alike.incremental += 1;
            alike.order += usize::from(left == right);
        }
    }
    println!("{label}: {alike:?}");
    alike
}

/// Returns the offsets of the sectors that have data, as SEEK_DATA says for each.
fn data_sectors(path: &Path) -> Vec<u64> {
    let file = File::open(path).unwrap();
    let size = file.metadata().unwrap().len();
    let has_data = |at: &u64| seek(&file, SeekFrom::Data(*at)) == Ok(*at);
    (0..size).step_by(4096).filter(has_data).collect()
}

/// Compares what was received with the source, on kernel mounts. Returns the differences.
fn differences(from: &Path, to: &Path, first_seed: u64, steps: &[&Step], of_kernel: bool) -> Vec<String> {
    let mut found = Vec::new();
    for step in steps {
        let (left, right) = (from.join(&step.name), to.join(&step.name));
        // Holes that replace data may arrive as zeros.
        let segments = step.parent.is_none();
        let options = CompareOptions { segments, ..CompareOptions::COPY };
        let mut report = compare(&HostTree::new(left), &HostTree::new(right), &options);
        // Orphan names pass through the root, and the kernel does not always send its times after
        // the last one.
        let timed = |path: &Path| !of_kernel || path != Path::new("");
        report.differences.retain(|found| found.fact != "mtime" || timed(&found.path));
        // The kernel sends a new owner without the mode, and the set-user-ID bits are lost then.
        let set_ids = |fact: &papilio_oracle::Difference| {
            let bits = |mode: &str| u32::from_str_radix(mode, 8).unwrap();
            (bits(&fact.left) ^ bits(&fact.right)) & !0o6000 == 0
        };
        report.differences.retain(|found| !(of_kernel && found.fact == "mode" && set_ids(found)));
        // SEEK_HOLE of the kernel passes over preallocated space at the end of a file, where
        // SEEK_DATA finds none.
        let sectors = |root: &Path, path: &Path| data_sectors(&root.join(&step.name).join(path));
        report.differences.retain(|found| {
            found.fact != "segments" || sectors(from, &found.path) != sectors(to, &found.path)
        });
        assert!(report.entries > 1, "{}: nothing was compared", step.name);
        let pair: u64 = step.name.trim_start_matches(|c: char| c.is_ascii_alphabetic()).parse().unwrap();
        let line = |difference| format!("seed {}, {}: {difference}", first_seed + pair, step.name);
        found.extend(report.differences.iter().map(line));
    }
    found
}

/// Whether the kernel's own receiver refuses the last of its streams: against a parent that is no
/// ancestor, the kernel may write commands that cannot be carried out.
fn refused_by_kernel(scratch: &Scratch, streams: &[&Vec<u8>]) -> bool {
    let to = FileSystemSpec { device_size: 2 << 30, ..FileSystemSpec::default() }.make(scratch).unwrap();
    let mounted = to.mount().unwrap();
    let path = scratch.unique("refused");
    let taken = streams.iter().map(|stream| {
        fs::write(&path, stream).unwrap();
        let mut command = Command::new("btrfs");
        command.args(["receive", "-q", "-f"]).args([&*path, mounted.path()]);
        command.output().unwrap().status.success()
    });
    let taken: Vec<bool> = taken.collect();
    mounted.unmount().unwrap();
    fs::remove_file(&to.paths()[0]).unwrap();
    fs::remove_file(path).unwrap();
    let (last, before) = taken.split_last().expect("there is a stream");
    !last && before.iter().all(|taken| *taken)
}

fn run_batch(first_seed: u64, pairs: u64) -> Vec<String> {
    let scratch = Scratch::new(2 << 30).unwrap();
    let image = source(&scratch, first_seed, pairs);
    let from = ImageSet::open(&scratch, vec![image.clone()]);
    let steps = steps(pairs);
    let mut found = Vec::new();
    for form in FORMS {
        let label = format!("seeds from {first_seed}, protocol {}", form.name);
        let ours = our_streams(&image, form, &steps);
        let kernels = kernel_streams(&from, &scratch, form, &steps);
        let alike = compare_orders(&label, &steps, &ours, &kernels);
        assert!(4 * alike.bytes >= 3 * alike.full, "{label}: {alike:?}");
        assert!(2 * alike.order >= alike.incremental, "{label}: {alike:?}");
        assert_dumps_equal(&format!("{label}, ours"), &scratch, &ours);
        assert_dumps_equal(&format!("{label}, the kernel's"), &scratch, &kernels);
        let source = from.mount_read_only().unwrap();
        {
            let stream = joined(&scratch, &ours);
            let to = FileSystemSpec { device_size: 2 << 30, ..FileSystemSpec::default() };
            let to = to.make(&scratch).unwrap();
            let mounted = to.mount().unwrap();
            btrfs(["receive".as_ref(), "-f".as_ref(), stream.as_os_str(), mounted.path().as_os_str()]);
            let all: Vec<_> = steps.iter().collect();
            let of_ours = differences(source.path(), mounted.path(), first_seed, &all, false);
            found.extend(of_ours.into_iter().map(|line| format!("{label}, received by the kernel, {line}")));
            mounted.unmount().unwrap();
            fs::remove_file(&to.paths()[0]).unwrap();
            fs::remove_file(stream).unwrap();
        }
        let target = scratch.image("target", 2 << 30).unwrap();
        papilio::mkfs(&target, &MkfsOptions::new().force(true)).unwrap();
        let fs = FileSystem::open_with(&target, &OpenOptions::new().write(true)).unwrap();
        let mut arrived: Vec<(&Vec<u8>, &Step)> = Vec::new();
        for (stream, step) in kernels.iter().zip(&steps) {
            let mut received = Vec::new();
            let result = Receive::new().receive(&fs, "/", &mut &stream[..], &mut received, &mut ());
            if let Err(error) = result {
                let taken: Vec<_> = arrived.iter().map(|(stream, _)| *stream).chain([stream]).collect();
                assert!(refused_by_kernel(&scratch, &taken), "{label}, {}: {error}", step.name);
                println!("{label}, {}: no receiver takes the kernel's stream: {error}", step.name);
                continue;
            }
            assert!(received.iter().all(|subvolume| subvolume.complete));
            arrived.push((stream, step));
        }
        fs.close().unwrap();
        let to = ImageSet::open(&scratch, vec![target.clone()]);
        to.btrfs_check().unwrap();
        let mounted = to.mount_read_only().unwrap();
        let arrived: Vec<_> = arrived.into_iter().map(|(_, step)| step).collect();
        let of_kernels = differences(source.path(), mounted.path(), first_seed, &arrived, true);
        found.extend(of_kernels.into_iter().map(|line| format!("{label}, received by Papilio, {line}")));
        mounted.unmount().unwrap();
        fs::remove_file(target).unwrap();
    }
    found
}

#[test]
fn pairs_arrive_equal_at_the_other_side() {
    let needs = [Need::KERNEL_MOUNT, &[Need::Command("btrfs")]].concat();
    if require(&needs).is_none() {
        return;
    }
    let (pairs, mut seed) = (setting("PAPILIO_SEND_PAIRS", 4), setting("PAPILIO_SEND_SEED", 1));
    let last = seed + pairs;
    let mut found = Vec::new();
    while seed < last {
        let now = BATCH.min(last - seed);
        let of_batch = run_batch(seed, now);
        of_batch.iter().for_each(|line| println!("{line}"));
        found.extend(of_batch);
        seed += now;
        println!("{} pairs, {} differences", pairs - (last - seed), found.len());
    }
    assert!(found.is_empty(), "{} differences:\n{}", found.len(), found[..found.len().min(40)].join("\n"));
}
