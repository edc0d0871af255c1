//! Subvolumes that Papilio and the kernel change in turn.

use super::fill;
use crate::bridge::Papilio;
use crate::images::{assert_clean_for_both, btrfs, writable};
use papilio::{FileSystem, MkfsOptions, Received};
use papilio_oracle::{CompareOptions, HostTree, ImageSet, Need, Scratch, clean_subvolumes, compare, require};
use std::path::Path;

const NEEDS: &[Need] = &[Need::Root, Need::Loop, Need::KernelBtrfs, Need::Command("btrfs")];

fn open(image: &Path) -> FileSystem {
    FileSystem::open_with(image, &writable()).unwrap()
}

/// Asserts that both see the same files and list the same subvolumes.
fn assert_same(images: &ImageSet, when: &str) {
    let mounted = images.mount_read_only().unwrap();
    let listed = btrfs(&["subvolume", "list", "-puqR", mounted.path().to_str().unwrap()]);
    let fs = FileSystem::open(&images.paths()[0]).unwrap();
    let or_dash = |uuid: papilio::format::Uuid| {
        let text = if uuid.is_nil() { "-".to_owned() } else { uuid.to_string() };
        format!("{text:<36}")
    };
    let mut expected: Vec<_> = fs.subvolumes().unwrap();
    expected.retain(|subvolume| subvolume.id.0 != 5 && !subvolume.is_being_deleted());
    let expected: String = expected
        .iter()
        .map(|s| {
            let parent = s.parent.unwrap();
            format!(
                "ID {} gen {} parent {parent} top level {parent} parent_uuid {} received_uuid {} uuid {} path {}\n",
                s.id,
                s.generation,
                or_dash(s.parent_uuid),
                or_dash(s.received_uuid),
                or_dash(s.uuid),
                String::from_utf8(s.path.clone().unwrap()).unwrap()
            )
        })
        .collect();
    assert_eq!(listed, expected, "{when}");
    compare(&HostTree::new(mounted.path()), &Papilio(fs), &CompareOptions::SAME_IMAGE).assert_equal(1);
}

/// Makes subvolumes and snapshots, nested and of one another.
fn make_subvolumes(image: &Path) {
    let fs = open(image);
    fs.create_subvolume("/a").unwrap();
    fs.create_subvolume("/a/inner").unwrap();
    fill(&fs, "/a", 900, 1);
    fs.snapshot("/a", "/ro", true).unwrap();
    fs.snapshot("/a", "/rw", false).unwrap();
    for number in (0..900).step_by(3) {
        fs.open_file(format!("/rw/file{number}")).unwrap().write_all_at(b"other", 3).unwrap();
    }
    fs.snapshot("/rw", "/second", false).unwrap();
    fs.create_subvolume("/received").unwrap();
    let received = Received {
        uuid: papilio::format::Uuid::from_u128(5),
        sent: papilio::format::Generation(3),
        send_time: papilio::Timespec { seconds: 5, nanoseconds: 6 },
    };
    fs.set_received("/received", &received).unwrap();
    fs.set_subvolume_read_only("/received", true).unwrap();
    fs.snapshot("/received", "/received2", true).unwrap();
    fs.create_subvolume("/moved").unwrap();
    fs.rename("/moved", "/a/inner/moved").unwrap();
    fs.set_default_subvolume(fs.inode("/second").unwrap().tree()).unwrap();
    fs.close().unwrap();
}

/// Deletes a subvolume that shares some blocks with a snapshot, and does one step of its cleaning.
fn begin_cleaning(image: &Path) {
    let fs = open(image);
    fs.create_subvolume("/large").unwrap();
    fill(&fs, "/large", 3000, 3);
    fs.snapshot("/large", "/large2", false).unwrap();
    for number in (0..3000).step_by(4) {
        fs.remove_file(format!("/large/file{number}")).unwrap();
    }
    fs.delete_subvolume("/large").unwrap();
    assert!(fs.clean_subvolumes_step().unwrap());
    fs.close().unwrap();
}

#[test]
fn papilio_and_the_kernel_continue_with_each_others_subvolumes() {
    if require(NEEDS).is_none() {
        return;
    }
    let scratch = Scratch::new(1 << 30).unwrap();
    let image = scratch.image("subvolumes", 1 << 30).unwrap();
    papilio::mkfs(&image, &MkfsOptions::new().node_size(4096).force(true)).unwrap();
    let images = ImageSet::open(&scratch, vec![image.clone()]);
    make_subvolumes(&image);
    assert_clean_for_both(&images, "made");
    assert_same(&images, "made");
    begin_cleaning(&image);
    assert_clean_for_both(&images, "half cleaned");
    assert!(FileSystem::open(&image).unwrap().subvolumes().unwrap().iter().any(|s| s.is_being_deleted()));
    {
        let mounted = images.mount().unwrap();
        let at = |path: &str| mounted.path().join(path).to_str().unwrap().to_owned();
        clean_subvolumes(mounted.path()).unwrap();
        btrfs(&["subvolume", "snapshot", &at("rw"), &at("kernel")]);
        std::fs::write(at("kernel/file1"), b"the kernel's").unwrap();
        std::fs::write(at("second/file2"), b"the kernel's").unwrap();
        btrfs(&["subvolume", "delete", "-c", &at("ro")]);
        btrfs(&["subvolume", "delete", "-c", &at("received")]);
        btrfs(&["subvolume", "create", &at("a/kernel")]);
        std::fs::rename(at("a/inner/moved"), at("back")).unwrap();
        clean_subvolumes(mounted.path()).unwrap();
        mounted.unmount().unwrap();
    }
    assert_clean_for_both(&images, "after the kernel");
    assert_same(&images, "after the kernel");

    // The kernel deletes a subvolume just before the unmount, and leaves the cleaning to Papilio.
    {
        let mounted = images.mount().unwrap();
        let at = |path: &str| mounted.path().join(path).to_str().unwrap().to_owned();
        btrfs(&["subvolume", "snapshot", &at("large2"), &at("large3")]);
        for number in (1..3000).step_by(4) {
            std::fs::write(at(&format!("large2/file{number}")), [b'k'; 100]).unwrap();
        }
        btrfs(&["subvolume", "delete", "-c", &at("large2")]);
        mounted.unmount().unwrap();
    }
    let fs = open(&image);
    fs.clean_subvolumes().unwrap();
    assert_eq!(fs.read("/kernel/file1").unwrap(), b"the kernel's");
    fs.snapshot("/kernel", "/a/ours", false).unwrap();
    fs.open_file("/a/ours/file5").unwrap().write_all_at(b"ours again", 0).unwrap();
    fs.delete_subvolume("/kernel").unwrap();
    fs.delete_subvolume("/a/kernel").unwrap();
    fs.delete_subvolume("/rw").unwrap();
    fs.clean_subvolumes().unwrap();
    fs.close().unwrap();
    assert_clean_for_both(&images, "ours again");
    assert_same(&images, "ours again");
}
