//! `filesystem defragment` on an image, in a mount of ours and in one of the kernel.

use crate::world::{MOUNT, World, fail, papilio, succeed};
use papilio::{FileSystem, OpenOptions};
use papilio_oracle::{ImageSet, Need, Scratch, require};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

const SECTOR: usize = 4096;

fn content() -> Vec<u8> {
    (0..200 * SECTOR).map(|at| (at / SECTOR * 31 + at % 7) as u8).collect()
}

/// Writes each sector of a file as an extent of its own.
fn fragment(path: &Path) {
    let file = File::create(path).unwrap();
    for half in [0, 1] {
        for (number, sector) in content().chunks(SECTOR).enumerate().filter(|(number, _)| number % 2 == half)
        {
            file.write_all_at(sector, (number * SECTOR) as u64).unwrap();
            if number % 10 == half {
                file.sync_all().unwrap();
            }
        }
    }
    file.sync_all().unwrap();
}

/// Returns the number of extents of a file of an image.
fn extents(image: &Path, path: &str) -> usize {
    let fs = FileSystem::open_with(image, &OpenOptions::new()).unwrap();
    fs.open_file(path).unwrap().fiemap(0).unwrap().len()
}

#[test]
fn files_of_an_image_and_of_a_mount_are_defragmented() {
    let Some(world) = World::new(MOUNT) else { return };
    let image = world.image();
    let disk = image.to_str().unwrap();
    world.mount(&[]);
    for name in ["f", "d/one", "d/deep/two", "d/other/three"] {
        fs::create_dir_all(world.directory().join(name).parent().unwrap()).unwrap();
        if name.contains("other") {
            fs::remove_dir(world.at("d/other")).unwrap();
            succeed(["subvolume", "create", &world.at("d/other")]);
        }
        fragment(&world.directory().join(name));
    }
    let times = |path: &str| fs::metadata(world.at(path)).unwrap().modified().unwrap();
    let before = times("f");
    fail(1, "-r defragments", ["filesystem", "defragment", &world.at("d")]);
    let wrong = papilio(["filesystem", "defragment", "-c=gzip", &world.at("f")]);
    assert_eq!(wrong.status.code(), Some(2));
    succeed(["filesystem", "defragment", "-f", &world.at("f")]);
    assert_eq!(times("f"), before);
    world.unmount();
    let names = ["/f", "/d/one", "/d/deep/two", "/d/other/three"];
    let counted = || names.map(|name| extents(&image, name));
    let [f, rest @ ..] = counted();
    assert!(f <= 2 && rest.iter().all(|count| *count > 20), "{f} {rest:?}");

    world.mount(&[]);
    succeed(["filesystem", "defrag", "-r", "-czstd", "-L", "5", &world.at("d")]);
    world.unmount();
    let [_, one, two, three] = counted();
    assert!(one <= 8 && two <= 8 && three > 20, "{:?}: other subvolumes are left out", counted());
    succeed(["filesystem", "defragment", "-r", "--nocomp", &format!("{disk}:/")]);
    assert!(counted()[3] > 20, "{:?}", counted());
    succeed(["filesystem", "defragment", "-l", "40K", "-s", "8K", &format!("{disk}:/d/other/three")]);
    let [rest @ .., three] = counted();
    assert!(rest.iter().all(|count| *count <= 2) && (180..195).contains(&three), "{rest:?} {three}");
    fail(1, "-r defragments", ["filesystem", "defragment", &format!("{disk}:/d")]);
    for name in names {
        let read = FileSystem::open(&image).unwrap().read(name).unwrap();
        assert!(read == content(), "{name}");
    }
    succeed(["check", "--check-data-csum", disk]);
}

#[test]
fn files_of_a_kernel_mount_are_defragmented() {
    let needs = [Need::Root, Need::Loop, Need::KernelBtrfs, Need::Command("btrfs")];
    if require(&needs).is_none() {
        return;
    }
    let Some(world) = World::new(MOUNT) else { return };
    let scratch = Scratch::new(1 << 30).unwrap();
    let images = ImageSet::open(&scratch, vec![world.image()]);
    let mounted = images.mount().unwrap();
    let path = mounted.path().join("f");
    fragment(&path);
    succeed(["filesystem", "defragment", "-f", "-t", "1M", path.to_str().unwrap()]);
    mounted.unmount().unwrap();
    assert!(extents(&world.image(), "/f") <= 2, "{}", extents(&world.image(), "/f"));
}
