//! Commands everywhere: each is carried out on an image, on our mount of it, and on the kernel's
//! mount. The three have the same effect, or refuse in one line with exit status 1.
//!
//! The effect is all that another program can see afterwards: paths with kinds, modes, owners,
//! links and content, extended attributes, subvolumes with their flags, the default one, the label,
//! the size, quotas with limits, and for each file whether its extents are compressed.

use crate::kernel::KernelMount;
use crate::world::{World, papilio, run};
use papilio::{FileKind, FileSystem, Inode, OpenOptions};
use papilio_oracle::Need;
use std::fs;
use std::path::Path;

/// The place where a command is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Image,
    Ours,
    Kernel,
}

const SIDES: [Side; 3] = [Side::Image, Side::Ours, Side::Kernel];

/// The commands. A word that begins with `@/` is a path in the file system, `@` the file system
/// itself, and `^` a file beside the image. The image has the subvolumes `s` and `other`, `kept`, a
/// read-only snapshot of `s`, and the directory `d`.
const COMMANDS: &[&str] = &[
    "subvolume create @/new",
    "subvolume create @/a1 @/d/a2",
    "subvolume create -p @/x/y/z",
    "subvolume create @/s",
    "subvolume create @/missing/new",
    "subvolume snapshot @/s @/d/copy",
    "subvolume snapshot -r @/s @/frozen",
    "subvolume snapshot -r @/s @/d",
    "subvolume snapshot @/d @/copy",
    "subvolume snapshot @/kept @/writable",
    "subvolume delete @/other",
    "subvolume delete -c @/kept @/other",
    "subvolume delete @/d",
    "subvolume delete @/missing",
    "subvolume set-default @/s",
    "subvolume set-default @/d",
    "subvolume sync @",
    "property set @/s ro true",
    "property set @/kept ro false",
    "property set @/d ro true",
    "property set @/d compression zstd",
    "property set @/s/text compression none",
    "property set @/s/text compression lzma",
    "property set -t filesystem @ label other",
    "filesystem label @ renamed",
    "filesystem sync @",
    "filesystem resize 280M @",
    "filesystem resize 1:-8M @",
    "filesystem resize 1M @",
    "filesystem resize 9:max @",
    "filesystem defragment -czstd @/s/text",
    "filesystem defragment -czlib -L 9 @/s/packed",
    "filesystem defragment --nocomp @/s/packed",
    "filesystem defragment -czstd -L 16 @/s/text",
    "filesystem defragment -czstd:15 @/s/text",
    "filesystem defragment -cnone @/s/text",
    "filesystem defragment -cfoo @/s/text",
    "filesystem defragment @/missing",
    "quota enable @",
    "quota enable --simple @",
    "quota disable @",
    "quota rescan -W @",
    "qgroup create 1/5 @",
    "qgroup limit 1M @/s",
    "balance start -dusage=0 @",
    "balance start -mconvert=raid1 @",
    "balance pause @",
    "balance cancel @",
    "device remove 1 @",
    "device remove 7 @",
    "device add ^missing @",
    "device stats -z @",
    "scrub start -B @",
    "receive -f ^stream @/",
    "receive -f ^stream @/d",
    "receive -f ^stream @/missing",
    "receive -f ^garbage @/d",
];

fn words(command: &str, side: Side, world: &World) -> Vec<String> {
    let root = match side {
        Side::Image => world.image(),
        Side::Ours | Side::Kernel => world.directory(),
    };
    let root = root.to_str().unwrap();
    let place = |word: &str| match (word, side) {
        ("@", _) => root.to_owned(),
        (word, Side::Image) if word.starts_with("@/") => format!("{root}:{}", &word[1..]),
        (word, _) if word.starts_with("@/") => format!("{root}{}", &word[1..]),
        (word, _) if word.starts_with('^') => world.beside(&word[1..]).to_str().unwrap().to_owned(),
        (word, _) => word.to_owned(),
    };
    command.split(' ').map(place).collect()
}

/// All that can be seen in a file system.
fn seen(image: &Path) -> Vec<String> {
    let fs = FileSystem::open_with(image, &OpenOptions::new()).unwrap();
    let mut lines = Vec::new();
    let mut pending = vec![(String::new(), fs.inode("/").unwrap())];
    while let Some((path, inode)) = pending.pop() {
        lines.push(format!("{}: {}", if path.is_empty() { "/" } else { &path }, of(&inode)));
        if inode.file_type() != FileKind::Directory {
            continue;
        }
        for entry in inode.read_dir().unwrap() {
            let entry = entry.unwrap();
            let name = String::from_utf8_lossy(entry.file_name()).into_owned();
            pending.push((format!("{path}/{name}"), entry.inode().unwrap()));
        }
    }
    for subvolume in fs.subvolumes().unwrap() {
        // The kernel cleans deleted ones some time later.
        let Some(path) = &subvolume.path else { continue };
        let path = String::from_utf8_lossy(path).into_owned();
        let (flags, received) = (subvolume.is_read_only(), !subvolume.received_uuid.is_nil());
        lines.push(format!("subvolume {path:?}: read-only {flags}, received {received}"));
    }
    lines.push(format!("default {:?}", fs.default_subvolume().unwrap()));
    lines.push(format!("label {:?}", fs.label()));
    lines.push(format!("{} bytes", fs.superblock().raw.total_bytes));
    if let Some(status) = fs.quota_status().unwrap() {
        lines.push(format!("quotas {:?}", status.flags));
        for group in fs.qgroups().unwrap() {
            lines.push(format!("qgroup {}: {:?} {:?}", group.id, group.max_referenced, group.max_exclusive));
        }
    }
    lines.sort();
    lines
}

