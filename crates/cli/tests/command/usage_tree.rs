//! `papilio usage --tree`: estimates of a layout that is known.

use crate::common::{fail, papilio, succeed, succeed_json, succeed_text};
use crate::fixture::noise;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

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
fn wrong_options_are_refused() {
    for wrong in [&["--samples", "3"][..], &["--tree", "--exact", "--seed", "1"], &["--tree", "--table"]] {
        let output = papilio(["usage"].iter().chain(wrong).chain(&["image"]));
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
    }
    fail(1, "nowhere", ["usage", "--tree", "/nowhere/image"]);
}
