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

/// The lines and columns of the terminal.
const TERMINAL: (usize, usize) = (24, 120);

/// Returns each state of the screen as text. The library writes letters, and sequences that place
/// the cursor or change colours; it hides the cursor after each picture.
fn pictures(written: &str) -> String {
    let mut screen = vec![vec![' '; TERMINAL.1]; TERMINAL.0];
    let (mut line, mut column, mut pictures) = (0, 0, String::new());
    let mut letters = written.chars();
    while let Some(letter) = letters.next() {
        if letter == '\x1b' {
            let sequence: String = letters.by_ref().take_while(|letter| *letter != '[').collect();
            assert!(sequence.is_empty(), "ESC {sequence}");
            let mut parameters = String::new();
            let end = letters.by_ref().find(|letter| {
                let is_end = letter.is_ascii_alphabetic();
                if !is_end {
                    parameters.push(*letter);
                }
                is_end
            });
            match end.unwrap() {
                'H' => {
                    let (down, right) = parameters.split_once(';').unwrap_or(("1", "1"));
                    (line, column) =
                        (down.parse::<usize>().unwrap() - 1, right.parse::<usize>().unwrap() - 1);
                }
                'J' => screen.iter_mut().for_each(|line| line.fill(' ')),
                'l' if parameters == "?25" => {
                    for line in &screen {
                        pictures.extend(line.iter().collect::<String>().trim_end().chars().chain(['\n']));
                    }
                }
                _ => {}
            }
        } else if !letter.is_control() {
            if let Some(cell) = screen.get_mut(line).and_then(|line| line.get_mut(column)) {
                *cell = letter;
            }
            column += 1;
        }
    }
    pictures
}

/// Runs `usage --tree` in a terminal, with `folder` as the working directory, and presses keys.
/// Returns what the terminal got, and each picture on it.
fn in_terminal(folder: &Path, arguments: &str, keys: &[&str]) -> String {
    let (lines, columns) = TERMINAL;
    let run = format!("stty rows {lines} cols {columns}; {} usage --tree {arguments}", binary().display());
    let mut child = Command::new("script")
        .args(["-q", "-e", "-c", &run, "/dev/null"])
        .env("TERM", "xterm")
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut terminal = child.stdin.take().unwrap();
    for part in ["", ""].iter().chain(keys) {
        std::thread::sleep(Duration::from_millis(700));
        terminal.write_all(part.as_bytes()).unwrap();
    }
    let output = child.wait_with_output().unwrap();
    drop(terminal);
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{shown}");
    shown.clone() + &pictures(&shown)
}

#[test]
fn a_terminal_shows_the_tree_until_q() {
    if require(&[Need::Command("script")]).is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    // Without --delete nothing can be deleted.
    let shown = in_terminal(folder.path(), image.to_str().unwrap(), &["d", "\r", "e", "\r", "q"]);
    for part in ["large/", "samples", "[##########]", "file", "--delete allows", "exported "] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    // The other screen was entered and left.
    assert!(shown.contains("\x1b[?1049h") && shown.contains("\x1b[?1049l"), "{shown}");
    assert!(succeed_text(["ls", image.to_str().unwrap()]).contains("large"));
    // The exported file is a run.
    let names = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let run = names.into_iter().find(|path| path.extension().is_some_and(|end| end == "json")).unwrap();
    let (run, image) = (run.to_str().unwrap(), image.to_str().unwrap());
    let compared = succeed_json(["usage", "--tree", "--exact", "--json", "--compare", run, image]);
    let change = compared["tree"]["change"].as_i64().unwrap();
    assert!(change.unsigned_abs() <= compared["tree"]["change_error"].as_u64().unwrap(), "{compared:#}");
    fail(1, "nowhere", ["usage", "--tree", "/nowhere/image"]);
}

