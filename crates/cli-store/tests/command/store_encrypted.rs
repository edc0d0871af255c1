//! Encrypted file systems in stores: made, mounted, cloned, and their keys changed.

use crate::common::{binary, check_failure, command, fail, succeed, succeed_json, succeed_text, text};
use papilio_oracle::{Need, Scratch, require};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const SIZE: &str = "268435456";
const LINE: &str = "a line that nobody else shall read\n";

fn shows(bytes: &[u8], part: &str) -> bool {
    bytes.windows(part.len()).any(|window| window == part.as_bytes())
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    let (folders, mut found): (Vec<_>, Vec<_>) = entries.into_iter().partition(|path| path.is_dir());
    found.extend(folders.iter().flat_map(|folder| files(folder)));
    found
}

fn assert_hidden(folder: &Path) {
    let found = files(folder);
    assert!(found.len() > 3, "{found:?}");
    for file in found {
        let bytes = std::fs::read(&file).unwrap();
        for part in ["a line that", "a-secret-name", "_BHRfS_M", "papilio-device"] {
            assert!(!shows(&bytes, part), "{} shows {part}", file.display());
        }
    }
}

/// Reads a device whose key is in the file `key`, with commands that print keys.
fn keys_of_commands(inside: &str, key: &str) {
    // A command strips the newline, a file does not.
    let printed = |text: &str| format!("printf '{text}'");
    let by_command = |text: &str| {
        let output = command().args(["--key-command", &printed(text), "ls", inside]).output().unwrap();
        (output.status.code(), crate::common::text(&output.stderr))
    };
    assert_eq!(by_command("first\\n\\n"), (Some(0), String::new()));
    let (code, stderr) = by_command("first\\n");
    assert!(code == Some(1) && stderr.contains("opens with this key command"), "{stderr}");
    fail(1, "exit status: 3", ["--key-command", "exit 3", "ls", inside]);
    let by_environment = command()
        .args(["ls", inside])
        .env("PAPILIO_KEY_COMMAND", format!("cat {key}; echo"))
        .output()
        .unwrap();
    assert!(by_environment.status.success(), "{}", text(&by_environment.stderr));
}

