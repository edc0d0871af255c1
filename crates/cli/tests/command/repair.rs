//! `check --repair` and `rescue undo`: the plan, the result, and the way back.

use crate::common::{fail, papilio, succeed, text};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

#[test]
fn a_repair_can_be_taken_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    let image = path.to_str().unwrap();
    std::fs::File::create(&path).unwrap().set_len(256 << 20).unwrap();
    succeed(["mkfs", image]);
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    // The second copy of the superblock.
    file.write_all_at(&[0; 4096], 64 << 20).unwrap();
    drop(file);
    let damaged = std::fs::read(&path).unwrap();
    let output = papilio(["check", image]);
    assert!(output.status.success(), "a warning is no failure");
    assert!(text(&output.stdout).contains("warning: superblock-copy"));

    let undo = folder.path().join("undo");
    let undo = undo.to_str().unwrap();
    let output = papilio(["check", "--undo", undo, image]);
    assert_eq!(output.status.code(), Some(2), "an undo file needs --repair");
    let output = papilio(["check", "--repair", "--yes", "--undo", undo, image]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("will write all copies of the superblock"));
    assert!(text(&papilio(["check", image]).stdout).contains("no error found"));
    let mended = std::fs::read(&path).unwrap();
    assert!(mended != damaged);
    // A second repair has nothing to do.
    let output = papilio(["check", "--repair", "--yes", image]);
    assert!(output.status.success() && text(&output.stdout).contains("nothing was written"));

    let other = folder.path().join("other");
    std::fs::File::create(&other).unwrap().set_len(256 << 20).unwrap();
    succeed(["mkfs", other.to_str().unwrap()]);
    fail(1, "no device is the one", ["rescue", "undo", undo, other.to_str().unwrap()]);
    succeed(["rescue", "undo", undo, image]);
    assert!(std::fs::read(&path).unwrap() == damaged);
}