fn of(inode: &Inode) -> String {
    let metadata = inode.metadata();
    let mut text = format!(
        "{:?} {:o} {} {} {}",
        metadata.file_type(),
        metadata.permissions(),
        metadata.uid(),
        metadata.gid(),
        metadata.nlink(),
    );
    for xattr in inode.xattrs().unwrap() {
        text += &format!(" {}={}", xattr.name.escape_ascii(), xattr.value.escape_ascii());
    }
    if metadata.file_type() == FileKind::Regular {
        let file = inode.open().unwrap();
        let bytes = file.read_all().unwrap();
        let sum = bytes.iter().fold(7_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add((*byte).into()));
        let extents = file.extents(0, usize::MAX).unwrap();
        let mut kinds: Vec<_> = extents.iter().map(|extent| format!("{:?}", extent.compression)).collect();
        kinds.dedup();
        text += &format!(" {} bytes {sum:x} {kinds:?}", bytes.len());
    }
    text
}

/// Returns what a command leaves the same on each side. Where snapshots share data, the kernel
/// compresses a copy of it. Images and our mounts compress it for all that share it, if it gets
/// smaller.
fn comparable<'a>(command: &str, seen: &'a [String]) -> Vec<&'a str> {
    let compresses = command.starts_with("filesystem defragment -");
    let of_any_compression =
        |line: &str| compresses && (line.starts_with("/kept/") || line.starts_with("/s/packed"));
    seen.iter()
        .map(|line| match line.rsplit_once(" [") {
            Some((rest, _)) if of_any_compression(line) => rest,
            _ => line.as_str(),
        })
        .collect()
}

/// Carries out a command. Returns its exit status, its errors, and what can be seen afterwards.
fn carry_out(command: &str, side: Side, world: &World, pristine: &Path) -> (i32, String, Vec<String>) {
    run("cp", &["--sparse=always", pristine.to_str().unwrap(), world.image().to_str().unwrap()]);
    let arguments = words(command, side, world);
    let output = match side {
        Side::Image => papilio(&arguments),
        Side::Ours => {
            world.mount_plainly(&["-o", "subvolid=5"]);
            let output = papilio(&arguments);
            world.unmount();
            output
        }
        Side::Kernel => {
            let _kernel = KernelMount::new(&world.image(), &world.directory(), "subvolid=5");
            papilio(&arguments)
        }
    };
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    // The kernel frees the loop device some time after the unmount.
    let copied = world.beside("copied.img");
    run("cp", &["--sparse=always", world.image().to_str().unwrap(), copied.to_str().unwrap()]);
    (output.status.code().unwrap(), errors, seen(&copied))
}

#[test]
fn commands_have_the_same_effect_everywhere() {
    let needs = [Need::KERNEL_MOUNT, &[Need::Fuse, Need::Command("btrfs"), Need::Command("mkfs.btrfs")]];
    let Some(world) = World::new(&needs.concat()) else { return };
    let (image, pristine) = (world.image(), world.beside("pristine.img"));
    fs::remove_file(&image).unwrap();
    fs::File::create(&image).unwrap().set_len(300 << 20).unwrap();
    run("mkfs.btrfs", &["-q", "-L", "first", image.to_str().unwrap()]);
    {
        let _kernel = KernelMount::new(&image, &world.directory(), "rw");
        for name in ["s", "other"] {
            run("btrfs", &["-q", "subvolume", "create", &world.at(name)]);
        }
        fs::write(world.at("s/text"), "some text\n".repeat(40_000)).unwrap();
        run("sync", &["-f", &world.at("")]);
        fs::copy(world.at("s/text"), world.at("s/packed")).unwrap();
        run("btrfs", &["-q", "filesystem", "defragment", "-f", "-czstd", &world.at("s/packed")]);
        fs::create_dir(world.at("d")).unwrap();
        run("btrfs", &["-q", "subvolume", "snapshot", "-r", &world.at("s"), &world.at("kept")]);
        let stream = world.beside("stream");
        run("btrfs", &["-q", "send", "-f", stream.to_str().unwrap(), &world.at("kept")]);
        fs::write(world.beside("garbage"), "no stream at all, but some bytes").unwrap();
        run("btrfs", &["filesystem", "sync", &world.at("")]);
    }
    run("cp", &["--sparse=always", image.to_str().unwrap(), pristine.to_str().unwrap()]);
    let before = seen(&pristine);
    let mut faults = Vec::new();
    for command in COMMANDS {
        let results = SIDES.map(|side| carry_out(command, side, &world, &pristine));
        let [first, ..] = &results;
        for (side, (code, errors, after)) in SIDES.iter().zip(&results) {
            if *code != first.0 {
                faults.push(format!(
                    "{command}: {side:?} exits with {code}, an image with {}: {errors}",
                    first.0
                ));
            } else if comparable(command, after) != comparable(command, &first.2) {
                let differs = |line: &&String, other: &[String]| !other.contains(line);
                let lines: Vec<_> = after.iter().filter(|line| differs(line, &first.2)).collect();
                let missing: Vec<_> = first.2.iter().filter(|line| differs(line, after)).collect();
                faults.push(format!("{command}: {side:?} leaves {lines:?}, an image {missing:?}"));
            }
            if *code != 0 && after != &before && !command.starts_with("receive") {
                faults.push(format!("{command}: {side:?} is refused and has changed something"));
            }
            let lines = errors.trim_end().lines().filter(|line| !line.starts_with("At ")).count();
            if command.contains(" -c") && *code == 2 && !errors.contains("zlib, lzo and zstd") {
                faults.push(format!("{command}: {side:?} does not name the algorithms: {errors:?}"));
            }
            // Wrong usage has the command's synopsis, too.
            if *code == 1 && lines != 1 || *code == 2 && lines > 6 {
                faults.push(format!("{command}: {side:?} says {errors:?}"));
            }
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}
