//! File systems in image files: tests open them with Papilio, and check them with Papilio and the
//! Btrfs tools.

#![allow(dead_code, reason = "each crate that includes this file uses a part of it")]

use papilio::{CheckOptions, CheckReport, FileSystem, OpenOptions};
use papilio_oracle::ImageSet;
use papilio_oracle::requirement::find_command;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;

/// Options for writing, with no commits in the background: only the test commits.
pub fn writable() -> OpenOptions {
    OpenOptions::new().write(true).commit_interval(None)
}

/// Opens the images of a file system.
pub fn open(images: &[PathBuf], options: &OpenOptions) -> papilio::Result<FileSystem> {
    FileSystem::open_with(&images[0], &with_devices(images, options))
}

/// Adds all images but the first to the options.
fn with_devices(images: &[PathBuf], options: &OpenOptions) -> OpenOptions {
    images[1..].iter().fold(options.clone(), |options, image| options.device(image))
}

/// Checks the images of a file system with Papilio, data checksums included.
pub fn check(images: &[PathBuf]) -> CheckReport {
    let open = with_devices(images, &OpenOptions::new());
    papilio::check(&images[0], &open, &CheckOptions::new().data_csum(true)).expect("check")
}

/// Fails with the findings, and the words of `when`, unless Papilio's check finds nothing.
pub fn assert_clean(images: &[PathBuf], when: &str) {
    let report = check(images);
    assert!(report.is_clean(), "{when}: {:#?}", report.findings);
}

/// As [`assert_clean`], and the same for `btrfs check`. Returns its output.
pub fn assert_clean_for_both(images: &ImageSet, when: &str) -> String {
    assert_clean(images.paths(), when);
    let output = images.btrfs_check().unwrap_or_else(|error| panic!("{when}: {error:#}"));
    assert!(output.contains("no error found"), "{when}: {output}");
    output
}

/// Runs the `btrfs` command, which has to succeed. Returns its output.
pub fn btrfs(arguments: &[impl AsRef<OsStr>]) -> String {
    let mut command = Command::new(find_command("btrfs").expect("a requirement of the test"));
    let output = command.args(arguments).output().expect("btrfs runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {text}{errors}");
    text
}