#[test]
fn an_encrypted_file_system_needs_one_of_its_keys() {
    let scratch = Scratch::new(2 << 30).unwrap();
    let at = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    let (tree, key, other, third) = (at("tree"), at("key"), at("other"), at("third"));
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(format!("{tree}/a-secret-name"), LINE.repeat(100_000)).unwrap();
    std::fs::write(format!("{tree}/small"), LINE).unwrap();
    for (file, content) in [(&key, "first\n"), (&other, "second"), (&third, "third")] {
        std::fs::write(file, content).unwrap();
    }
    let store = format!("slatedb+file://{}", at("store"));
    let with = |key: &str, arguments: &[&str]| {
        let all: Vec<String> =
            ["--key-file", key].iter().chain(arguments).map(|text| (*text).to_owned()).collect();
        all
    };
    fail(2, "only devices at URLs with slatedb+", ["mkfs", "-q", "--encrypt", "--size", SIZE, &at("image")]);
    succeed(with(&key, &["mkfs", "-q", "--encrypt", "--size", SIZE, "--rootdir", &tree, &store]));
    succeed(with(&key, &["store", "checkpoint", &store, "--name", "a-secret-name"]));
    assert_hidden(&scratch.path().join("store"));
    let inside = format!("{store}:/");
    assert_eq!(succeed_text(with(&key, &["ls", &inside])), "a-secret-name\nsmall\n");
    succeed(with(&key, &["check", "--check-data-csum", &store]));
    succeed(with(&key, &["cp", &format!("{tree}/small"), &format!("{store}:/copy")]));
    assert_eq!(succeed_text(with(&key, &["cat", &format!("{store}:/copy")])), LINE);

    let locked = fail(1, "none of its keys opens with this key file", with(&other, &["ls", &inside]));
    assert!(locked.contains(&store), "{locked}");
    fail(1, "none of its keys opens with this key file", with(&other, &["touch", &format!("{store}:/x")]));
    let no_terminal = Command::new("setsid")
        .arg("--wait")
        .arg(binary())
        .args(["ls", &inside])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    check_failure(&no_terminal, 1, "it is encrypted: give a key with --key-file FILE");
    keys_of_commands(&inside, &key);

    let add = |old: &str, new: &str| with(old, &["store", "key", "add", &store, "--new-key-file", new]);
    assert_eq!(succeed_text(add(&key, &other)), "1\n");
    fail(1, "none of its keys opens", add(&third, &other));
    assert_eq!(succeed_text(with(&other, &["ls", &inside])), "a-secret-name\ncopy\nsmall\n");
    let listed = succeed_json(["store", "key", "list", "--json", &store]);
    assert_eq!((listed.as_array().unwrap().len(), &listed[1]["number"]), (2, &1.into()));
    assert!(listed[0]["added"].is_string());
    assert_eq!(succeed_text(["store", "key", "list", &store]).lines().count(), 2);
    let change = ["store", "key", "change", &store, "--new-key-command", "printf third"];
    assert_eq!(succeed_text(with(&other, &change)), "1\n");
    fail(1, "none of its keys opens", with(&other, &["ls", &inside]));
    fail(1, "none of its keys opens", with(&key, &["store", "key", "remove", &store, "0"]));
    succeed(with(&third, &["store", "key", "remove", &store, "0"]));
    fail(1, "the last key cannot be removed", with(&third, &["store", "key", "remove", &store, "1"]));
    fail(1, "none of its keys opens", with(&key, &["ls", &inside]));

    let clone = format!("slatedb+file://{}", at("clone"));
    succeed(with(&third, &["store", "clone", &format!("{store}?checkpoint=a-secret-name"), &clone]));
    succeed(with(&third, &["mkdir", &format!("{clone}:/in-clone")]));
    let names = "a-secret-name\nin-clone\nsmall\n";
    assert_eq!(succeed_text(with(&third, &["ls", &format!("{clone}:/")])), names);
    assert_hidden(&scratch.path().join("clone"));
    let info = succeed_json(with(&third, &["store", "info", "--json", &clone]));
    assert_eq!(info["encrypted"], true);
    assert!(succeed_text(with(&third, &["store", "info", &store])).contains("Encrypted:    yes"));
    succeed(with(&third, &["store", "clean", &store]));
    assert_hidden(&scratch.path().join("store"));

    let again = ["mkfs", "-q", "--encrypt", "-f", "--size", SIZE, &store];
    fail(1, "there is a device already", with(&third, &again));
    fail(1, "none of its keys opens", with(&key, &["mkfs", "-q", "-f", "--size", SIZE, &store]));
    succeed(with(&third, &["mkfs", "-q", "-f", "--size", SIZE, &store]));
    assert_eq!(succeed_text(with(&third, &["ls", &inside])), "");
    assert_eq!(succeed_json(with(&third, &["store", "info", "--json", &store]))["encrypted"], true);
    let plain = format!("slatedb+file://{}", at("plain"));
    succeed(["mkfs", "-q", "--size", SIZE, &plain]);
    fail(1, "it is not encrypted", ["store", "key", "list", &plain]);
    fail(1, "no such file or device", ["store", "key", "list", &format!("{plain}/none")]);
}

#[test]
fn an_encrypted_file_system_is_mounted() {
    if require(&[Need::Root, Need::Fuse]).is_none() {
        return;
    }
    let scratch = Scratch::new(1 << 30).unwrap();
    let (key, directory) = (scratch.path().join("key"), scratch.path().join("mnt"));
    std::fs::write(&key, "a key").unwrap();
    std::fs::create_dir(&directory).unwrap();
    let (key, mount) = (key.to_str().unwrap(), directory.to_str().unwrap());
    let store = format!("slatedb+file://{}/store", scratch.path().display());
    succeed(["--key-file", key, "mkfs", "-q", "--encrypt", "--size", SIZE, &store]);
    let print = format!("cat {key}");
    for (number, option) in [["--key-file", key], ["--key-command", &print]].iter().enumerate() {
        succeed(["mount", option[0], option[1], &store, mount]);
        let written = std::panic::catch_unwind(|| {
            std::fs::write(directory.join(format!("written-{number}")), LINE).unwrap();
        });
        crate::common::unmount(&directory);
        written.unwrap();
    }
    assert_hidden(&scratch.path().join("store"));
    for number in 0..2 {
        let file = format!("{store}:/written-{number}");
        assert_eq!(succeed_text(["--key-file", key, "cat", &file]), LINE);
    }
}
