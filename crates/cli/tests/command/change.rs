//! Commands that change a file system: their effects and refusals. Both checks stay clean.

use crate::common::{fail, papilio, succeed, text};
use crate::fixture::noise;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A new image with an empty file system, in a directory of its own.
struct Image {
    folder: tempfile::TempDir,
    path: PathBuf,
}

impl Image {
    fn new(size: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        succeed(["mkfs", "-q", "-b", size, path.to_str().unwrap()]);
        Self { folder, path }
    }

    fn at(&self, path: &str) -> String {
        format!("{}:{path}", self.path.display())
    }

    fn image(&self) -> &str {
        self.path.to_str().unwrap()
    }

    fn host(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    fn list(&self, path: &str) -> String {
        let found = text(&succeed(["find", &self.at(path)]));
        let mut paths: Vec<&str> = found.lines().map(|line| line.rsplit(':').next().unwrap()).collect();
        paths.sort_unstable();
        paths.join(" ")
    }

    fn stat(&self, path: &str) -> serde_json::Value {
        let shown = succeed(["stat", "--json", &self.at(path)]);
        let shown: serde_json::Value = serde_json::from_slice(&shown).unwrap();
        shown.get(0).cloned().unwrap_or(shown)
    }

    fn assert_clean(&self) {
        crate::common::assert_clean(&self.path);
    }
}

#[test]
fn names_are_changed() {
    let image = Image::new("128M");
    succeed(["mkdir", &image.at("/a"), &image.at("/b/")]);
    succeed(["mkdir", "-p", "-m", "700", &image.at("/a/x/y"), &image.at("/a")]);
    assert_eq!(image.list("/"), "/ /a /a/x /a/x/y /b");
    assert_eq!(image.stat("/a/x/y")["mode"], "0700");
    fail(1, "/a: already exists", ["mkdir", &image.at("/a")]);
    fail(1, "/n/m: no such file or directory", ["mkdir", &image.at("/n/m")]);
    fail(1, ": file name too long", ["mkdir", &image.at(&format!("/{}", "x".repeat(256)))]);
    succeed(["mkdir", &image.at(&format!("/a/{}", "x".repeat(255)))]);
    succeed(["rm", "-d", &image.at(&format!("/a/{}", "x".repeat(255)))]);

    succeed(["touch", "-d", "@1000", &image.at("/a/f"), &image.at("/g")]);
    succeed(["mv", &image.at("/a/f"), &image.at("/g"), &image.at("/b")]);
    assert_eq!(image.list("/b"), "/b /b/f /b/g");
    succeed(["mv", "-n", &image.at("/b/f"), &image.at("/b/g")]);
    succeed(["mv", "--exchange", &image.at("/a"), &image.at("/b/g")]);
    assert_eq!(image.list("/"), "/ /a /b /b/f /b/g /b/g/x /b/g/x/y");
    succeed(["mv", "-T", &image.at("/b/f"), &image.at("/a")]);
    fail(1, "moved into itself", ["mv", &image.at("/b"), &image.at("/b/g/x")]);
    fail(1, "/nothing: no such file", ["mv", &image.at("/nothing"), &image.at("/b")]);
    fail(1, "not a directory", ["mv", &image.at("/a"), &image.at("/b"), &image.at("/a")]);
    assert_eq!(papilio(["mv", &image.at("/a")]).status.code(), Some(2));

    succeed(["ln", "-s", "b/g", &image.at("/link")]);
    succeed(["ln", &image.at("/a"), &image.at("/b")]);
    assert_eq!(image.stat("/b/a")["links"], 2);
    fail(1, "already exists", ["ln", "-T", &image.at("/a"), &image.at("/link")]);
    succeed(["ln", "-f", "-T", &image.at("/a"), &image.at("/link")]);
    assert_eq!(image.stat("/a")["links"], 3);
    fail(1, "/hard: operation not permitted", ["ln", &image.at("/b"), &image.at("/hard")]);
    fail(1, "/none: no such file", ["ln", &image.at("/none"), &image.at("/hard")]);

    fail(1, "/b: is a directory; removed only with -r", ["rm", &image.at("/b")]);
    fail(1, "/b: directory not empty", ["rm", "-d", &image.at("/b")]);
    fail(1, "/none: no such file", ["rm", &image.at("/none")]);
    fail(1, "/: the root of the file system cannot be deleted", ["rm", "-r", &image.at("/")]);
    succeed(["rm", "-f", &image.at("/none"), &image.at("/none/below")]);
    succeed(["rm", "-r", &image.at("/b"), &image.at("/a"), &image.at("/link")]);
    assert_eq!(image.list("/"), "/");
    image.assert_clean();
}

#[test]
fn attributes_are_changed() {
    let image = Image::new("128M");
    succeed(["mkdir", &image.at("/d")]);
    succeed(["touch", &image.at("/d/f")]);
    succeed(["chmod", "0640", &image.at("/d/f")]);
    succeed(["chmod", "-R", "u+s,g=u", &image.at("/d")]);
    assert_eq!(image.stat("/d/f")["mode"], "4660");
    succeed(["chown", "123:456", &image.at("/d/f")]);
    assert_eq!(image.stat("/d/f")["mode"], "0660", "a new owner clears set-user-id");
    succeed(["chown", "-R", ":root", &image.at("/d")]);
    let stat = image.stat("/d/f");
    assert_eq!((&stat["uid"], &stat["gid"]), (&123.into(), &0.into()));
    fail(1, "no such user", ["chown", "nobody at all", &image.at("/d")]);
    assert_eq!(papilio(["chmod", "u+q", &image.at("/d")]).status.code(), Some(2));
    fail(1, "/none: no such file", ["chmod", "-x", &image.at("/none")]);

    succeed(["setfattr", "-n", "user.a", "--value", "0x00ff", &image.at("/d/f")]);
    succeed(["setfattr", "-n", "user.b", "--value", "some text", &image.at("/d/f")]);
    let shown = text(&succeed(["getfattr", "-d", &image.at("/d/f")]));
    assert_eq!(shown, format!("# file: {}\nuser.a=0sAP8=\nuser.b=\"some text\"\n\n", image.at("/d/f")));
    assert_eq!(succeed(["getfattr", "-n", "user.b", "--only-values", &image.at("/d/f")]), b"some text");
    let shown = succeed(["getfattr", "--json", &image.at("/d/f")]);
    let shown: serde_json::Value = serde_json::from_slice(&shown).unwrap();
    assert_eq!(shown[0]["xattrs"][0]["base64"], "AP8=");
    succeed(["setfattr", "-x", "user.a", &image.at("/d/f")]);
    fail(1, "no such attribute", ["setfattr", "-x", "user.a", &image.at("/d/f")]);
    fail(1, "no such attribute", ["getfattr", "-n", "user.a", &image.at("/d/f")]);
    fail(1, "not supported", ["setfattr", "-n", "nonsense", "--value", "x", &image.at("/d/f")]);
    fail(2, "hexadecimal", ["setfattr", "-n", "user.a", "--value", "0x1", &image.at("/d/f")]);

    succeed(["truncate", "-s", "1M", &image.at("/d/f")]);
    succeed(["truncate", "-s", "+1", &image.at("/d/f")]);
    assert_eq!(image.stat("/d/f")["size"], (1 << 20) + 1);
    succeed(["truncate", "-s", "-1M", &image.at("/d/f")]);
    assert_eq!(succeed(["cat", &image.at("/d/f")]), b"\0");
    fail(1, "is a directory", ["truncate", "-s", "0", &image.at("/d")]);
    fail(1, "file too large", ["truncate", "-s", "15E", &image.at("/d/f")]);
    succeed(["touch", "-c", &image.at("/none")]);
    fail(1, "no such file", ["ls", &image.at("/none")]);
    image.assert_clean();
}

#[test]
fn files_are_copied_into_and_within_an_image() {
    let image = Image::new("256M");
    let (large, small) = (noise(1, (9 << 20) + 77), noise(2, 1000));
    fs::create_dir_all(image.host("tree/sub")).unwrap();
    fs::write(image.host("tree/large"), &large).unwrap();
    fs::write(image.host("tree/sub/small"), &small).unwrap();
    fs::hard_link(image.host("tree/large"), image.host("tree/sub/hard")).unwrap();

    fail(1, "is a directory; copied only with -r", ["cp", &image.host("tree"), &image.at("/")]);
    succeed(["cp", "-a", &image.host("tree"), &image.at("/")]);
    assert!(succeed(["cat", &image.at("/tree/sub/hard")]) == large);
    assert_eq!(image.stat("/tree/large")["links"], 2);
    succeed(["cp", &image.host("tree/sub/small"), &image.at("/renamed")]);
    assert!(succeed(["cat", &image.at("/renamed")]) == small);
    succeed(["cp", "-r", &format!("{}/.", image.host("tree")), &image.at("/tree/sub")]);
    assert_eq!(
        image.list("/tree/sub"),
        "/tree/sub /tree/sub/hard /tree/sub/large /tree/sub/small /tree/sub/sub \
        /tree/sub/sub/hard /tree/sub/sub/small"
            .replace("        ", "")
    );
    fs::write(image.host("tree/sub/small"), "changed").unwrap();
    succeed(["cp", "-n", &image.host("tree/sub/small"), &image.at("/renamed")]);
    assert!(succeed(["cat", &image.at("/renamed")]) == small, "-n keeps the file");
    succeed(["cp", &image.host("tree/sub/small"), &image.at("/renamed")]);
    assert_eq!(succeed(["cat", &image.at("/renamed")]), b"changed");
    let mut command = crate::common::command();
    command.args(["cp", "/proc/self/fd/0", &image.at("/from a pipe")]);
    let (reader, mut writer) = std::io::pipe().unwrap();
    std::io::Write::write_all(&mut writer, b"through a pipe").unwrap();
    drop(writer);
    assert!(command.stdin(reader).status().unwrap().success());
    assert_eq!(succeed(["cat", &image.at("/from a pipe")]), b"through a pipe");

    // A reflink takes no space.
    let used = || {
        let shown = succeed(["filesystem", "df", "--json", image.image()]);
        text(&shown).contains("Data").then_some(shown)
    };
    let before = used().expect("df shows data");
    succeed(["cp", "--reflink=always", &image.at("/tree/large"), &image.at("/shared")]);
    assert_eq!(text(&used().unwrap()), text(&before), "data is shared");
    assert!(succeed(["cat", &image.at("/shared")]) == large);
    succeed(["cp", "-a", &image.at("/tree"), &image.at("/copy")]);
    assert_eq!(image.stat("/copy/large")["links"], 2);
    assert_eq!(image.stat("/copy/large")["mtime"], image.stat("/tree/large")["mtime"]);
    fail(1, "into itself", ["cp", "-r", &image.at("/copy"), &image.at("/copy/sub")]);
    fail(1, "are the same file", ["cp", &image.at("/shared"), &image.at("/shared")]);

    // From one image into another.
    let other = Image::new("256M");
    succeed(["cp", "-a", &image.at("/tree"), &other.at("/")]);
    assert!(succeed(["cat", &other.at("/tree/large")]) == large);
    fail(1, "cross-subvolume", ["cp", "--reflink", &image.at("/shared"), &other.at("/")]);
    fail(2, "name one as IMAGE", ["cp", &image.host("tree/large"), &image.host("b")]);
    fail(1, "none: No such file", ["cp", &image.host("none"), &image.at("/")]);
    fail(1, "/none/x: no such file", ["cp", &image.host("tree/large"), &image.at("/none/x")]);
    image.assert_clean();
    other.assert_clean();
}

#[test]
fn full_file_system_stays_clean() {
    let image = Image::new("120M");
    fs::write(image.host("huge"), noise(3, 150 << 20)).unwrap();
    succeed(["touch", &image.at("/stays")]);
    fail(1, "no space left", ["cp", &image.host("huge"), &image.at("/huge")]);
    image.assert_clean();
    assert!(image.list("/").contains("/stays"));
    succeed(["rm", &image.at("/huge")]);
    fs::write(image.host("fits"), noise(4, 30 << 20)).unwrap();
    succeed(["cp", &image.host("fits"), &image.at("/fits")]);
    image.assert_clean();
}

#[test]
fn label_and_size_are_changed() {
    let image = Image::new("256M");
    succeed(["filesystem", "label", image.image(), "new name"]);
    assert_eq!(text(&succeed(["filesystem", "label", image.image()])), "new name\n");
    fail(1, "at most 255 are allowed", ["filesystem", "label", image.image(), &"x".repeat(256)]);
    let length = || fs::metadata(&image.path).unwrap().len();
    let shown = text(&succeed(["filesystem", "resize", "512M", image.image()]));
    assert_eq!(
        (shown.as_str(), length()),
        ("device 1: 256.00MiB -> 512.00MiB (536870912 bytes)\n", 512 << 20)
    );
    image.assert_clean();
    succeed(["filesystem", "resize", "-200M", image.image()]);
    assert_eq!(length(), 312 << 20);
    fail(1, "no space", ["filesystem", "resize", "16M", image.image()]);
    assert_eq!(length(), 312 << 20);
    succeed(["filesystem", "resize", "1:min", image.image()]);
    assert!(length() < 256 << 20);
    image.assert_clean();
    // The size is rounded down to whole sectors.
    succeed(["filesystem", "resize", "300000001", image.image()]);
    let superblock = text(&succeed(["filesystem", "usage", "-b", image.image()]));
    assert!(superblock.contains("299999232"), "{superblock}");
    fail(1, "the file system has no device 7", ["filesystem", "resize", "7:+1M", image.image()]);
    assert_eq!(papilio(["filesystem", "resize", "much", image.image()]).status.code(), Some(2));
    succeed(["filesystem", "sync", image.image()]);
    image.assert_clean();
}

#[test]
fn images_that_cannot_be_written_are_refused() {
    let image = Image::new("128M");
    // A lock of this process, which runs the command, would be no conflict.
    let mut holder = Command::new("flock")
        .args(["--shared", "--no-fork", &image.path.display().to_string()])
        .args(["sh", "-c", "echo locked; read end"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
    fail(1, "image: another process is using it", ["mkdir", &image.at("/d")]);
    drop(holder.stdin.take());
    holder.wait().unwrap();
    fail(1, "no such file or device", ["mkdir", "/nowhere/image:/d"]);
    fs::write(image.host("text"), "no file system").unwrap();
    fail(1, "text", ["mkdir", &format!("{}:/d", image.host("text"))]);
    let missing = ["mkdir", "--device", "/nowhere", &image.at("/d")];
    fail(1, "/nowhere", missing);
    if rustix::process::geteuid().is_root() {
        assert_refused_on_read_only_mount(&image);
    }
    assert_eq!(image.list("/"), "/");
    image.assert_clean();
}

/// Checks the error for an image on a file system that is mounted read-only.
fn assert_refused_on_read_only_mount(image: &Image) {
    let mount = crate::fixture::TemporaryFileSystem::new(image.folder.path().join("mount"), 200 << 20);
    let copy = mount.0.join("image");
    crate::fixture::copy_image(&image.path, &copy);
    let remount = |how: &str| {
        let status = Command::new("mount").args(["-o", how]).arg(&mount.0).status();
        assert!(status.unwrap().success());
    };
    remount("remount,ro");
    let at = |path: &Path| format!("{}:/d", path.display());
    fail(1, "is read-only", ["mkdir", &at(&copy)]);
}

#[test]
fn subvolumes_and_properties_are_changed() {
    let image = Image::new("256M");
    fs::write(image.host("file"), noise(5, 3 << 20)).unwrap();
    succeed(["subvolume", "create", &image.at("/home"), &image.at("/other")]);
    succeed(["cp", &image.host("file"), &image.at("/home/file")]);
    succeed(["subvolume", "snapshot", "-r", &image.at("/home"), &image.at("/before")]);
    succeed(["subvolume", "snapshot", &image.at("/home"), &image.at("/other")]);
    assert_eq!(image.list("/other"), "/other /other/home /other/home/file");
    succeed(["truncate", "-s", "5", &image.at("/home/file")]);
    assert!(succeed(["cat", &image.at("/before/file")]) == noise(5, 3 << 20));
    fail(1, "read-only", ["touch", &image.at("/before/new")]);
    assert_eq!(text(&succeed(["property", "get", &image.at("/before")])), "ro=true\n");
    succeed(["property", "set", &image.at("/before"), "ro", "false"]);
    succeed(["touch", &image.at("/before/new")]);
    succeed(["property", "set", &image.at("/before/new"), "compression", "zstd"]);
    assert_eq!(text(&succeed(["property", "get", &image.at("/before/new")])), "compression=zstd\n");
    fail(1, "no such subvolume", ["property", "get", &image.at("/before/new"), "ro"]);
    fail(2, "not true or false", ["property", "set", &image.at("/before"), "ro", "maybe"]);
    fail(1, "cross-subvolume", ["mv", &image.at("/home/file"), &image.at("/moved")]);
    fail(1, "cross-subvolume", ["ln", &image.at("/home/file"), &image.at("/linked")]);
    fail(1, "directory not empty", ["rm", "-d", &image.at("/home")]);
    succeed(["subvolume", "set-default", &image.at("/home")]);
    assert_eq!(succeed(["cat", "--default-subvol", &image.at("/file")]).len(), 5);
    fail(1, "/home: operation not permitted", ["subvolume", "delete", &image.at("/home")]);
    fail(1, "/before/file: no such subvolume", ["subvolume", "delete", &image.at("/before/file")]);
    fail(1, "already exists", ["subvolume", "create", &image.at("/home")]);
    succeed(["subvolume", "delete", &image.at("/before"), &image.at("/other/home")]);
    assert_eq!(image.list("/"), "/ /home /home/file /other");
    image.assert_clean();
}
