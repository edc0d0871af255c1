//! The programs in `programs/` call every function, from several threads, and with wrong arguments.

use crate::support::{Bench, Link};
use papilio_oracle::{ImageSet, Need, require};

/// Compiles a program and runs it in a folder of its own.
fn run(name: &str, link: Link) -> Bench {
    let bench = Bench::new();
    let program = bench.compile(&format!("tests/c/programs/{name}.c"), link);
    let folder = bench.scratch.path().to_str().unwrap().to_owned();
    assert_eq!(bench.run(&program, &[&folder]), format!("{name}: done\n"));
    bench
}

#[test]
fn everything_works_and_the_kernel_agrees() {
    let bench = run("everything", Link::Shared);
    let needs = [Need::KERNEL_MOUNT, &[Need::Command("btrfs")]].concat();
    let Some(_met) = require(&needs) else { return };
    let images = ImageSet::open(&bench.scratch, vec![bench.path("first.img"), bench.path("second.img")]);
    images.btrfs_check().unwrap();
    let mounted = images.mount().unwrap();
    assert_eq!(std::fs::read(mounted.path().join("clone")).unwrap()[5000..5005], *b"other");
    assert!(mounted.path().join("received/s2/two").is_dir());
    mounted.unmount().unwrap();
}

#[test]
fn everything_works_with_the_archive() {
    run("everything", Link::Static);
}

#[test]
fn everything_works_under_address_sanitizer() {
    run("everything", Link::Address);
}

#[test]
fn backups_are_made_and_restored() {
    run("backups", Link::Shared);
}

#[test]
fn backups_are_made_and_restored_under_address_sanitizer() {
    run("backups", Link::Address);
}

#[test]
fn every_level_of_compression_can_be_read_by_the_kernel() {
    let bench = run("compression", Link::Shared);
    let Some(_met) = require(Need::KERNEL_MOUNT) else { return };
    let images = ImageSet::open(&bench.scratch, vec![bench.path("mixed.img")]);
    let mounted = images.mount().unwrap();
    let mut compared = 0;
    for entry in std::fs::read_dir(bench.path("expected")).unwrap() {
        let name = entry.unwrap().file_name();
        let expected = std::fs::read(bench.path("expected").join(&name)).unwrap();
        let seen = std::fs::read(mounted.path().join(&name)).unwrap();
        assert!(seen == expected, "{}: the kernel reads something else", name.display());
        compared += 1;
    }
    assert_eq!(compared, 84);
    mounted.unmount().unwrap();
}

#[test]
fn older_states_are_listed_and_signatures_obeyed() {
    run("older", Link::Shared);
}

#[test]
fn older_states_are_listed_under_address_sanitizer() {
    run("older", Link::Address);
}

#[test]
fn costs_versions_and_plans_are_told() {
    run("space_and_history", Link::Shared);
}

#[test]
fn costs_versions_and_plans_are_told_under_address_sanitizer() {
    run("space_and_history", Link::Address);
}

#[test]
fn file_systems_in_stores_are_written_and_read() {
    run("store", Link::Shared);
}

#[test]
fn threads_share_handles() {
    run("threads", Link::Shared);
}

#[test]
fn threads_share_handles_under_address_sanitizer() {
    run("threads", Link::Address);
}

#[test]
fn bad_input_is_an_error() {
    run("bad_input", Link::Shared);
}

#[test]
fn bad_input_is_an_error_under_address_sanitizer() {
    run("bad_input", Link::Address);
}

#[test]
fn valgrind_finds_nothing_in_bad_input() {
    let Some(_met) = require(&[Need::Command("valgrind")]) else { return };
    let bench = Bench::new();
    let program = bench.compile("tests/c/programs/bad_input.c", Link::Shared);
    let folder = bench.scratch.path().to_str().unwrap().to_owned();
    assert_eq!(bench.valgrind(&program, &[&folder]), "bad_input: done\n");
}
