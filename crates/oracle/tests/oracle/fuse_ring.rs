//! The switch of FUSE over io_uring after its holder was killed.

use papilio_oracle::{RingSwitch, scratch};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Starts a process that holds `switch` on and has its scratch directories in `directory`.
fn start_holder(directory: &Path, switch: &Path) -> Child {
    let mut child = Command::new(env!("CARGO_BIN_EXE_papilio-oracle"))
        .arg("hold-switch")
        .arg(switch)
        .env("TMPDIR", directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    if line != "on\n" {
        let _ = child.kill();
        panic!("the holder ended with {}", child.wait().unwrap());
    }
    child
}

#[test]
fn cleaning_restores_the_switch_of_a_killed_holder() {
    let directory = tempfile::tempdir().unwrap();
    let switch = directory.path().join("switch");
    std::fs::write(&switch, "N\n").unwrap();
    let value = || std::fs::read(&switch).unwrap()[0];
    let mut holder = start_holder(directory.path(), &switch);
    let user = RingSwitch::on_at(&switch).unwrap();
    assert!(scratch::clean_leftovers_in(directory.path()).is_empty(), "the holder is alive");
    holder.kill().unwrap();
    holder.wait().unwrap();
    // The other user still holds it.
    assert!(scratch::clean_leftovers_in(directory.path()).is_empty());
    assert_eq!(value(), b'Y');
    drop(user);
    assert_eq!(scratch::clean_leftovers_in(directory.path()).len(), 1);
    assert_eq!(value(), b'N');
    // Only the switch is left.
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
}
