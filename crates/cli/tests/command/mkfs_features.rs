//! `papilio mkfs -O`: the list of features, refusals by name, and file systems with quotas on.

use crate::common::{fail, papilio, succeed, succeed_json, succeed_text, text};
use crate::fixture::noise;
use papilio_oracle::{ImageSet, Need, Scratch, require, sys};
use std::fs;
use std::path::Path;
use std::process::Command;

#[test]
fn every_feature_of_btrfs_progs_is_listed() {
    let listed = succeed_text(["mkfs", "-O", "list-all"]);
    assert!(listed.starts_with("Filesystem features available:\nmixed-bg            - "), "{listed}");
    for mark in [
        "no-holes            - holes in files need no items (compat=3.14, safe=4.0, default=5.15)\n",
        "squota              - simple quotas, ",
        "fst                 - alias of free-space-tree\n",
    ] {
        assert!(listed.contains(mark), "{mark}: {listed}");
    }
    let zoned = listed.lines().find(|line| line.starts_with("zoned ")).unwrap();
    assert!(zoned.contains("; not here: "), "{zoned}");
    if require(&[Need::Command("mkfs.btrfs")]).is_none() {
        return;
    }
    let theirs = Command::new("mkfs.btrfs").args(["-O", "list-all"]).output().unwrap();
    let theirs = text(&theirs.stderr);
    let mut compared = 0;
    for line in theirs.lines().filter(|line| line.contains("- ")) {
        let name = line[..20].trim_end();
        let own = listed.lines().find(|own| own[..20].trim_end() == name);
        let own = own.unwrap_or_else(|| panic!("{name}: {listed}"));
        // The versions, but for what later btrfs-progs made a default.
        let versions = line[line.rfind('(').unwrap()..].trim_end_matches(')');
        assert!(own.contains(versions), "{own}: {versions}");
        compared += 1;
    }
    assert!(compared >= 7, "{theirs}");
}

#[test]
fn features_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let image = image.to_str().unwrap();
    for (feature, why) in [
        ("zoned", "zoned devices need writes in sequence"),
        ("raid-stripe-tree", "an experimental format"),
        ("rst", "an experimental format"),
        ("extent-tree-v2", "an experimental format"),
        ("no-such", "no such feature"),
        ("quota,squota", "quota and squota exclude one another"),
    ] {
        let part = if feature.contains(',') { why.to_owned() } else { format!("feature {feature}: {why}") };
        fail(2, &part, ["mkfs", "-b", "256M", "-O", feature, image]);
        assert!(!Path::new(image).exists());
    }
    fail(2, "use --nodesize", ["mkfs", "-b", "256M", "-l", "16k", image]);
    succeed(["mkfs", "-q", "-b", "256M", "-O", "raid56,^raid1c34", image]);
    succeed(["check", image]);
    let output = papilio(["quota", "status", "--is-enabled", image]);
    assert_eq!((output.status.code(), output.stdout, output.stderr), (Some(1), Vec::new(), Vec::new()));
    // Options of later btrfs-progs.
    succeed(["device", "stats", "--offline", image]);
    succeed(["filesystem", "resize", "--offline", "200M", image]);
    succeed(["check", image]);
}

/// Returns the numbers of the qgroups, as the kernel's sysfs or btrfs-progs print them.
fn kernels_numbers(mounted: &Path) -> Vec<(String, u64, u64)> {
    let output = Command::new("btrfs").args(["qgroup", "show", "--raw"]).arg(mounted).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    let groups = shown.lines().filter(|line| line.starts_with("0/"));
    groups
        .map(|line| {
            let mut words = line.split_whitespace();
            let id = words.next().unwrap().to_owned();
            let mut number = || words.next().unwrap().parse().unwrap();
            (id, number(), number())
        })
        .collect()
}

/// Returns the numbers as the image has them, and checks that `papilio check -Q` finds the same.
fn own_numbers(image: &str) -> Vec<(String, u64, u64)> {
    succeed(["check", "-Q", image]);
    let shown = succeed_json(["qgroup", "show", "--json", image]);
    let groups = shown.as_array().unwrap_or_else(|| panic!("{shown:#}"));
    let number = |group: &serde_json::Value, name: &str| group[name].as_u64().unwrap();
    groups
        .iter()
        .map(|group| {
            let id = group["qgroupid"].as_str().unwrap().to_owned();
            (id, number(group, "referenced"), number(group, "exclusive"))
        })
        .collect()
}

