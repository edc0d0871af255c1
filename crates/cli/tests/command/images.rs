//! Disk images with partitions and of other formats than raw, with the kernel and qemu-img as the
//! judges.

use crate::common::{fail, papilio, succeed, succeed_json, succeed_text, text};
use papilio_oracle::{ImageSet, Need, Scratch, require};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

const MIB: u64 = 1 << 20;
/// The size of a file system.
const SIZE: u64 = 256 * MIB;

/// Runs a program, which must succeed.
fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {}", text(&output.stderr));
}

/// Makes a partition table from a script of sfdisk.
fn sfdisk(disk: &str, script: &str) {
    use std::io::Write;
    let mut command = Command::new("sfdisk");
    let mut child = command.args(["-q", disk]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

/// Copies an image over the bytes of a disk from `start` on.
fn put(image: &str, disk: &str, start: u64) {
    let (from, seek) = (format!("if={image}"), format!("seek={}", start / MIB));
    let to = format!("of={disk}");
    run("dd", &[&from, &to, "bs=1M", &seek, "conv=notrunc,sparse", "status=none"]);
}

/// Makes a file system with one file, `name`, that contains its own name.
fn file_system(scratch: &Scratch, name: &str) -> String {
    let image = scratch.image(name, SIZE).unwrap().to_str().unwrap().to_owned();
    succeed(["mkfs", "-q", &image]);
    let file = scratch.path().join(format!("{name}.txt"));
    std::fs::write(&file, name).unwrap();
    succeed(["cp", file.to_str().unwrap(), &format!("{image}:/{name}")]);
    image
}

/// Asserts that the kernel reads `contents` from the files of a file system at an offset of a disk.
fn assert_kernel_reads(scratch: &Scratch, disk: &str, start: u64, contents: &[(&str, &str)]) {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    // The oracle attaches whole images.
    let copy = scratch.image("part", SIZE).unwrap();
    let (from, to) = (format!("if={disk}"), format!("of={}", copy.display()));
    let (skip, count) = (format!("skip={}", start / MIB), format!("count={}", SIZE / MIB));
    run("dd", &[&from, &to, "bs=1M", &skip, &count, "conv=notrunc,sparse", "status=none"]);
    let images = ImageSet::open(scratch, vec![copy.clone()]);
    images.btrfs_check().unwrap();
    let mounted = images.mount_read_only().unwrap();
    for (name, content) in contents {
        assert_eq!(&std::fs::read_to_string(mounted.path().join(name)).unwrap(), content);
    }
    mounted.unmount().unwrap();
    std::fs::remove_file(copy).unwrap();
}

#[test]
fn partitions_of_gpt_and_mbr_are_read_and_written() {
    if require(&[Need::Command("sfdisk")]).is_none() {
        return;
    }
    let scratch = Scratch::new(2 << 30).unwrap();
    let (one, two) = (file_system(&scratch, "one"), file_system(&scratch, "two"));
    let gpt = "label: gpt\nstart=1MiB, size=8MiB, name=boot, type=uefi\nstart=16MiB, size=256MiB, name=left\n\
               start=300MiB, size=256MiB, name=right\n";
    let mbr = "label: dos\nstart=1MiB, size=8MiB, type=c\nstart=12MiB, size=600MiB, type=5\n\
               start=16MiB, size=256MiB, type=83\nstart=300MiB, size=256MiB, type=83\n";
    for (label, script, numbers) in [("gpt", gpt, [2, 3]), ("mbr", mbr, [5, 6])] {
        let disk = scratch.image(label, 640 * MIB).unwrap().to_str().unwrap().to_owned();
        sfdisk(&disk, script);
        put(&one, &disk, 16 * MIB);
        // The only file system is found by itself.
        assert_eq!(succeed_text(["ls", &format!("{disk}:/")]), "one\n");
        put(&two, &disk, 300 * MIB);
        let [left, right] = numbers.map(|number| format!("{disk}@{number}"));
        assert_eq!(succeed_text(["cat", &format!("{left}:/one")]), "one");
        assert_eq!(succeed_text(["cat", &format!("{right}:/two")]), "two");
        let number = numbers[1].to_string();
        assert_eq!(succeed_text(["ls", "--partition", &number, &disk]), "two\n");
        fail(1, "2 partitions have Btrfs file systems", ["ls", &disk]);
        fail(1, "no partition 9", ["ls", &format!("{disk}@9")]);
        fail(1, "no partition nowhere", ["ls", "--partition", "nowhere", &disk]);
        fail(1, "no Btrfs magic", ["ls", &format!("{disk}@1")]);

        let listed = succeed_json(["inspect", "partitions", "--json", &disk]);
        let listed = listed.as_array().unwrap();
        let found = listed.iter().find(|partition| partition["number"] == numbers[1]).unwrap();
        assert_eq!((&found["start"], &found["length"]), (&(300 * MIB).into(), &SIZE.into()));
        assert_eq!(found["content"], "btrfs");
        let uuid = found["uuid"].as_str().unwrap().to_uppercase();
        assert_eq!(succeed_text(["ls", "--partition", &uuid, &disk]), "two\n");
        if label == "gpt" {
            assert_eq!(succeed_text(["ls", "--partition", "left", &disk]), "one\n");
        }
        let table = succeed_text(["inspect", "partitions", &disk]);
        assert_eq!(table.lines().count(), 1 + listed.len());

        let file = scratch.path().join("one.txt");
        succeed(["cp", file.to_str().unwrap(), &format!("{right}:/new")]);
        succeed(["check", "--check-data-csum", &right]);
        succeed(["check", "--check-data-csum", &left]);
        assert_kernel_reads(&scratch, &disk, 300 * MIB, &[("two", "two"), ("new", "one")]);
        assert_kernel_reads(&scratch, &disk, 16 * MIB, &[("one", "one")]);
        // A file that has this name wins.
        std::fs::copy(&one, &right).unwrap();
        assert_eq!(succeed_text(["ls", &format!("{right}:/")]), "one\n");
    }
}

/// A file that holds more than the file system keeps its length.
#[test]
fn resizing_leaves_the_rest_of_a_disk_alone() {
    if require(&["sfdisk", "qemu-img"].map(Need::Command)).is_none() {
        return;
    }
    let scratch = Scratch::new(2 << 30).unwrap();
    let one = file_system(&scratch, "one");
    let disk = scratch.image("disk", 640 * MIB).unwrap().to_str().unwrap().to_owned();
    sfdisk(&disk, "label: gpt\nstart=16MiB, size=256MiB\nstart=300MiB, size=64MiB\n");
    put(&one, &disk, 16 * MIB);
    let file = std::fs::File::options().read(true).write(true).open(&disk).unwrap();
    file.write_all_at(&[7; 4096], 300 * MIB).unwrap();
    let end = |image: &str| std::fs::metadata(image).unwrap().len();
    for image in [disk.clone(), format!("{disk}@1")] {
        for size in ["-64M", "max"] {
            succeed(["filesystem", "resize", size, &image]);
            assert_eq!(end(&disk), 640 * MIB);
            succeed(["check", "--check-data-csum", &image]);
        }
    }
    let mut other = [0; 4096];
    file.read_exact_at(&mut other, 300 * MIB).unwrap();
    assert_eq!(other, [7; 4096]);
    fail(1, "disk", ["filesystem", "resize", "+64M", &disk]);
    assert_eq!(end(&disk), 640 * MIB);

    let qcow2 = scratch.path().join("one.qcow2").to_str().unwrap().to_owned();
    run("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &one, &qcow2]);
    let before = end(&qcow2);
    succeed(["filesystem", "resize", "-64M", &qcow2]);
    assert!(end(&qcow2) >= before);
    succeed(["check", "--check-data-csum", &qcow2]);
    assert_eq!(succeed_text(["cat", &format!("{qcow2}:/one")]), "one");
    run("qemu-img", &["check", "-q", &qcow2]);
    // A raw image follows its file system.
    succeed(["filesystem", "resize", "-64M", &one]);
    assert_eq!(end(&one), SIZE - 64 * MIB);

    let tree = scratch.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("small"), "text").unwrap();
    let left = format!("{disk}@1");
    succeed(["mkfs", "-q", "-f", "--rootdir", tree.to_str().unwrap(), &left]);
    assert_eq!(succeed_text(["cat", &format!("{left}:/small")]), "text");
    assert_eq!(end(&disk), 640 * MIB);
}

#[test]
fn qcow2_is_read_and_written() {
    if require(&[Need::Command("qemu-img")]).is_none() {
        return;
    }
    let scratch = Scratch::new(2 << 30).unwrap();
    let raw = file_system(&scratch, "one");
    let at = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    let (base, top, back) = (at("base.qcow2"), at("top.qcow2"), at("back.raw"));
    run("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", "-c", &raw, &base]);
    run("qemu-img", &["create", "-q", "-f", "qcow2", "-b", "base.qcow2", "-F", "qcow2", &top]);
    let before = std::fs::read(&base).unwrap();
    assert_eq!(succeed_text(["ls", &top]), "one\n");
    let large: Vec<u8> = (0..8_000_000u32).flat_map(|word| (word * 7).to_le_bytes()).collect();
    std::fs::write(at("large"), &large).unwrap();
    succeed(["cp", &at("large"), &format!("{top}:/large")]);
    succeed(["rm", &format!("{top}:/one")]);
    succeed(["check", "--check-data-csum", &top]);
    assert!(std::fs::read(&base).unwrap() == before, "the backing file was changed");
    run("qemu-img", &["check", "-q", &top]);
    run("qemu-img", &["convert", "-f", "qcow2", "-O", "raw", &top, &back]);
    assert!(succeed(["cat", &format!("{back}:/large")]) == large);
    if require(Need::KERNEL_MOUNT).is_some() {
        let images = ImageSet::open(&scratch, vec![back.into()]);
        images.btrfs_check().unwrap();
        let mounted = images.mount_read_only().unwrap();
        assert!(std::fs::read(mounted.path().join("large")).unwrap() == large);
        assert!(!mounted.path().join("one").exists());
        mounted.unmount().unwrap();
    }
    let far = at("far.qcow2");
    run("qemu-img", &["create", "-q", "-f", "qcow2", "-b", &base, "-F", "qcow2", &far]);
    fail(1, "outside of its directory", ["ls", &far]);
    assert_eq!(succeed_text(["ls", "--allow-backing", &far]), "one\n");
}

#[test]
fn file_systems_are_made_and_mended_inside_images() {
    if require(&["sfdisk", "qemu-img"].map(Need::Command)).is_none() {
        return;
    }
    let scratch = Scratch::new(2 << 30).unwrap();
    let at = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    let disk = scratch.image("disk", 640 * MIB).unwrap().to_str().unwrap().to_owned();
    sfdisk(&disk, "label: gpt\nstart=16MiB, size=256MiB\nstart=300MiB, size=256MiB\n");
    let outside = |disk: &str| {
        let bytes = std::fs::read(disk).unwrap();
        [&bytes[..16 * MIB as usize], &bytes[272 * MIB as usize..]].concat()
    };
    let before = outside(&disk);
    let part = format!("{disk}@1");
    succeed(["mkfs", "-q", "-L", "inside", &part]);
    let file = at("file");
    std::fs::write(&file, "content").unwrap();
    succeed(["cp", &file, &format!("{part}:/file")]);
    fail(1, "contains a Btrfs file system", ["mkfs", "-q", &part]);
    fail(2, "does not fit", ["mkfs", "-q", "-f", "--size", "300M", &part]);
    fail(1, "no partition 7", ["mkfs", "-q", &format!("{disk}@7")]);
    assert!(outside(&disk) == before, "a partition of 16 to 272 MiB was made");
    assert_kernel_reads(&scratch, &disk, 16 * MIB, &[("file", "content")]);
    // Its first superblock is lost, and comes back from the second one.
    let zeros = at("zeros");
    std::fs::write(&zeros, [0; 4096]).unwrap();
    let place = format!("seek={}", (16 * MIB + 65536) / 4096);
    run(
        "dd",
        &[&format!("if={zeros}"), &format!("of={disk}"), "bs=4k", &place, "conv=notrunc", "status=none"],
    );
    fail(1, "no Btrfs magic", ["ls", &part]);
    succeed(["rescue", "super-recover", "-y", &part]);
    assert_eq!(succeed_text(["cat", &format!("{part}:/file")]), "content");
    assert!(outside(&disk) == before);

    let qcow2 = at("disk.qcow2");
    run("qemu-img", &["create", "-q", "-f", "qcow2", &qcow2, "256M"]);
    succeed(["mkfs", "-q", &qcow2]);
    succeed(["cp", &file, &format!("{qcow2}:/file")]);
    run("qemu-img", &["check", "-q", &qcow2]);
    assert_eq!(succeed_text(["cat", &format!("{qcow2}:/file")]), "content");
    // A device inside an image is added, and replaced by one in another image.
    let (other, third) = (at("other.qcow2"), at("third.img"));
    run("qemu-img", &["create", "-q", "-f", "qcow2", &other, "256M"]);
    succeed(["device", "add", &other, &qcow2]);
    std::fs::File::create(&third).unwrap().set_len(SIZE).unwrap();
    succeed(["replace", "start", "--device", &other, "2", &third, &qcow2]);
    assert_eq!(succeed_text(["cat", "--device", &third, &format!("{qcow2}:/file")]), "content");
    run("qemu-img", &["check", "-q", &other]);
    succeed(["check", "--device", &third, &qcow2]);
}

/// A file system inside of a VMDK or VHDX is made, filled, and read by the kernel.
#[test]
fn vmdk_and_vhdx_are_read_and_written() {
    if require(&[Need::Command("qemu-img")]).is_none() {
        return;
    }
    let scratch = Scratch::new(2 << 30).unwrap();
    let at = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    let large: Vec<u8> = (0..8_000_000u32).flat_map(|word| (word * 7).to_le_bytes()).collect();
    std::fs::write(at("large"), &large).unwrap();
    let flat = ["monolithicFlat", "twoGbMaxExtentFlat"];
    for (format, kind) in [
        ("vmdk", "monolithicSparse"),
        ("vmdk", flat[0]),
        ("vmdk", "twoGbMaxExtentSparse"),
        ("vmdk", flat[1]),
        ("vhdx", "dynamic"),
        ("vhdx", "fixed"),
    ] {
        let (disk, back) = (at(&format!("{kind}.disk")), at("back.raw"));
        let option = format!("subformat={kind}");
        run("qemu-img", &["create", "-q", "-f", format, "-o", &option, &disk, "256M"]);
        succeed(["mkfs", "-q", "-L", kind, &disk]);
        fail(1, "contains a Btrfs file system", ["mkfs", "-q", &disk]);
        succeed(["cp", &at("large"), &format!("{disk}:/large")]);
        succeed(["mkdir", &format!("{disk}:/directory")]);
        succeed(["check", "--check-data-csum", &disk]);
        if !flat.contains(&kind) {
            run("qemu-img", &["check", "-q", "-f", format, &disk]);
        }
        run("qemu-img", &["convert", "-f", format, "-O", "raw", &disk, &back]);
        assert!(succeed(["cat", &format!("{back}:/large")]) == large, "{kind}");
        if require(Need::KERNEL_MOUNT).is_some() {
            let images = ImageSet::open(&scratch, vec![back.into()]);
            images.btrfs_check().unwrap();
            let mounted = images.mount_read_only().unwrap();
            assert!(std::fs::read(mounted.path().join("large")).unwrap() == large, "{kind}");
            assert!(mounted.path().join("directory").is_dir());
            mounted.unmount().unwrap();
        }
    }
    let (source, packed) = (at("fixed.disk"), at("stream.vmdk"));
    let option = "subformat=streamOptimized";
    run("qemu-img", &["convert", "-f", "vhdx", "-O", "vmdk", "-o", option, &source, &packed]);
    assert!(succeed(["cat", &format!("{packed}:/large")]) == large);
    fail(1, "only be opened for reading", ["mkdir", &format!("{packed}:/d")]);
    fail(1, "only be opened for reading", ["mkfs", "-q", "-f", &packed]);
    assert!(succeed(["cat", &format!("{packed}:/large")]) == large);
}

#[test]
fn compressed_raw_images_are_read() {
    if require(&[Need::Command("xz"), Need::Command("zstd")]).is_none() {
        return;
    }
    let scratch = Scratch::new(1 << 30).unwrap();
    let raw = file_system(&scratch, "one");
    run("xz", &["-k1", "--block-size=1MiB", &raw]);
    let packed = format!("{raw}.xz");
    assert_eq!(succeed_text(["cat", &format!("{packed}:/one")]), "one");
    succeed(["check", "--check-data-csum", &packed]);
    fail(1, "only be opened for reading", ["mkdir", &format!("{packed}:/d")]);
    run("zstd", &["-qk1", &raw]);
    fail(1, "no seek table", ["ls", &format!("{raw}.zst")]);
    run("xz", &["-kf1", "-T1", &raw]);
    fail(1, "xz --block-size", ["ls", &packed]);
}

#[test]
fn other_formats_are_refused_by_name() {
    let scratch = Scratch::new(1 << 20).unwrap();
    let refused = |start: &[u8], part: &str| {
        let path = scratch.unique("image");
        let mut bytes = vec![0; 1 << 18];
        bytes[..start.len()].copy_from_slice(start);
        std::fs::write(&path, bytes).unwrap();
        fail(1, part, ["ls".as_ref(), path.as_os_str()]);
        fail(1, part, ["check".as_ref(), path.as_os_str()]);
    };
    refused(b"LUKS\xba\xbe\0\x02", "LUKS: the first header has a wrong size");
    refused(b"vhdxfile", "vhdx");
    refused(b"conectix", "VHD");
    refused(b"QFI\xfb\0\0\0\x03", "qcow2");
    refused(b"QFI\xfb\0\0\0\x09", "qcow2");
    refused(b"KDMV", "vmdk");
    refused(b"\xfd7zXZ\0", "xz");
    refused(b"\x28\xb5\x2f\xfd", "zstd");
    let missing = scratch.path().join("none@1");
    let output = papilio(["ls".as_ref(), missing.as_os_str()]);
    assert!(!output.status.success() && !Path::new(&missing).exists());
    let output = papilio(["ls", "--partition", "99999999999", "x"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("no disk has a partition of that number"));
}

#[test]
fn a_small_vmdk_is_not_taken_for_a_raw_image() {
    if require(&[Need::Command("qemu-img")]).is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (raw, host) = (at("raw"), at("host"));
    succeed(["mkfs", "-q", "--size", "128M", &raw]);
    std::fs::write(&host, "text").unwrap();
    succeed(["cp", &host, &format!("{raw}:/file")]);
    for format in ["vmdk", "qcow2", "vhdx"] {
        // The first cluster in use is that of the superblock, and may lie at 64 KiB of the file.
        let image = at(format);
        run("qemu-img", &["convert", "-f", "raw", "-O", format, &raw, &image]);
        assert_eq!(succeed(["cat", &format!("{image}:/file")]), b"text", "{format}");
    }
}
