//! `papilio shell`: scripts, and completion on a terminal.

use crate::common::{binary, check_failure, command, fail, succeed, succeed_text, text};
use papilio_oracle::{Need, require};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

fn image(folder: &Path) -> PathBuf {
    let image = folder.join("image");
    fs::File::create(&image).unwrap().set_len(256 << 20).unwrap();
    succeed(["mkfs".as_ref(), image.as_os_str()]);
    image
}

fn shell(options: &[&str], image: &Path, directory: &Path, script: &str) -> Output {
    let mut command = command();
    command.arg("shell").args(options).arg(image).current_dir(directory);
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.unwrap();
    // A shell that ends early does not read all of it.
    let _ = child.stdin.take().unwrap().write_all(script.as_bytes());
    child.wait_with_output().unwrap()
}

#[test]
fn a_script_runs_commands_in_one_file_system() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    fs::write(folder.path().join("a file"), "content\n").unwrap();
    let script = "
# directories and files
mkdir -p 'one/two words' three
cd one
pwd
cd ..
put 'a file' one/two\\ words
cat 'one/two words/a file'
ln -s 'two words' one/link
stat 'one/link/a file'
cp 'one/two words/a file' three/copy
mv three/copy three/moved
setfattr -n user.x -v y three/moved
getfattr -n user.x three/moved
snapshot -r / before
rm -r three
subvolume list
sync
find one -name 'a *'
ls before/three
get before/three/moved out
exit
mkdir never
";
    let output = shell(&[], &image, folder.path(), script);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    for part in ["/one\n", "content\n", "user.x=\"y\"", "path before", "a file", "moved\n"] {
        assert!(shown.contains(part), "{part:?}: {shown}");
    }
    assert_eq!(fs::read_to_string(folder.path().join("out")).unwrap(), "content\n");
    let root = format!("{}:/", image.display());
    assert_eq!(succeed_text(["ls", "-1", &root]), "before\none\n");
    succeed(["check".as_ref(), image.as_os_str()]);
}

#[test]
fn a_script_ends_at_the_first_failure() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let script = "mkdir a\ncat missing\nmkdir b\n";
    let output = shell(&[], &image, folder.path(), script);
    check_failure(&output, 1, "missing: no such file or directory");
    let root = format!("{}:/", image.display());
    assert_eq!(succeed_text(["ls", "-1", &root]), "a\n");
    let output = shell(&["--keep-going"], &image, folder.path(), "cat missing\nmkdir b\n");
    check_failure(&output, 1, "missing");
    assert_eq!(succeed_text(["ls", "-1", &root]), "a\nb\n");
    for (line, part) in [
        ("nonsense", "nonsense: no such command"),
        ("ls 'a", "is not closed"),
        ("cd missing", "missing: no such file"),
        ("cd a b", "too many"),
        ("get", "what is to be copied"),
    ] {
        fail(1, part, ["shell".as_ref(), "-c".as_ref(), line.as_ref(), image.as_os_str()]);
    }
    // clap explains a wrong option in several lines.
    let output = shell(&[], &image, folder.path(), "ls --nonsense\nmkdir c\n");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("--nonsense"));
    fail(1, "nowhere", ["shell", "/nowhere/image"]);
}

#[test]
fn patterns_stand_for_paths() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    for name in ["one.txt", "two.txt", "three.c", "star*"] {
        fs::write(folder.path().join(name), format!("{name}\n")).unwrap();
    }
    let out = folder.path().join("out");
    fs::create_dir(&out).unwrap();
    let script = "
mkdir -p a/deep b .hidden
put *.txt a
put three.c 'star*' a/deep
cat a/*.txt
cat a/deep/'star*'
cp a/deep/star\\* b/starlet
cp a/[ot]*.txt b
rm b/???.txt
touch .hidden/x.c
cd d*
";
    let output = shell(&["-k"], &image, folder.path(), script);
    check_failure(&output, 1, "d*: nothing matches");
    assert_eq!(text(&output.stdout), "one.txt\ntwo.txt\nstar*\n");
    let root = format!("{}:/", image.display());
    assert_eq!(succeed_text(["ls", "-1", &format!("{root}b")]), "starlet\n");
    let output = shell(&[], &image, folder.path(), "cd a\ncd d*\npwd\nget ** out\ncd ..\nls -d **/*.c\n");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    assert!(shown.starts_with("/a/deep\n") && shown.ends_with(":/a/deep/three.c\n"), "{shown}");
    assert_eq!(shown.lines().count(), 2, "{shown}");
    assert_eq!(fs::read_dir(&out).unwrap().count(), 2);
    // A pattern that matches nothing removes nothing, and a quoted one is a name.
    for (line, part) in [
        ("rm -r x*", "x*: nothing matches"),
        ("rm '*'", "*: no such file"),
        ("cd ?", "?: 2 paths match"),
        ("get missing/* out", "missing/*: nothing matches"),
    ] {
        fail(1, part, ["shell".as_ref(), "-c".as_ref(), line.as_ref(), image.as_os_str()]);
    }
    assert_eq!(succeed_text(["ls", "-1", &root]), "a\nb\n");
}

#[test]
fn a_shell_for_reading_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let before = fs::read(&image).unwrap();
    for line in ["mkdir a", "rm -r x", "put image", "snapshot / s", "subvolume create s", "touch f"] {
        let words = ["shell".as_ref(), "-r".as_ref(), "-c".as_ref(), line.as_ref(), image.as_os_str()];
        let output = command().args(words).current_dir(folder.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{line}: {}", text(&output.stderr));
    }
    let lines = ["shell", "-r", "-c", "ls", "-c", "df", "-c", "sync", "-c", "help"];
    succeed(lines.iter().map(AsRef::as_ref).chain([image.as_os_str()]));
    assert!(fs::read(&image).unwrap() == before);
}

#[test]
fn the_tab_key_completes_commands_and_paths() {
    if require(&[Need::Command("script")]).is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    fs::write(folder.path().join("text"), "found by completion\n").unwrap();
    let lines = ["mkdir 'long directory name'", "put text 'long directory name/a secret'"];
    let script = lines.join("\n");
    assert!(shell(&[], &image, folder.path(), &script).status.success());
    let run = format!("{} shell {}", binary().display(), image.display());
    let mut child = Command::new("script")
        .args(["-q", "-e", "-c", &run, "/dev/null"])
        .env("TERM", "xterm")
        .env("XDG_STATE_HOME", folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut keys = child.stdin.take().unwrap();
    // Keys that arrive before the line editor has set up the terminal are not its.
    for part in ["", "cat lo\t", "a\t", "\r", "mkd\tnew\r", "exit\r"] {
        std::thread::sleep(Duration::from_millis(700));
        keys.write_all(part.as_bytes()).unwrap();
    }
    let output = child.wait_with_output().unwrap();
    drop(keys);
    let shown = text(&output.stdout);
    assert!(shown.contains("found by completion"), "{shown}");
    assert!(output.status.success(), "{shown}");
    let root = format!("{}:/", image.display());
    assert_eq!(succeed_text(["ls", "-1", &root]), "long directory name\nnew\n");
    let history = fs::read_to_string(folder.path().join("papilio/history")).unwrap();
    assert!(history.contains("a secret") || history.contains(r"a\\ secret"), "{history}");
}
