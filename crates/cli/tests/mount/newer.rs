//! Commands that read or change structures, on a mount of Papilio: their output is that of the same
//! command on the image.

use crate::common::succeed_json;
use crate::world::{MOUNT, World, fail, succeed};
use std::fs;

/// Bytes that do not compress.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..length).map(|_| random.u8(..)).collect()
}

#[test]
fn swap_files_new_extents_chunks_and_heatmaps_of_a_mount() {
    let Some(world) = World::new(MOUNT) else { return };
    world.mount(&[]);
    let image = world.image().to_str().unwrap().to_owned();
    let inside = |path: &str| format!("{image}:/{path}");
    let made = succeed(["filesystem", "mkswapfile", "-s", "8M", &world.at("swap")]);
    assert!(made.contains("8388608"), "{made}");
    fail(1, "exist", ["filesystem", "mkswapfile", &world.at("swap")]);
    succeed(["subvolume", "create", &world.at("sub")]);
    for number in 0..40 {
        fs::write(world.at(&format!("sub/old {number}")), noise(number, 20_000)).unwrap();
    }
    let root = world.at("");
    succeed(["filesystem", "sync", &root]);
    let marker = |text: &str| -> u64 {
        let last = text.lines().last().unwrap();
        last.strip_prefix("transid marker was ").unwrap().parse().unwrap()
    };
    let all = succeed(["subvolume", "find-new", &world.at("sub"), "0"]);
    assert_eq!(all.lines().count(), 41, "{all}");
    let since = (marker(&all) + 1).to_string();
    fs::write(world.at("sub/new"), noise(99, 50_000)).unwrap();
    succeed(["filesystem", "sync", &root]);
    let new = succeed(["subvolume", "find-new", &world.at("sub"), &since]);
    assert!(new.lines().count() == 2 && new.contains(" new\n"), "{new}");
    let mapped = succeed(["inspect", "map-swapfile", &world.at("swap")]);
    let offset = succeed(["inspect", "map-swapfile", "-r", &world.at("swap")]);
    fail(1, "", ["inspect", "map-swapfile", &world.at("sub/new")]);
    let chunks = succeed(["inspect", "list-chunks", "-b", &root]);
    assert!(chunks.lines().count() > 3, "{chunks}");
    let picture = world.beside("mounted.svg");
    succeed(["heatmap", &root, picture.to_str().unwrap()]);
    for name in ["equal", "again"] {
        fs::write(world.at(name), noise(5, 1 << 20)).unwrap();
    }
    succeed(["dedupe", &world.at("equal"), &world.at("again")]);
    assert!(fs::read_to_string(&picture).unwrap().starts_with("<svg "));
    world.unmount();
    assert_eq!(succeed(["subvolume", "find-new", &inside("sub"), &since]), new);
    assert_eq!(succeed(["inspect", "map-swapfile", &inside("swap")]), mapped);
    assert_eq!(succeed(["inspect", "map-swapfile", "-r", &inside("swap")]), offset);
    // The unmount wrote more, so that the last column differs.
    let places = |text: &str| -> Vec<Vec<String>> {
        let fields = |line: &str| line.split_whitespace().take(7).map(str::to_owned).collect();
        text.lines().map(fields).collect()
    };
    assert_eq!(places(&succeed(["inspect", "list-chunks", "-b", &image])), places(&chunks));
    succeed(["dedupe", &inside("equal"), &inside("again")]);
    succeed(["check", &image]);
}

#[test]
fn streams_of_a_mount_are_received_below_a_root_and_compared() {
    let Some(world) = World::new(MOUNT) else { return };
    world.mount(&[]);
    succeed(["subvolume", "create", &world.at("sub")]);
    fs::write(world.at("sub/kept"), noise(1, 300_000)).unwrap();
    succeed(["subvolume", "snapshot", "-r", &world.at("sub"), &world.at("first")]);
    fs::write(world.at("sub/added"), noise(2, 5000)).unwrap();
    fs::remove_file(world.at("sub/kept")).unwrap();
    succeed(["subvolume", "snapshot", "-r", &world.at("sub"), &world.at("second")]);
    let [full, next] = ["full", "next"].map(|name| world.beside(name).to_str().unwrap().to_owned());
    succeed(["-q", "send", "-f", &full, &world.at("first")]);
    succeed(["-q", "send", "-p", &world.at("first"), "-f", &next, &world.at("second")]);
    fs::create_dir(world.at("chroot")).unwrap();
    fs::create_dir(world.at("below")).unwrap();
    let root = world.at("");
    for (folder, options) in [("chroot", &["-C"][..]), ("below", &["-m", &root])] {
        for stream in [&full, &next] {
            let folder = world.at(folder);
            succeed([&["-q", "receive"], options, &["-f", stream, &folder]].concat());
        }
        assert_eq!(fs::read(world.at(&format!("{folder}/second/added"))).unwrap(), noise(2, 5000));
        assert!(!fs::exists(world.at(&format!("{folder}/second/kept"))).unwrap());
        let shown = succeed(["property", "get", &world.at(&format!("{folder}/second")), "ro"]);
        assert_eq!(shown, "ro=true\n");
    }
    world.unmount();
    let image = world.image().to_str().unwrap().to_owned();
    let inside = |path: &str| format!("{image}:/{path}");
    for folder in ["", "chroot/", "below/"] {
        let [old, new] = ["first", "second"].map(|name| inside(&format!("{folder}{name}")));
        let changes = succeed_json(["diff", "--json", &old, &new]);
        // The snapshot's root may be that of another copy of the parent, made at another time.
        let below = changes.as_array().unwrap().iter().filter(|change| change["path"] != "/");
        assert_eq!(below.count(), 2, "{folder}: {changes}");
    }
    succeed(["check", "--check-data-csum", &image]);
}
