//! `ls`, `cat`, `stat`, `find` and `du` match the host's programs on a kernel mount.

use crate::common::{papilio, succeed, text};
use crate::fixture::{Fixture, noise};
use std::os::unix::fs::MetadataExt;
use std::process::Command;

/// Runs a program of the host in `directory`, and returns its output.
fn host(directory: &std::path::Path, program: &str, arguments: &[&str]) -> Vec<u8> {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(directory)
        .env("LC_ALL", "C")
        .env("TZ", "UTC")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    output.stdout
}

fn sorted(bytes: &[u8], end: u8) -> Vec<Vec<u8>> {
    let mut lines: Vec<Vec<u8>> = bytes.split(|&b| b == end).map(<[u8]>::to_vec).collect();
    lines.sort();
    lines
}

#[test]
fn ls_matches_the_host() {
    let Some(fixture) = Fixture::get() else { return };
    let kernel = fixture.mount();
    let tree = kernel.path().join("tree");
    for options in ["-1", "-A", "-a", "-i"] {
        let ours = succeed(["ls", options, &fixture.at("/tree")]);
        assert_eq!(text(&ours), text(&host(&tree, "ls", &["-1", options])), "{options}");
    }
    // The fields of the long format, regardless of the widths of columns.
    let long = |bytes: Vec<u8>| {
        let text = text(&bytes);
        text.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
    };
    let ours = crate::common::command()
        .args(["ls", "-ln", "--full-time", &fixture.at("/tree")])
        .env("TZ", "UTC")
        .output()
        .unwrap();
    let theirs = long(host(&tree, "ls", &["-ln", "--full-time"]));
    let ours = long(ours.stdout);
    let different = ours.iter().zip(&theirs).find(|(ours, theirs)| ours != theirs);
    assert_eq!((different, ours.len()), (None, theirs.len()));
    let ours = succeed(["ls", "-R", &fixture.at("/tree/deep/d/d")]);
    assert!(text(&ours).contains("/tree/deep/d/d/d:\nd\nhere\n"));
    let json: serde_json::Value =
        serde_json::from_slice(&succeed(["ls", "--json", "-A", &fixture.at("/tree")])).unwrap();
    let names = json.as_array().unwrap();
    assert_eq!(names.len(), std::fs::read_dir(&tree).unwrap().count());
    let raw = names.iter().find(|entry| entry["name_hex"].is_string()).unwrap();
    assert!(raw["name_hex"].as_str().unwrap().starts_with("fffe20"));
    // The image alone means its root.
    assert_eq!(text(&succeed(["ls".as_ref(), fixture.image().as_os_str()])), "socket\nsub\ntree\n");
}

#[test]
fn cat_prints_the_bytes() {
    let Some(fixture) = Fixture::get() else { return };
    let large = noise(1, (5 << 20) + 123);
    assert_eq!(succeed(["cat", &fixture.at("/tree/large")]), large);
    let both = succeed(["cat", &fixture.at("/tree/to small"), &fixture.at("/tree/large")]);
    assert_eq!(both, [b"small\n", &large[..]].concat());
    let output = papilio(["cat", &fixture.at("/tree"), &fixture.at("/tree/small")]);
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(1), &b"small\n"[..]));
    assert!(text(&output.stderr).contains("/tree: is a directory"), "{}", text(&output.stderr));
}

#[test]
fn closed_pipe_is_no_error() {
    let Some(fixture) = Fixture::get() else { return };
    let mut child = crate::common::command()
        .args(["cat", &fixture.at("/tree/large")])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
}

#[test]
fn stat_shows_the_metadata() {
    let Some(fixture) = Fixture::get() else { return };
    let shown = text(&succeed(["stat", &fixture.at("/tree/owned")]));
    for part in ["Uid: 3000000000", "Gid: 54321", "(6751/-rwsr-s--x)", "Size: 15", "Tree: 5"] {
        assert!(shown.contains(part), "{part:?} is not in {shown}");
    }
    let kernel = fixture.mount();
    let stat = std::fs::metadata(kernel.path().join("tree/marked")).unwrap();
    let json: serde_json::Value =
        serde_json::from_slice(&succeed(["stat", "--json", &fixture.at("/tree/marked")])).unwrap();
    assert_eq!(json[0]["inode"], stat.ino());
    assert_eq!(json[0]["allocated"].as_u64().unwrap().div_ceil(4096) * 8, stat.blocks());
    assert_eq!(json[0]["xattrs"].as_array().unwrap().len(), 4);
    let json: serde_json::Value =
        serde_json::from_slice(&succeed(["stat", "--json", &fixture.at("/sub")])).unwrap();
    assert_eq!(json[0]["tree"], 256);
    assert_eq!(json[0]["inode"], 256);
}

#[test]
fn find_matches_the_host() {
    let Some(fixture) = Fixture::get() else { return };
    let kernel = fixture.mount();
    let cases: &[&[&str]] = &[
        &[],
        &["-type", "d"],
        &["-type", "l,p"],
        &["-name", "many-0*"],
        &["-iname", "MANY-00[!1-8]"],
        &["-path", "*/d/d/d/h*"],
        &["-size", "+10k"],
        &["-size", "-2"],
        &["-size", "15c"],
        &["-perm", "-4000"],
        &["-perm", "/222", "-type", "f", "-maxdepth", "1"],
        &["-perm", "400"],
        &["-links", "+1"],
        &["-user", "77"],
        &["-group", "54321"],
        &["-mtime", "+10000"],
        &["-newermt", "2017-07-14 02:40:00"],
        &["-empty"],
        &["-mindepth", "3", "-maxdepth", "4"],
        &["-depth", "-name", "d", "-maxdepth", "5"],
    ];
    for tests in cases {
        let root = fixture.at("/tree");
        let ours = succeed([&["find", &root, "-print0"], *tests].concat());
        let ours = text(&ours).replace(&root, "/tree").into_bytes();
        let prefix = kernel.path().join("tree");
        // The tests match paths inside the file system.
        let theirs = host(kernel.path(), "find", &[&["tree"], *tests, &["-print0"]].concat());
        let theirs = text(&theirs)
            .split('\0')
            .filter(|path| !path.is_empty())
            .fold(String::new(), |all, path| format!("{all}/{path}\0"));
        assert_eq!(sorted(&ours, 0), sorted(theirs.as_bytes(), 0), "{tests:?} in {prefix:?}");
    }
    let found = succeed(["find", &fixture.at("/tree"), "-xattr", "trusted.*"]);
    assert_eq!(text(&found).lines().count(), 2);
    let json = succeed(["find", &fixture.at("/"), "--json", "-name", "inside"]);
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(json[0]["path"], "/sub/inside");
}

#[test]
fn du_matches_the_host() {
    let Some(fixture) = Fixture::get() else { return };
    let kernel = fixture.mount();
    for options in [&[][..], &["-a"], &["-s"], &["-h", "-d", "1"], &["-c", "-d", "0"]] {
        let root = fixture.at("/tree");
        let ours = text(&succeed([&["du"], options, &[&root]].concat())).replace(&root, "tree");
        let theirs = text(&host(kernel.path(), "du", &[options, &["tree"]].concat()));
        let sort = |text: &str| sorted(text.as_bytes(), b'\n');
        assert_eq!(sort(&ours), sort(&theirs), "{options:?}");
    }
    let apparent = text(&succeed(["du", "-sb", &fixture.at("/tree/many-299")]));
    assert!(apparent.starts_with("11063\t"), "{apparent}");
}