#[test]
fn new_file_systems_have_quotas_on() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let scratch = Scratch::new(400 << 20).unwrap();
    let source = scratch.path().join("source");
    fs::create_dir_all(source.join("volume")).unwrap();
    fs::write(source.join("volume/f"), noise(1, 3 << 20)).unwrap();
    fs::write(source.join("g"), noise(2, 1 << 20)).unwrap();
    for (feature, content) in [("squota", false), ("squota", true), ("quota", false), ("quota", true)] {
        let path = scratch.path().join(format!("{feature}-{content}"));
        let image = path.to_str().unwrap();
        let mut arguments = vec!["mkfs", "-b", "300M", "-O", feature];
        if content {
            arguments.extend(["--rootdir", source.to_str().unwrap(), "--subvol", "volume"]);
        }
        let shown = succeed_text([&arguments[..], &[image]].concat());
        assert!(
            shown
                .lines()
                .any(|line| line.starts_with("Features: ")
                    && line.split([' ', ',']).any(|name| name == feature)),
            "{shown}"
        );
        let status = succeed_text(["quota", "status", image]);
        let mode = if feature == "quota" { "qgroup" } else { "squota" };
        for line in ["Enabled:                yes", "Inconsistent:           no"] {
            assert!(status.lines().any(|shown| shown == line), "{status}");
        }
        assert!(status.contains(&format!("Mode:                   {mode}\n")), "{status}");
        succeed(["quota", "status", "--is-enabled", image]);
        let before = own_numbers(image);
        assert_eq!(before.len(), 1 + usize::from(content), "{before:?}");
        if !content {
            assert_eq!(before, [("0/5".to_owned(), 16384, 16384)]);
        }
        let images = ImageSet::open(&scratch, vec![path.clone()]);
        let mounted = images.mount().unwrap();
        // The kernel takes the numbers as they are.
        assert_eq!(kernels_numbers(mounted.path()), before, "{feature} {content}");
        sys::create_subvolume(&mounted.path().join("new")).unwrap();
        fs::write(mounted.path().join("new/h"), noise(3, 2 << 20)).unwrap();
        fs::write(mounted.path().join("i"), noise(4, 700_000)).unwrap();
        if content {
            fs::remove_file(mounted.path().join("g")).unwrap();
            fs::write(mounted.path().join("volume/f"), noise(5, 1 << 20)).unwrap();
        }
        mounted.sync().unwrap();
        let kernels = kernels_numbers(mounted.path());
        let new = kernels.last().unwrap();
        assert!(new.1 >= 2 << 20 && new.1 < 3 << 20, "{kernels:?}");
        mounted.unmount().unwrap();
        // Ours counts every extent anew, and finds what the kernel counted.
        assert_eq!(own_numbers(image), kernels, "{feature} {content}");
        succeed(["check", "--check-data-csum", image]);
        // The kernel agrees with the numbers after changes of ours, too, and counts the same anew.
        let at = |path: &str| format!("{image}:{path}");
        succeed(["cp", source.join("g").to_str().unwrap(), &at("/new/ours")]);
        succeed(["rm", &at("/new/h")]);
        succeed(["subvolume", "create", &at("/another")]);
        let ours = own_numbers(image);
        assert_ne!(ours, kernels);
        let mounted = images.mount().unwrap();
        assert_eq!(kernels_numbers(mounted.path()), ours, "{feature} {content}");
        if feature == "quota" {
            let rescan = ["quota", "rescan", "-w"];
            assert!(Command::new("btrfs").args(rescan).arg(mounted.path()).status().unwrap().success());
            assert_eq!(kernels_numbers(mounted.path()), ours);
        }
        mounted.unmount().unwrap();
        if feature == "quota" && images.checkable() {
            images.btrfs_check().unwrap();
        }
        fs::remove_file(&path).unwrap();
    }
}