#[test]
fn files_and_snapshots_of_an_image_are_deleted_in_a_terminal() {
    if require(&[Need::Command("script"), Need::Command("btrfs")]).is_none() {
        return;
    }
    let scratch = Scratch::new(500 << 20).unwrap();
    let image = image(scratch.path());
    let shown = image.to_str().unwrap();
    let arguments = format!("--delete {shown}");
    // The largest is selected. An answer other than y leaves it.
    let seen = in_terminal(scratch.path(), &arguments, &["d", "n", "d", "y", "q"]);
    for part in ["nothing was deleted", "y/n: /large", "deleted /large"] {
        assert!(seen.contains(part), "{part}: {seen}");
    }
    let exact = || succeed_json(["usage", "--tree", "--exact", "--json", shown]);
    let left = exact();
    assert_eq!(bytes(&left["tree"], "snapshot").0, 24 * MIB, "{left:#}");
    // It is the snapshot now. Then a file in a directory goes.
    let keys = ["d", "y", "\r", "d", "y", "q"];
    let seen = in_terminal(scratch.path(), &arguments, &keys);
    assert!(seen.contains("deleted /snapshot") && seen.contains("deleted /medium/file"), "{seen}");
    let left = exact();
    assert_eq!((&left["tree"]["bytes"], &left["data"]), (&(2 * MIB).into(), &(2 * MIB).into()), "{left:#}");
    assert!(!succeed_text(["subvolume", "list", shown]).contains("snapshot"));
    assert!(succeed_text(["ls", &format!("{shown}:/medium")]).is_empty());
    crate::common::assert_clean(&image);
    ImageSet::open(&scratch, vec![image]).btrfs_check().unwrap();
}

#[test]
fn files_and_snapshots_of_a_mount_are_deleted_in_a_terminal() {
    let needs = [Need::KERNEL_MOUNT, &[Need::Command("script"), Need::Command("btrfs")]].concat();
    if require(&needs).is_none() {
        return;
    }
    let scratch = Scratch::new(500 << 20).unwrap();
    let image = image(scratch.path());
    let images = ImageSet::open(&scratch, vec![image]);
    let arguments = |mounted: &Path| format!("--delete {}", mounted.display());
    // Only what is mounted can be deleted, and only where it is writable.
    let mounted = images.mount_with(&["subvol=/snapshot".to_owned()], false).unwrap();
    let seen = in_terminal(scratch.path(), &arguments(mounted.path()), &["d", "y", "q"]);
    assert!(seen.contains("/large: outside of the part of the file system that"), "{seen}");
    mounted.unmount().unwrap();
    let mounted = images.mount_with(&[], true).unwrap();
    let seen = in_terminal(scratch.path(), &arguments(mounted.path()), &["d", "y", "q"]);
    assert!(seen.to_lowercase().contains("read-only"), "{seen}");
    assert!(mounted.path().join("large/file").exists());
    mounted.unmount().unwrap();

    let mounted = images.mount_with(&[], false).unwrap();
    let root = mounted.path();
    // The target of a link stays.
    let outside = scratch.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("kept"), b"kept").unwrap();
    std::os::unix::fs::symlink(&outside, root.join("large/link")).unwrap();
    let seen = in_terminal(scratch.path(), &arguments(root), &["d", "y", "d", "y", "q"]);
    assert!(seen.contains("deleted /large") && seen.contains("deleted /snapshot; its space"), "{seen}");
    assert!(!root.join("large").exists() && !root.join("snapshot").exists());
    assert!(outside.join("kept").exists() && root.join("medium/file").exists());
    // A directory with a subvolume in it is refused as a whole.
    let inside = root.join("medium/inside");
    assert!(
        Command::new("btrfs").args(["subvolume", "create"]).arg(&inside).output().unwrap().status.success()
    );
    let seen = in_terminal(scratch.path(), &arguments(root), &["d", "y", "q"]);
    assert!(seen.contains("contains the subvolume /medium/inside"), "{seen}");
    assert!(root.join("medium/file").exists());
    mounted.unmount().unwrap();
    images.btrfs_check().unwrap();
}

