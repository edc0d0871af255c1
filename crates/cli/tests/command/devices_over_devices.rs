//! Encrypted volumes, offsets and disks without a partition table, as the command opens them.

use crate::common::{command, fail, succeed, succeed_json, succeed_text, text};
use papilio_oracle::{Need, Scratch, require};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

/// Formats an image with cryptsetup, which needs no device mapper for that.
fn format(image: &str, key: &str, arguments: &[&str]) {
    let cheap = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];
    let status = Command::new("cryptsetup")
        .args(["-q", "luksFormat", "--type", "luks2"])
        .args(cheap)
        .args(arguments)
        .args([image, key])
        .stdin(Stdio::null())
        .status();
    assert!(status.unwrap().success());
}

#[test]
fn an_encrypted_volume_is_read_and_written() {
    let Some(_met) = require(&[Need::Command("cryptsetup")]) else { return };
    let scratch = Scratch::new(1 << 30).unwrap();
    let path = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    let (image, key, other, local) = (path("image"), path("key"), path("other"), path("local"));
    std::fs::write(&key, "a key\n").unwrap();
    std::fs::write(&other, "another").unwrap();
    std::fs::write(&local, vec![b'x'; 1 << 20]).unwrap();
    std::fs::File::create(&image).unwrap().set_len(80 << 20).unwrap();
    format(&image, &key, &["--sector-size", "4096"]);
    let at = |file: &str| format!("{image}:/{file}");
    let top = format!("{image}@top");

    // The volume is never overwritten itself.
    fail(1, "use -f to overwrite it", ["mkfs", "-q", &image]);
    succeed(["--key-file", &key, "mkfs", "-q", "-M", &top]);
    succeed(["--key-file", &key, "cp", &local, &at("file")]);
    assert!(succeed(["--key-file", &key, "cat", &at("file")]) == std::fs::read(&local).unwrap());
    succeed(["--key-file", &key, "check", "--check-data-csum", &image]);
    let by_environment = command().args(["ls", &at("")]).env("PAPILIO_KEY_FILE", &key).output().unwrap();
    assert_eq!(text(&by_environment.stdout), "file\n");
    let piped =
        command().args(["--key-file", "-", "ls", &at("")]).stdin(std::fs::File::open(&key).unwrap()).output();
    assert_eq!(text(&piped.unwrap().stdout), "file\n");

    let before = std::fs::read(&image).unwrap();
    fail(1, "no LUKS key slot opens with this key file", ["--key-file", &other, "touch", &at("new")]);
    fail(1, "cannot read the key", ["--key-file", "/nowhere", "ls", &at("")]);
    // Without a terminal nobody can be asked.
    let no_terminal = Command::new("setsid")
        .args(["--wait"])
        .arg(crate::common::binary())
        .args(["ls", &at("")])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(text(&no_terminal.stderr).contains("--key-file"), "{}", text(&no_terminal.stderr));
    assert_eq!(no_terminal.status.code(), Some(1));
    assert!(std::fs::read(&image).unwrap() == before);

    let locked = succeed_text(["inspect", "layers", &image]);
    assert!(
        locked.lines().count() == 1 && locked.contains("LUKS2, aes-xts-plain64, sectors of 4096"),
        "{locked}"
    );
    let open = succeed_json(["--key-file", &key, "inspect", "layers", "--json", &image]);
    assert_eq!(open.as_array().unwrap().len(), 2);
    assert_eq!(open[1]["btrfs"], true);
    assert_eq!(open[1]["layer"], "LUKS2");

    // The first header is lost; the second is used.
    std::fs::File::options().write(true).open(&image).unwrap().write_all_at(&[0; 4096], 0).unwrap();
    assert_eq!(succeed_text(["--key-file", &key, "ls", &at("")]), "file\n");
}

#[test]
fn file_systems_of_a_lost_partition_table_are_found() {
    const START: u64 = 63 * 512 + (3 << 20);
    let scratch = Scratch::new(1 << 30).unwrap();
    let path = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    let (disk, inner) = (path("disk"), path("inner"));
    let file = std::fs::File::create(&disk).unwrap();
    file.set_len(300 << 20).unwrap();
    fail(1, "no superblock of Btrfs was found", ["rescue", "find-filesystems", &disk]);
    let at = format!("{disk}@+{START}");
    succeed(["mkfs", "-q", "-M", "-L", "outer", &at]);
    succeed(["mkfs", "-q", "-M", "--size", "32M", "-L", "inner", &inner]);
    succeed(["cp", &inner, &format!("{at}:/image")]);
    let found = succeed_json(["rescue", "find-filesystems", "--json", &disk]);
    let found = found.as_array().unwrap();
    assert_eq!(found[0]["start"], START);
    assert_eq!(found[0]["label"], "outer");
    assert_eq!(found[0]["agree"], true);
    assert_eq!(found[0]["copies"].as_array().unwrap().len(), 2);
    let image = found.iter().find(|one| one["label"] == "inner").unwrap();
    assert_eq!(image["inside"], START);
    assert_eq!(succeed_text(["ls", &format!("{at}:/")]), "image\n");
    succeed(["check", &at]);
    fail(1, "nothing is at offset", ["ls", &format!("{disk}@+1T:/")]);
    let lines = succeed_text(["rescue", "find-filesystems", &disk]);
    assert!(lines.contains("which agree") && lines.contains("inside the file system"), "{lines}");
    // As in a file: a name that says so wins.
    std::fs::rename(&inner, &at).unwrap();
    assert_eq!(succeed_text(["ls", &format!("{at}:/")]), "");
}
