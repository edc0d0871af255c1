//! Mounts of disk images: a partition, and a qcow2 image.

use crate::world::{MOUNT, World, fail, papilio, run, succeed};
use papilio_oracle::Need;
use std::fs;
use std::io::Read;
use std::path::Path;

#[test]
fn partitions_and_qcow2_are_mounted() {
    let needs = [MOUNT, &[Need::Command("sfdisk"), Need::Command("qemu-img"), Need::Command("dd")]].concat();
    let Some(world) = World::new(&needs) else { return };
    let (raw, directory) = (world.image().display().to_string(), world.directory().display().to_string());
    let disk = world.beside("disk").display().to_string();
    let qcow2 = world.beside("disk.qcow2").display().to_string();
    let size = fs::metadata(&raw).unwrap().len();
    let file = fs::File::create(&disk).unwrap();
    file.set_len(size + (16 << 20)).unwrap();
    drop(file);
    let script =
        format!("printf 'start=1MiB, size=1MiB\\nstart=4MiB, size={}\\n' | sfdisk -q {disk}", size / 512);
    run("sh", &["-c", &script]);
    run("dd", &[&format!("if={raw}"), &format!("of={disk}"), "bs=1M", "seek=4", "conv=notrunc,sparse"]);
    run("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &disk, &qcow2]);
    let bytes: Vec<u8> = (0..2_000_000u32).flat_map(|word| (word * 13).to_le_bytes()).collect();
    for (image, options) in
        [(format!("{disk}@2"), &[][..]), (disk.clone(), &["--partition", "2"]), (qcow2.clone(), &[])]
    {
        succeed([&["mount"], options, &[image.as_str(), &directory]].concat());
        fs::write(world.at("file"), &bytes).unwrap();
        let source = world.entry().unwrap().source;
        if image != qcow2 {
            assert_eq!(source, Path::new(&disk).canonicalize().unwrap().with_file_name("disk@2"));
            // Another partition is another file system, and not a second view of this one.
            let other = world.beside("other");
            let _ = fs::create_dir(&other);
            fail(1, "", ["mount", &format!("{disk}@1"), other.to_str().unwrap()]);
            assert!(fs::read_dir(&other).unwrap().next().is_none());
        }
        world.unmount();
        succeed(["check", "--check-data-csum", &image, "--partition", "2"]);
        let path = if image == qcow2 { image.clone() } else { format!("{disk}@2") };
        assert!(papilio(["cat", &format!("{path}:/file")]).stdout == bytes);
        succeed(["rm", &format!("{path}:/file")]);
    }
    run("qemu-img", &["check", "-q", &qcow2]);
}

/// A device that is added, and the target of a replacement, may be a disk image or a partition. The
/// rest of its file stays as it is.
#[test]
fn a_mount_grows_onto_images_and_partitions() {
    let needs = [MOUNT, &[Need::Command("sfdisk"), Need::Command("qemu-img")]].concat();
    let Some(world) = World::new(&needs) else { return };
    let (raw, directory) = (world.image().display().to_string(), world.directory().display().to_string());
    // An image whose file is large enough to be a device by itself.
    let [full, qcow2, disk] = ["full", "new.qcow2", "table"].map(|name| world.beside(name));
    let noise: Vec<u8> =
        (0..80u32 << 18).flat_map(|word| word.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect();
    fs::write(&full, noise).unwrap();
    let [full, qcow2, disk] = [full, qcow2, disk].map(|path| path.display().to_string());
    run("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &full, &qcow2]);
    run("qemu-img", &["resize", "-q", &qcow2, "600M"]);
    let file = fs::File::create(&disk).unwrap();
    file.set_len(700 << 20).unwrap();
    let script = format!("printf 'start=1MiB, size=1MiB\\nstart=4MiB, size=690MiB\\n' | sfdisk -q {disk}");
    run("sh", &["-c", &script]);
    let table = start_of(&disk);

    succeed(["mount", &raw, &directory]);
    fs::write(world.at("file"), vec![7; 3 << 20]).unwrap();
    succeed(["device", "add", &qcow2, &directory]);
    fs::write(world.at("more"), vec![8; 100 << 20]).unwrap();
    let part = format!("{disk}@2");
    succeed(["replace", "start", "1", &part, &directory]);
    succeed(["filesystem", "sync", &directory]);
    world.unmount();

    let options = ["--device", &qcow2, "--check-data-csum"];
    succeed([&["check"], &options[..], &[part.as_str()]].concat());
    let cat = |path: &str| papilio(["cat", "--device", &qcow2, &format!("{part}:{path}")]).stdout;
    assert!(cat("/file") == vec![7; 3 << 20] && cat("/more") == vec![8; 100 << 20]);
    // The container is still one, and so is the partition table.
    run("qemu-img", &["check", "-q", &qcow2]);
    assert!(start_of(&disk) == table);
    assert!(start_of(&qcow2).starts_with(b"QFI\xfb"));
}

/// The first 4 MiB of a file.
fn start_of(path: &str) -> Vec<u8> {
    let mut bytes = vec![0; 4 << 20];
    fs::File::open(path).unwrap().read_exact(&mut bytes).unwrap();
    bytes
}