#[test]
fn two_runs_are_compared() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let image = image.to_str().unwrap();
    let at = |path: &str| format!("{image}:{path}");
    let run = folder.path().join("run.json");
    let run = run.to_str().unwrap();
    succeed(["usage", "--tree", "--exact", "--export", run, image]);
    let exported: Value = serde_json::from_str(&fs::read_to_string(run).unwrap()).unwrap();
    assert_eq!(exported["entries"][0]["bytes"], 32 * MIB);
    assert_eq!((&exported["exact"], &exported["seed"]), (&true.into(), &Value::Null));
    let host = folder.path().join("host");
    fs::write(&host, noise(9, 8 << 20)).unwrap();
    succeed(["cp", host.to_str().unwrap(), &at("/medium/new")]);
    succeed(["rm", "-r", &at("/small")]);
    let compare = ["usage", "--tree", "--exact", "--compare", run];
    let change = |tree: &Value, name: &str| {
        let entries = tree["entries"].as_array().unwrap();
        entries.iter().find(|entry| entry["name"] == name).unwrap()["change"].as_i64().unwrap()
    };
    let found = succeed_json(compare.iter().chain(&["--json", image]));
    let mib = MIB as i64;
    assert_eq!(found["tree"]["change"], 8 * mib);
    // The snapshot still has what was in the directory.
    for (name, mib) in [("medium", 8 * mib), ("small", -2 * mib), ("snapshot", 2 * mib), ("large", 0)] {
        assert_eq!(change(&found["tree"], name), mib, "{name}: {found:#}");
    }
    let shown = succeed_text(compare.iter().chain(&[image]));
    let line = |name: &str| shown.lines().find(|line| line.ends_with(name)).unwrap().to_owned();
    assert!(line("%    medium").contains("+8.00MiB") && line("%    small").contains("-2.00MiB"), "{shown}");
    // The largest change comes first.
    assert!(shown.find(" medium").unwrap() < shown.find(" large").unwrap(), "{shown}");

    // The errors of samples are those of the difference.
    let sampled = ["usage", "--tree", "--samples", "600", "--seed", "5", "--compare", run, "--json", image];
    let found = succeed_json(sampled);
    for (name, mib) in [("medium", 8 * mib), ("small", -2 * mib), ("snapshot", 2 * mib), ("large", 0)] {
        let entries = found["tree"]["entries"].as_array().unwrap();
        let entry = entries.iter().find(|entry| entry["name"] == name).unwrap();
        let error = entry["change_error"].as_i64().unwrap();
        assert!((entry["change"].as_i64().unwrap() - mib).abs() <= error, "{name}: {entry}");
        assert!(name == "small" || error > 0);
    }
    assert_eq!(found["compared_with"]["exact"], true);
    // A run of another file system is compared, with a warning; no other file is.
    let other = folder.path().join("other");
    fs::File::create(&other).unwrap().set_len(200 << 20).unwrap();
    succeed(["mkfs", other.to_str().unwrap()]);
    let output = papilio(["usage", "--tree", "--exact", "--compare", run, other.to_str().unwrap()]);
    assert!(output.status.success() && text(&output.stderr).contains("is of the file system"));
    fail(1, "not JSON", ["usage", "--tree", "--exact", "--compare", host.to_str().unwrap(), image]);
    fail(1, "No such file", ["usage", "--tree", "--exact", "--compare", "/nowhere", image]);
    fail(1, "nowhere", ["usage", "--tree", "--exact", "--export", "/nowhere/run", image]);
}

#[test]
fn names_of_any_bytes_are_exported() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let at = |path: &[u8]| {
        use std::os::unix::ffi::OsStringExt;
        std::ffi::OsString::from_vec([image.as_os_str().as_encoded_bytes(), b":", path].concat())
    };
    for (number, name) in [&b"/a\nb"[..], b"/\xff\xfe", b"/\"<x>"].into_iter().enumerate() {
        let host = folder.path().join("host");
        fs::write(&host, noise(100 + number as u64, 1 << 20)).unwrap();
        succeed(["cp".into(), host.into_os_string(), at(name)]);
    }
    let run = folder.path().join("run.json");
    let (run, image) = (run.to_str().unwrap(), image.to_str().unwrap());
    succeed(["usage", "--tree", "--exact", "--export", run, image]);
    let found = succeed_json(["usage", "--tree", "--exact", "--compare", run, "--json", image]);
    assert_eq!(found["tree"]["change"], 0);
    let entries = found["tree"]["entries"].as_array().unwrap();
    assert!(entries.iter().all(|entry| entry["change"] == 0), "{found:#}");
    assert!(entries.iter().any(|entry| entry["name_hex"] == "fffe"));
}

#[test]
fn wrong_options_are_refused() {
    for wrong in [
        &["--samples", "3"][..],
        &["--tree", "--exact", "--seed", "1"],
        &["--tree", "--table"],
        &["--export", "run"],
        &["--compare", "run"],
        &["--tree", "--delete", "--exact"],
        // There is no terminal.
        &["--tree", "--delete"],
    ] {
        let output = papilio(["usage"].iter().chain(wrong).chain(&["image"]));
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
    }
    fail(1, "nowhere", ["usage", "--tree", "/nowhere/image"]);
}
