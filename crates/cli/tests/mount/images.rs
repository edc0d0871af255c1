//! Mounts of disk images: a partition, and a qcow2 image.

use crate::world::{MOUNT, World, fail, papilio, run, succeed};
use papilio_oracle::Need;
use std::fs;
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
