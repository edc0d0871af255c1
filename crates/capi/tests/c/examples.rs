//! The programs in `examples/`, one after the other on one image, as a user would run them.

use crate::support::{Bench, Link, text};
use papilio_oracle::{ImageSet, Need, require};
use std::path::{Path, PathBuf};

/// Runs all examples by `run` on new images, and returns the bench and the first image.
fn tour(link: Link, run: impl Fn(&Bench, &Path, &[&str]) -> String) -> (Bench, PathBuf) {
    let bench = Bench::new();
    let paths = [bench.path("store.img"), bench.path("copy.img")];
    let [image, copy] = paths.each_ref().map(|path| path.to_str().unwrap());
    let example = |name: &str| bench.compile(&format!("examples/{name}.c"), link);

    let mkfs = example("mkfs");
    let made = run(&bench, &mkfs, &[image, "256", "store"]);
    assert!(made.contains("268435456 bytes"), "{made}");
    run(&bench, &mkfs, &[copy, "256"]);

    let shown = run(&bench, &example("write_and_snapshot"), &[image]);
    assert_eq!(shown, "/home/ada/latest: second draft\n/snapshots/monday/ada/latest: first draft\n");
    let queue = example("queue");
    assert_eq!(run(&bench, &queue, &[image]), "512 blocks: the same\n");

    let sent = run(&bench, &example("send_receive"), &[image, "/snapshots/monday", copy]);
    assert!(sent.ends_with(" bytes, 1 subvolume\n"), "{sent}");
    let read = example("read_image");
    assert_eq!(run(&bench, &read, &[copy, "/monday/ada/notes"]), "first draft");
    let listed = run(&bench, &read, &[image]);
    assert!(listed.contains("100644         12 /home/ada/notes\n"), "{listed}");
    assert!(listed.contains("040755          0 /home/ada\n") || listed.contains("/home/ada\n"), "{listed}");

    let check = example("check");
    for image in [image, copy] {
        let checked = run(&bench, &check, &[image]);
        assert!(checked.starts_with("0 errors, 0 warnings; "), "{checked}");
    }
    let path = paths[0].clone();
    (bench, path)
}

#[test]
fn examples_work_and_the_kernel_agrees() {
    let (bench, image) = tour(Link::Shared, Bench::run);
    let path = image.to_str().unwrap();
    let queue = bench.compile("examples/queue.c", Link::Shared);
    assert_eq!(bench.run(&queue, &[path, "direct"]), "512 blocks: the same\n");
    let missing = bench.path("missing.img");
    let refused =
        bench.command(&[bench.path("check-Shared").to_str().unwrap()]).arg(&missing).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    let line = text(&refused.stderr);
    assert!(line.contains("missing.img") && line.lines().count() == 1, "{line}");

    let needs = [Need::KERNEL_MOUNT, &[Need::Command("btrfs")]].concat();
    let Some(_met) = require(&needs) else { return };
    let images = ImageSet::open(&bench.scratch, vec![image]);
    images.btrfs_check().unwrap();
    let mounted = images.mount().unwrap();
    let content = |path: &str| std::fs::read(mounted.path().join(path)).unwrap();
    assert_eq!(content("home/ada/latest"), b"second draft");
    assert_eq!(content("snapshots/monday/ada/notes"), b"first draft");
    assert_eq!(content("data").len(), 512 * 16384);
    mounted.unmount().unwrap();
}

#[test]
fn examples_work_with_the_archive() {
    tour(Link::Static, Bench::run);
}

#[test]
fn examples_work_under_address_sanitizer() {
    tour(Link::Address, Bench::run);
}

#[test]
fn valgrind_finds_nothing_in_the_examples() {
    let Some(_met) = require(&[Need::Command("valgrind")]) else { return };
    tour(Link::Shared, Bench::valgrind);
}

/// The JSON of the check is that of the command.
#[test]
fn damaged_image_is_reported() {
    let (bench, image) = tour(Link::Shared, Bench::run);
    // The backup superblock, at 64 MiB.
    let file = std::fs::File::options().write(true).open(&image).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0; 512], 64 << 20).unwrap();
    let check = bench.path("check-Shared");
    let report = bench.run(&check, &[image.to_str().unwrap()]);
    assert!(report.starts_with("superblock-copy: "), "{report}");
    let json = bench.run(&check, &["--json", image.to_str().unwrap()]);
    assert!(json.contains("\"kind\": \"superblock-copy\"") && json.contains("\"warnings\": 1"), "{json}");
    let options = papilio::CheckOptions::new().data_csum(true);
    let wanted = papilio::check(&image, &papilio::OpenOptions::new(), &options).unwrap();
    assert!(json.contains(&format!("\"blocks\": {}", wanted.statistics.blocks)), "{json}");
}
