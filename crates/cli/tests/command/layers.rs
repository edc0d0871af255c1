//! `papilio mkfs --rootdir` of archives as they come: links on the way to members, compressions,
//! several archives in one stream, layers and container images; and trees with many levels.

use crate::common::{command, fail, succeed, text};
use papilio_oracle::{Need, require};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn string(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Packs `members` of `folder` in this order, without descending.
fn pack(folder: &Path, name: &str, members: &[&str]) -> PathBuf {
    let archive = folder.parent().unwrap().join(name);
    let status = Command::new("tar")
        .args(["--no-recursion", "-C", string(folder), "-cf", string(&archive), "--"])
        .args(members)
        .status();
    assert!(status.unwrap().success());
    archive
}

/// Returns a new folder in `at`.
fn folder(at: &Path, name: &str) -> PathBuf {
    let folder = at.join(name);
    fs::create_dir(&folder).unwrap();
    folder
}

/// Makes a file system of archives, and checks it.
fn made(at: &Path, rootdirs: &[&str]) -> String {
    let image = at.join("image");
    let _ = fs::remove_file(&image);
    let mut arguments = vec!["mkfs", "-q"];
    for rootdir in rootdirs {
        arguments.extend(["--rootdir", rootdir]);
    }
    arguments.push(string(&image));
    succeed(arguments);
    succeed(["check", "--check-data-csum", string(&image)]);
    image.display().to_string()
}

fn listed(image: &str, path: &str) -> String {
    text(&succeed(["find", &format!("{image}:{path}")])).replace(&format!("{image}:"), "")
}

fn content(image: &str, path: &str) -> String {
    text(&succeed(["cat", &format!("{image}:{path}")]))
}

#[test]
fn members_below_links_go_where_the_links_lead() {
    let at = tempfile::tempdir().unwrap();
    let first = folder(at.path(), "first");
    fs::create_dir_all(first.join("usr/bin")).unwrap();
    symlink("usr/bin", first.join("bin")).unwrap();
    symlink("/../../usr", first.join("away")).unwrap();
    symlink("missing/deep", first.join("dangling")).unwrap();
    symlink("loop", first.join("loop")).unwrap();
    let links = pack(&first, "links.tar", &["usr", "usr/bin", "bin", "away", "dangling", "loop"]);
    let second = folder(at.path(), "second");
    for name in ["bin", "away/share", "dangling"] {
        fs::create_dir_all(second.join(name)).unwrap();
    }
    for name in ["bin/tool", "away/share/page", "dangling/file"] {
        fs::write(second.join(name), name).unwrap();
    }
    fs::hard_link(second.join("bin/tool"), second.join("bin/again")).unwrap();
    let names = ["bin/tool", "bin/again", "away/share", "away/share/page", "dangling/file"];
    let files = pack(&second, "files.tar", &names);
    // Two archives in one stream, as cat(1) makes it.
    let both = at.path().join("both.tar");
    fs::write(&both, [fs::read(&links).unwrap(), fs::read(&files).unwrap()].concat()).unwrap();
    let image = made(at.path(), &[string(&both)]);
    assert_eq!(content(&image, "/usr/bin/tool"), "bin/tool");
    assert_eq!(content(&image, "/bin/again"), "bin/tool");
    assert_eq!(content(&image, "/usr/share/page"), "away/share/page");
    assert_eq!(content(&image, "/missing/deep/file"), "dangling/file");
    let tool = text(&succeed(["ls", "-ln", &format!("{image}:/usr/bin/tool")]));
    assert!(tool.contains(" 2 "), "two names: {tool}");
    // A directory in place of a link, and a link that leads to itself.
    fs::create_dir_all(second.join("loop")).unwrap();
    fs::write(second.join("loop/file"), "x").unwrap();
    let replaced = pack(&second, "replaced.tar", &["bin", "bin/tool"]);
    fs::write(&both, [fs::read(&links).unwrap(), fs::read(&replaced).unwrap()].concat()).unwrap();
    let image = made(at.path(), &[string(&both)]);
    assert_eq!(listed(&image, "/usr"), "/usr\n/usr/bin\n");
    assert_eq!(content(&image, "/bin/tool"), "bin/tool");
    let endless = pack(&second, "endless.tar", &["loop/file"]);
    fs::write(&both, [fs::read(&links).unwrap(), fs::read(&endless).unwrap()].concat()).unwrap();
    let image = at.path().join("image");
    fail(1, "loop/file: too many", ["mkfs", "-f", "--rootdir", string(&both), string(&image)]);
}

#[test]
fn a_later_member_leaves_other_names_of_the_file_alone() {
    let at = tempfile::tempdir().unwrap();
    let tree = folder(at.path(), "tree");
    fs::write(tree.join("a"), "old").unwrap();
    fs::hard_link(tree.join("a"), tree.join("b")).unwrap();
    let first = pack(&tree, "first.tar", &["a", "b"]);
    fs::remove_file(tree.join("a")).unwrap();
    fs::write(tree.join("a"), "new").unwrap();
    let second = pack(&tree, "second.tar", &["a"]);
    let both = at.path().join("both.tar");
    fs::write(&both, [fs::read(&first).unwrap(), fs::read(&second).unwrap()].concat()).unwrap();
    for rootdirs in [&[string(&both)][..], &[string(&first), string(&second)]] {
        let image = made(at.path(), rootdirs);
        assert_eq!((content(&image, "/a"), content(&image, "/b")), ("new".into(), "old".into()));
    }
}

#[test]
fn archives_of_each_compression_are_read() {
    let at = tempfile::tempdir().unwrap();
    let tree = folder(at.path(), "tree");
    let text: String = (0..60_000).map(|number| format!("{number}\n")).collect();
    fs::write(tree.join("file"), &text).unwrap();
    let plain = pack(&tree, "plain.tar", &["file"]);
    let mut tried = 0;
    for (program, options) in [
        ("gzip", &["-c"][..]),
        ("xz", &["-c"]),
        ("xz", &["-c", "-9"]),
        ("bzip2", &["-c"]),
        ("lzma", &["-c"]),
        ("zstd", &["-c"]),
    ] {
        if require(&[Need::Command(program)]).is_none() {
            continue;
        }
        let packed = Command::new(program).args(options).arg(&plain).output().unwrap();
        assert!(packed.status.success());
        let archive = at.path().join("archive");
        fs::write(&archive, &packed.stdout).unwrap();
        let image = made(at.path(), &[string(&archive)]);
        assert_eq!(content(&image, "/file"), text, "{program}");
        // A stream that ends early is an error that names it.
        fs::write(&archive, &packed.stdout[..packed.stdout.len() / 2]).unwrap();
        let image = at.path().join("image");
        fail(1, "archive: ", ["mkfs", "-f", "--rootdir", string(&archive), string(&image)]);
        tried += 1;
    }
    assert!(tried > 0 || require(&[Need::Command("gzip")]).is_none());
}

/// Makes layers: a base, and one that deletes, replaces and hides.
fn layers(at: &Path) -> (PathBuf, PathBuf) {
    let base = folder(at, "base");
    for name in ["gone", "kept", "hidden/deep", "was"] {
        fs::create_dir_all(base.join(name)).unwrap();
    }
    for name in ["gone/file", "kept/lower", "hidden/lower", "hidden/deep/lower", "was/file", "single"] {
        fs::write(base.join(name), name).unwrap();
    }
    let lower = at.join("base.tar");
    let packed = Command::new("tar").args(["-C", string(&base), "-cf", string(&lower), "."]).status();
    assert!(packed.unwrap().success());
    let top = folder(at, "top");
    for name in ["hidden/deep", "kept"] {
        fs::create_dir_all(top.join(name)).unwrap();
    }
    for name in [".wh.gone", ".wh.single", "hidden/.wh..wh..opq", "kept/.wh.nothing"] {
        fs::write(top.join(name), "").unwrap();
    }
    for name in ["hidden/deep/upper", "kept/upper", "was"] {
        fs::write(top.join(name), name).unwrap();
    }
    let names = [
        "hidden",
        "hidden/deep",
        "hidden/deep/upper",
        "hidden/.wh..wh..opq",
        ".wh.gone",
        ".wh.single",
        "kept/upper",
        "kept/.wh.nothing",
        "was",
    ];
    let upper = pack(&top, "top.tar", &names);
    (lower, upper)
}

const TOGETHER: &str =
    "/\n/hidden\n/hidden/deep\n/hidden/deep/upper\n/kept\n/kept/lower\n/kept/upper\n/was\n";

/// Returns the sorted paths of an image.
fn sorted(image: &str) -> String {
    let listed = listed(image, "/");
    let mut lines: Vec<&str> = listed.lines().collect();
    lines.sort_unstable();
    lines.iter().map(|line| format!("{line}\n")).collect()
}

#[test]
fn layers_replace_and_delete_what_is_below_them() {
    let at = tempfile::tempdir().unwrap();
    let (lower, upper) = layers(at.path());
    let image = made(at.path(), &[string(&lower), string(&upper)]);
    assert_eq!(sorted(&image), TOGETHER);
    assert_eq!(content(&image, "/was"), "was");
    // A directory of the host may be a layer, too.
    let image = made(at.path(), &[string(&at.path().join("base")), string(&upper)]);
    assert_eq!(sorted(&image), TOGETHER);
    let image = at.path().join("image");
    fail(
        2,
        "-: an archive on standard input can only be the whole content",
        ["mkfs", "-f", "--rootdir", string(&lower), "--rootdir", "-", string(&image)],
    );
}

fn sha256(file: &Path) -> String {
    let output = Command::new("sha256sum").arg(file).output().unwrap();
    text(&output.stdout).split(' ').next().unwrap().to_owned()
}

/// Puts a file into the blobs of a layout, and returns its digest.
fn blob(layout: &Path, from: &Path) -> String {
    let digest = sha256(from);
    fs::copy(from, layout.join("blobs/sha256").join(&digest)).unwrap();
    format!("sha256:{digest}")
}

#[test]
fn images_of_containers_are_unpacked() {
    if require(&[Need::Command("tar"), Need::Command("gzip"), Need::Command("sha256sum")]).is_none() {
        return;
    }
    let at = tempfile::tempdir().unwrap();
    let (lower, upper) = layers(at.path());
    let layout = folder(at.path(), "layout");
    fs::create_dir_all(layout.join("blobs/sha256")).unwrap();
    fs::write(layout.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    assert!(Command::new("gzip").arg("-k").arg(&lower).status().unwrap().success());
    let digests = [blob(&layout, &lower.with_extension("tar.gz")), blob(&layout, &upper)];
    let manifest = at.path().join("manifest");
    let json = |layers: &[&String]| {
        let layers = layers.iter().map(|digest| serde_json::json!({ "digest": digest }));
        serde_json::json!({ "schemaVersion": 2, "layers": layers.collect::<Vec<_>>() }).to_string()
    };
    fs::write(&manifest, json(&[&digests[0], &digests[1]])).unwrap();
    let whole = blob(&layout, &manifest);
    fs::write(&manifest, json(&[&digests[0]])).unwrap();
    let base = blob(&layout, &manifest);
    let named = |digest: &str, name: &str| serde_json::json!({ "digest": digest, "annotations": { "org.opencontainers.image.ref.name": name } });
    let index = serde_json::json!({ "manifests": [named(&base, "base"), named(&whole, "whole")] });
    fs::write(layout.join("index.json"), index.to_string()).unwrap();
    let image = at.path().join("image");
    let oci = format!("oci:{}", layout.display());
    let ambiguous = ["mkfs", "--rootdir", &oci, string(&image)];
    fail(1, "several images, name one of them: base, whole", ambiguous);
    assert_eq!(sorted(&made(at.path(), &[&format!("{oci}:whole")])), TOGETHER);
    let made_of_base = made(at.path(), &[&format!("{oci}:base")]);
    assert!(sorted(&made_of_base).contains("/gone/file\n"));
    // The same as one archive.
    let archive = at.path().join("image.tar");
    let packed = Command::new("tar").args(["-C", string(&layout), "-cf", string(&archive), "."]).status();
    assert!(packed.unwrap().success());
    let of_archive = made(at.path(), &[&format!("oci-archive:{}:whole", archive.display())]);
    assert_eq!(sorted(&of_archive), TOGETHER);
    // A layer that changed on the way.
    let damaged = layout.join("blobs/sha256").join(digests[1].strip_prefix("sha256:").unwrap());
    let mut bytes = fs::read(&damaged).unwrap();
    bytes.extend([0; 512]);
    fs::write(&damaged, bytes).unwrap();
    let wrong = ["mkfs", "-f", "--rootdir", &format!("{oci}:whole"), string(&image)];
    fail(1, "the layer has the SHA-256", wrong);
    // An archive as docker save writes it.
    let saved = folder(at.path(), "saved");
    fs::copy(&lower, saved.join("0.tar")).unwrap();
    fs::copy(&upper, saved.join("1.tar")).unwrap();
    let manifest = r#"[{"RepoTags":["x:1"],"Layers":["0.tar","1.tar"]}]"#;
    fs::write(saved.join("manifest.json"), manifest).unwrap();
    let saved = pack(&saved, "saved.tar", &["0.tar", "1.tar", "manifest.json"]);
    let of_docker = made(at.path(), &[&format!("docker-archive:{}:x:1", saved.display())]);
    assert_eq!(sorted(&of_docker), TOGETHER);
}

/// Makes `levels` directories called x inside one another, with a file in the innermost.
fn deep(at: &Path, levels: usize) {
    let (inner, outer) = (at.join("x"), at.join("y"));
    fs::create_dir(&inner).unwrap();
    fs::write(inner.join("file"), "deep").unwrap();
    for _ in 1..levels {
        fs::create_dir(&outer).unwrap();
        fs::rename(&inner, outer.join("x")).unwrap();
        fs::rename(&outer, &inner).unwrap();
    }
}

/// Takes such a tree apart, and returns how many levels it had.
fn take_apart(at: &Path) -> usize {
    let (outer, next) = (at.join("x"), at.join("y"));
    let mut levels = 1;
    while outer.join("x").exists() {
        fs::rename(outer.join("x"), &next).unwrap();
        fs::remove_dir(&outer).unwrap();
        fs::rename(&next, &outer).unwrap();
        levels += 1;
    }
    assert_eq!(fs::read_to_string(outer.join("file")).unwrap(), "deep");
    fs::remove_dir_all(&outer).unwrap();
    levels
}

/// Runs the command with 1,024 descriptors.
fn with_few_descriptors(arguments: &[&str]) {
    let program = command().get_program().to_owned();
    let output = Command::new("sh")
        .args(["-c", "ulimit -n 1024 && exec \"$0\" \"$@\""])
        .arg(program)
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
}

#[test]
fn trees_with_many_levels_need_few_descriptors() {
    for levels in [1200, 5000] {
        let at = tempfile::tempdir().unwrap();
        let source = folder(at.path(), "source");
        deep(&source, levels);
        let image = at.path().join("image");
        let path = |path: &str| format!("{}:{path}", image.display());
        with_few_descriptors(&["mkfs", "--rootdir", string(&source), string(&image)]);
        let copied = [folder(at.path(), "copied"), at.path().join("restored")];
        with_few_descriptors(&["cp", "-a", string(&source), &path("/again")]);
        with_few_descriptors(&["cp", "-a", &path("/again/."), string(&copied[0])]);
        with_few_descriptors(&["restore", string(&image), string(&copied[1])]);
        succeed(["check", string(&image)]);
        assert_eq!(take_apart(&source), levels);
        assert_eq!(take_apart(&copied[0]), levels);
        assert_eq!(take_apart(&copied[1].join("again")), levels);
        assert_eq!(take_apart(&copied[1]), levels);
    }
}

#[test]
fn standard_input_becomes_a_file() {
    let at = tempfile::tempdir().unwrap();
    let image = at.path().join("image");
    succeed(["mkfs", "-b", "128M", string(&image)]);
    let bytes: Vec<u8> = (0..5_000_000u32).map(|number| (number / 7) as u8).collect();
    let input = at.path().join("input");
    fs::write(&input, &bytes).unwrap();
    let destination = format!("{}:/file", image.display());
    let mut copy = command();
    copy.args(["cp", "-", &destination]).stdin(Stdio::from(fs::File::open(&input).unwrap()));
    assert!(copy.status().unwrap().success());
    assert!(succeed(["cat", &destination]) == bytes);
    let directory = format!("{}:/", image.display());
    fail(2, "standard input needs the name of a file", ["cp", "-", &directory]);
}

#[test]
fn what_fakeroot_would_not_see_is_refused() {
    let at = tempfile::tempdir().unwrap();
    let image = at.path().join("image");
    succeed(["mkfs", "-b", "128M", string(&image)]);
    let inside = format!("{}:/", image.display());
    let target = folder(at.path(), "target");
    let (stream, host) = (at.path().join("stream"), string(&target));
    fs::write(&stream, "").unwrap();
    let content = format!("{host}/.");
    let cases: [&[&str]; 5] = [
        &["cp", "-a", &inside, host],
        &["cp", "-a", host, &inside],
        &["cp", "-a", &content, &inside],
        &["restore", string(&image), host],
        &["receive", "-f", string(&stream), host],
    ];
    for arguments in cases {
        let output = command().env("FAKEROOTKEY", "12345").args(arguments).output().unwrap();
        let said = crate::common::check_failure(&output, 1, "unshare -r");
        assert!(said.contains("tar"), "{said}");
    }
    assert_eq!(fs::read_dir(&target).unwrap().count(), 0);
}
