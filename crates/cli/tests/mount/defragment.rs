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

#[test]
fn shared_data_stays_shared_unless_asked() {
    let Some(world) = World::new(MOUNT) else { return };
    let image = world.image();
    let disk = image.to_str().unwrap();
    world.mount(&[]);
    for name in ["s", "t"] {
        succeed(["subvolume", "create", &world.at(name)]);
        fragment(&world.directory().join(name).join("f"));
        fragment(&world.directory().join(name).join("g"));
        succeed(["subvolume", "snapshot", "-r", &world.at(name), &world.at(&format!("{name}2"))]);
    }
    // In a mount, all follow to the larger extents.
    succeed(["filesystem", "defragment", &world.at("s/f")]);
    succeed(["filesystem", "defragment", "--unshare", &world.at("s/g")]);
    // Limits hold in a mount, too, and what was done stays.
    let said = |arguments: &[&str]| {
        let output = papilio([&["filesystem", "defragment"], arguments].concat());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let told = said(&["--max-extents", "20", "-r", &world.at("t")]);
    assert!(told.contains("shared as before") && told.contains("stopped at the limit"), "{told}");
    assert!(said(&["--max-bytes", "100K", "-r", &world.at("t")]).contains("stopped at the limit"));
    assert!(said(&["--max-time", "0", "-r", &world.at("t")]).contains("stopped"));
    // Another compression is for all, also for the read-only snapshot.
    let told = said(&["-czstd", &world.at("s/f")]);
    assert!(told.contains("they need ") && told.contains(" less"), "{told}");
    world.unmount();
    let stored = |name: &str| {
        let fs = FileSystem::open_with(&image, &OpenOptions::new()).unwrap();
        let extents = fs.open_file(name).unwrap().extents(0, usize::MAX).unwrap();
        extents.iter().map(|extent| (extent.address, extent.stored, extent.compression)).collect::<Vec<_>>()
    };
    assert_eq!(stored("/s/f"), stored("/s2/f"));
    assert!(stored("/s/f").iter().all(|(_, bytes, _)| *bytes <= 64 << 10), "{:?}", stored("/s/f"));
    let counted = |names: [&str; 4]| names.map(|name| extents(&image, name));
    // Compressed extents have 128 KiB of the 800.
    let [f, f2, g, g2] = counted(["/s/f", "/s2/f", "/s/g", "/s2/g"]);
    assert!(f <= 8 && f2 == f && g <= 2 && g2 > 20, "{f} {f2} {g} {g2}");

    // The same on an image, also for a file of a read-only snapshot.
    let both = papilio(["filesystem", "defragment", "--unshare", "--keep-shared", &format!("{disk}:/t/f")]);
    assert_eq!(both.status.code(), Some(2));
    let limited = papilio(["filesystem", "defragment", "--max-extents", "20", &format!("{disk}:/t2/f")]);
    let text = String::from_utf8_lossy(&limited.stdout).into_owned();
    assert!(limited.status.success() && text.contains("stopped at the limit"), "{limited:?}");
    let whole = papilio(["filesystem", "defragment", "-r", &format!("{disk}:/t2")]);
    let text = String::from_utf8_lossy(&whole.stdout).into_owned();
    assert!(whole.status.success() && text.contains("shared as before"), "{whole:?}");
    let [f, f2, g, g2] = counted(["/t/f", "/t2/f", "/t/g", "/t2/g"]);
    assert!(f <= 3 && f2 == f && g <= 2 && g2 == g, "{f} {f2} {g} {g2}");
    // Another compression is for all that share, with limits as well.
    let limited =
        papilio(["filesystem", "defragment", "-czstd", "--max-bytes", "4K", &format!("{disk}:/t/f")]);
    let text = String::from_utf8_lossy(&limited.stdout).into_owned();
    assert!(limited.status.success() && text.contains("stopped at the limit"), "{limited:?}");
    let told = papilio(["filesystem", "defragment", "-czstd", &format!("{disk}:/t2/f")]);
    let text = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(told.status.success() && text.contains("they need "), "{told:?}");
    assert_eq!(stored("/t/f"), stored("/t2/f"));
    let again = papilio(["filesystem", "defragment", "-czstd", "--unshare", &format!("{disk}:/t/f")]);
    assert!(again.status.success() && stored("/t/f") != stored("/t2/f"), "{again:?}");
    let names = ["/s/f", "/s2/f", "/s/g", "/s2/g", "/t/f", "/t2/f", "/t/g", "/t2/g"];
    for name in names {
        assert!(FileSystem::open(&image).unwrap().read(name).unwrap() == content(), "{name}");
    }
    succeed(["check", "--check-data-csum", disk]);
}

#[test]
fn the_kernel_unshares_and_the_command_says_so() {
    let needs = [Need::Root, Need::Loop, Need::KernelBtrfs, Need::Command("btrfs")];
    if require(&needs).is_none() {
        return;
    }
    let Some(world) = World::new(MOUNT) else { return };
    let scratch = Scratch::new(1 << 30).unwrap();
    let images = ImageSet::open(&scratch, vec![world.image()]);
    let mounted = images.mount().unwrap();
    let at = |name: &str| mounted.path().join(name).to_str().unwrap().to_owned();
    succeed(["subvolume", "create", &at("s")]);
    fragment(&mounted.path().join("s/f"));
    succeed(["subvolume", "snapshot", "-r", &at("s"), &at("s2")]);
    mounted.sync().unwrap();
    fail(1, "the kernel copies shared data", ["filesystem", "defragment", "--keep-shared", &at("s/f")]);
    let done = papilio(["filesystem", "defragment", "-f", "-t", "1M", &at("s/f")]);
    let told = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success() && told.contains("1 files shared some"), "{done:?}");
    mounted.unmount().unwrap();
    let [f, f2] = ["/s/f", "/s2/f"].map(|name| extents(&world.image(), name));
    assert!(f <= 2 && f2 > 20, "{f} {f2}");
}
