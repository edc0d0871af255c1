//! `papilio usage --tree`: estimates of a layout that is known.

use crate::common::{binary, fail, papilio, succeed, succeed_json, succeed_text, text};
use crate::fixture::noise;
use papilio_oracle::{ImageSet, Need, Scratch, require};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// Makes directories of 24, 6 and 2 MiB, a snapshot of all, and a reflink.
fn image(folder: &Path) -> PathBuf {
    let source = folder.join("source");
    for (number, (name, mib)) in [("large", 24), ("medium", 6), ("small", 2)].into_iter().enumerate() {
        fs::create_dir_all(source.join(name)).unwrap();
        fs::write(source.join(name).join("file"), noise(number as u64, mib << 20)).unwrap();
    }
    let image = folder.join("image");
    fs::File::create(&image).unwrap().set_len(400 << 20).unwrap();
    succeed(["mkfs".as_ref(), "--rootdir".as_ref(), source.as_os_str(), image.as_os_str()]);
    let at = |path: &str| format!("{}:{path}", image.display());
    succeed(["subvolume", "snapshot", &at("/"), &at("/snapshot")]);
    succeed(["cp", &at("/small/file"), &at("/small/a longer name")]);
    image
}

fn bytes(tree: &Value, name: &str) -> (u64, u64) {
    let entries = tree["entries"].as_array().unwrap();
    let entry = entries.iter().find(|entry| entry["name"] == name);
    let entry = entry.unwrap_or_else(|| panic!("no {name} in {tree:#}"));
    (entry["bytes"].as_u64().unwrap(), entry["error"].as_u64().unwrap())
}

#[test]
fn shares_are_within_their_bounds() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let image = image.to_str().unwrap();
    let estimate =
        |seed: &str| succeed_json(["usage", "--tree", "--json", "--samples", "600", "--seed", seed, image]);
    let found = estimate("1");
    assert_eq!(found, estimate("1"));
    assert_ne!(found["tree"], estimate("2")["tree"]);
    assert_eq!(found["samples"], 600);
    assert_eq!(found["data"], 32 * MIB);
    let tree = &found["tree"];
    // Snapshots count once, for the shorter path.
    assert_eq!(tree["bytes"], 32 * MIB);
    assert_eq!(tree["entries"].as_array().unwrap().len(), 3, "{tree:#}");
    for (name, mib) in [("large", 24), ("medium", 6), ("small", 2)] {
        let (bytes, error) = bytes(tree, name);
        assert!(bytes.abs_diff(mib * MIB) <= error, "{name}: {bytes} ± {error}");
        assert!(error < 3 * MIB / 2, "{name}: {error}");
    }
}

#[test]
fn every_extent_is_looked_up() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let at = |path: &str| format!("{}:{path}", image.display());
    let image = image.to_str().unwrap();
    let found = succeed_json(["usage", "--tree", "--exact", "--json", image]);
    for (name, mib) in [("large", 24), ("medium", 6), ("small", 2)] {
        assert_eq!(bytes(&found["tree"], name), (mib * MIB, 0), "{name}");
    }
    // Only the snapshot is left.
    succeed(["rm", "-r", &at("/large")]);
    let found = succeed_json(["usage", "--tree", "--exact", "--json", image]);
    assert_eq!(bytes(&found["tree"], "snapshot"), (24 * MIB, 0));
    let shown = succeed_text(["usage", "--tree", "--exact", "--depth", "2", image]);
    let line = |name: &str| shown.lines().find(|line| line.ends_with(name)).unwrap().to_owned();
    assert!(line(" large").contains("24.00MiB") && line(" large").contains("75.0%"), "{shown}");
    assert!(line("snapshot").find("snapshot") < line(" large").find("large"), "{shown}");
    // That of the snapshot is a level further down.
    assert_eq!(shown.lines().filter(|line| line.ends_with(" file")).count(), 2, "{shown}");
}

#[test]
fn a_kernel_mount_has_the_same_tree() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let scratch = Scratch::new(500 << 20).unwrap();
    let image = image(scratch.path());
    let exact = |path: &Path| succeed_json(["usage", "--tree", "--exact", "--json", path.to_str().unwrap()]);
    let of_image = exact(&image);
    let images = ImageSet::open(&scratch, vec![image]);
    let mounted = images.mount().unwrap();
    let of_mount = exact(mounted.path());
    assert_eq!(of_mount["tree"], of_image["tree"]);
    assert_eq!(of_mount["data"], 32 * MIB);
    // It changes meanwhile: a file is overwritten, another moves, and a snapshot keeps both.
    fs::write(mounted.path().join("small/file"), noise(7, 4 << 20)).unwrap();
    fs::rename(mounted.path().join("medium"), mounted.path().join("m")).unwrap();
    let writer = mounted.path().join("large/written");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                fs::write(&writer, noise(8, 1 << 20)).unwrap();
                mounted.sync().unwrap();
                fs::remove_file(&writer).unwrap();
            }
        });
        let root = mounted.path().to_str().unwrap();
        let found = succeed_json(["usage", "--tree", "--json", "--samples", "400", root]);
        stop.store(true, Ordering::Relaxed);
        assert_eq!(found["samples"], 400);
        for (name, mib) in [("large", 24), ("m", 6), ("small", 6)] {
            let (bytes, error) = bytes(&found["tree"], name);
            // The file that is written meanwhile takes a MiB or two.
            assert!(bytes.abs_diff(mib * MIB) <= error + 3 * MIB, "{name}: {bytes} ± {error}");
        }
    });
}

#[test]
fn a_terminal_shows_the_tree_until_q() {
    if require(&[Need::Command("script")]).is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let run = format!("stty rows 24 cols 100; {} usage --tree {}", binary().display(), image.display());
    let mut child = Command::new("script")
        .args(["-q", "-e", "-c", &run, "/dev/null"])
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut keys = child.stdin.take().unwrap();
    for part in ["", "", "\r", "q"] {
        std::thread::sleep(Duration::from_millis(700));
        keys.write_all(part.as_bytes()).unwrap();
    }
    let output = child.wait_with_output().unwrap();
    drop(keys);
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{shown}");
    for part in ["large/", "samples", "[##########]", "file"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    // The other screen was entered and left.
    assert!(shown.contains("\x1b[?1049h") && shown.contains("\x1b[?1049l"), "{shown}");
    fail(1, "nowhere", ["usage", "--tree", "/nowhere/image"]);
}

#[test]
fn wrong_options_are_refused() {
    for wrong in [&["--samples", "3"][..], &["--tree", "--exact", "--seed", "1"], &["--tree", "--table"]] {
        let output = papilio(["usage"].iter().chain(wrong).chain(&["image"]));
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
    }
    fail(1, "nowhere", ["usage", "--tree", "/nowhere/image"]);
}
