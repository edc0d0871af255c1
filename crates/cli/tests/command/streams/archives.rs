//! Indexes, pipes, and chains that lack a part, on streams of an image.

use crate::common::{check_failure, command, fail, succeed, succeed_json, succeed_text};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The streams of three snapshots of a subvolume, in a folder.
struct Streams {
    folder: tempfile::TempDir,
    streams: [PathBuf; 3],
}

const FILES: u32 = 40;

fn content(number: u32) -> Vec<u8> {
    (0..20_000_u32).flat_map(|word| (word * FILES + number).to_le_bytes()).collect()
}

impl Streams {
    fn make() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        let image = image.to_str().unwrap();
        succeed(["-q", "mkfs", "--size", "256M", image]);
        let at = |path: &str| format!("{image}:/{path}");
        succeed(["subvolume", "create", &at("s")]);
        let host = folder.path().join("tree");
        fs::create_dir_all(host.join("folder/inner")).unwrap();
        for number in 0..FILES {
            fs::write(host.join(format!("folder/file{number}")), content(number)).unwrap();
        }
        std::os::unix::fs::symlink("folder/file3", host.join("link")).unwrap();
        fs::hard_link(host.join("folder/file4"), host.join("folder/inner/second")).unwrap();
        succeed(["-q", "cp", "-a", host.to_str().unwrap(), &at("s/")]);
        let streams = [1, 2, 3].map(|number| folder.path().join(format!("s{number}.stream")));
        for (number, stream) in streams.iter().enumerate() {
            if number > 0 {
                fs::write(host.join("changed"), content(100 + number as u32)).unwrap();
                succeed(["-q", "cp", host.join("changed").to_str().unwrap(), &at("s/tree/folder/file7")]);
                succeed(["mv", &at(&format!("s/tree/folder/file{number}")), &at("s/tree/folder/inner/")]);
            }
            let snapshot = at(&format!("s{number}"));
            succeed(["subvolume", "snapshot", "-r", &at("s"), &snapshot]);
            let stream = stream.to_str().unwrap();
            match number {
                0 => succeed(["-q", "send", "-f", stream, &snapshot]),
                _ => succeed(["-q", "send", "-p", &at(&format!("s{}", number - 1)), "-f", stream, &snapshot]),
            };
        }
        Self { folder, streams }
    }

    fn text(&self, number: usize) -> &str {
        self.streams[number].to_str().unwrap()
    }

    fn all(&self) -> [&str; 3] {
        [self.text(0), self.text(1), self.text(2)]
    }
}

fn cat(streams: &[&str], path: &str) -> Vec<u8> {
    succeed([&["stream", "cat"], streams, &[path]].concat())
}

#[test]
fn an_index_reads_one_file_alone() {
    let streams = Streams::make();
    let all = streams.all();
    let listed = succeed_text([&["stream", "ls", "-l"], &all[..]].concat());
    assert!(listed.contains(" /tree/link -> folder/file3\n"), "{listed}");
    assert!(listed.contains(" /tree/folder/inner/file2\n"), "{listed}");
    succeed([&["-q", "stream", "index"], &all[..]].concat());
    assert_eq!(succeed_text([&["stream", "ls", "-l"], &all[..]].concat()), listed);
    let path = ["--path", "/tree/folder/inner"];
    let inner = succeed_text([&["stream", "ls"], &all[..], &path].concat());
    assert_eq!(
        inner,
        "/tree/folder/inner/\n/tree/folder/inner/file1\n/tree/folder/inner/file2\n/tree/folder/inner/second\n"
    );
    // A byte of another file's data is damaged: only a reader of all sees it.
    let wanted = content(9);
    let bytes = fs::read(&streams.streams[0]).unwrap();
    let damaged = content(30);
    let at = bytes.windows(64).position(|window| *window == damaged[8000..8064]).unwrap() as u64;
    let file = File::options().write(true).open(&streams.streams[0]).unwrap();
    file.write_all_at(&[!damaged[8000]], at).unwrap();
    assert!(cat(&all, "tree/folder/file9") == wanted);
    assert!(cat(&all, "/tree/folder/file7") == content(102));
    assert!(cat(&all, "/tree/folder/inner/file1") == content(1));
    let error = fail(1, "checksum", [&["stream", "cat"], &all[..], &["/tree/folder/file30"]].concat());
    assert!(error.contains("s1.stream: send stream, byte "), "{error}");
    fail(1, "no such file", [&["stream", "cat"], &all[..], &["/tree/none"]].concat());
    fail(1, "is a directory", [&["stream", "cat"], &all[..], &["/tree"]].concat());
    fail(1, "checksum", [&["stream", "verify"], &all[..]].concat());
    // An index that is damaged, and one of streams that changed.
    file.write_all_at(&[damaged[8000]], at).unwrap();
    let index = streams.folder.path().join("s3.stream.index");
    let good = fs::read(&index).unwrap();
    let mut bad = good.clone();
    let record = bad.windows(8).position(|window| window == b"/folder/").unwrap();
    bad[record] ^= 1;
    fs::write(&index, &bad).unwrap();
    fail(1, "the index is damaged", [&["stream", "ls"], &all[..]].concat());
    fs::write(&index, &good[..good.len() / 2]).unwrap();
    let output = command().args(["stream", "cat"]).args(all).arg("/tree/folder/file9").output().unwrap();
    assert!(output.status.success() && output.stdout == wanted);
    assert!(String::from_utf8_lossy(&output.stderr).contains("not used"), "{output:?}");
    fs::write(&index, &good).unwrap();
    fs::rename(&streams.streams[1], streams.folder.path().join("other")).unwrap();
    fs::copy(&streams.streams[0], &streams.streams[1]).unwrap();
    let output = command().args(["stream", "ls"]).args(all).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("the index of other streams") && stderr.contains("already"), "{stderr}");
}

#[test]
fn a_chain_that_lacks_a_part_says_so() {
    let streams = Streams::make();
    let [first, second, third] = streams.all();
    assert_eq!(succeed_text(["stream", "verify", first, second, third]).split(' ').next(), Some("3"));
    fail(1, "is not among the streams", ["stream", "verify", first, third]);
    fail(1, "is not among the streams", ["stream", "verify", second, third]);
    succeed(["stream", "verify", "--without-parents", second, third]);
    let error = fail(1, "comes later in the chain", ["stream", "verify", second, first]);
    assert!(error.contains("byte 17: subvol"), "{error}");
    fail(1, "the chain lacks the parent", ["stream", "ls", third]);
    fail(1, "the chain has subvolume", ["stream", "verify", first, first]);
    fail(1, "no subvolume none", ["stream", "ls", "--subvolume", "none", first]);
    let result = succeed_json(["stream", "verify", "--json", first, second]);
    assert_eq!((&result["good"], &result["subvolumes"]), (&true.into(), &2.into()));
    // Another version of the parent: receivers take it, so it is only doubtful.
    let renamed = streams.folder.path().join("renamed");
    let info = succeed_json(["stream", "info", "--json", second]);
    let parent = info[0]["parent"]["uuid"].as_str().unwrap();
    let other = format!("{parent}={parent}:1");
    succeed(["-q", "stream", "recompress", "--parent", &other, "-f", renamed.to_str().unwrap(), second]);
    fail(1, "the stream needs it at 1", ["stream", "verify", first, renamed.to_str().unwrap()]);
    fail(2, "not two UUIDs", ["stream", "recompress", "--parent", "x", "-f", "/dev/null", second]);
    fail(
        2,
        "needs protocol 2",
        ["stream", "recompress", "--proto", "1", "--compress", "zstd", "-f", "/dev/null", second],
    );
}

fn from_stdin(stream: &Path, arguments: &[&str]) -> std::process::Output {
    let mut child = command();
    // A pipe, not a file.
    let mut cat =
        std::process::Command::new("cat").arg(stream).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let output = child.args(arguments).stdin(cat.stdout.take().unwrap()).output().unwrap();
    // Its pipe, which the command may not have read to the end.
    drop(child);
    cat.wait().unwrap();
    output
}

#[test]
fn streams_come_from_pipes() {
    let streams = Streams::make();
    let [first, second, third] = streams.all();
    let output = from_stdin(&streams.streams[1], &["stream", "cat", first, "-", "/tree/folder/file7"]);
    assert!(output.status.success() && output.stdout == content(101), "{output:?}");
    let output = from_stdin(&streams.streams[0], &["stream", "verify", "-"]);
    assert!(output.status.success() && output.stdout.starts_with(b"1 subvolumes"), "{output:?}");
    let output = from_stdin(&streams.streams[0], &["stream", "recompress", "--compress", "zstd", "-"]);
    let packed = streams.folder.path().join("packed");
    fs::write(&packed, output.stdout).unwrap();
    let (before, after) = (fs::metadata(first).unwrap().len(), fs::metadata(&packed).unwrap().len());
    assert!(after < before, "{after} of {before} bytes");
    let packed = packed.to_str().unwrap();
    assert!(cat(&[packed, second, third], "/tree/folder/file8") == content(8));
    let output = from_stdin(&streams.streams[0], &["stream", "ls", "-", "-"]);
    check_failure(&output, 2, "can be given once");
    let output = from_stdin(&streams.streams[0], &["stream", "index", "-"]);
    check_failure(&output, 2, "standard input is none");
    let archive = from_stdin(&streams.streams[0], &["stream", "extract", "--to-tar", "-", "-"]);
    assert!(archive.status.success() && archive.stdout.len() > 80_000 * FILES as usize);
}

#[test]
fn a_part_of_a_tree_is_extracted() {
    let streams = Streams::make();
    let to = streams.folder.path().join("to");
    fs::create_dir(&to).unwrap();
    let all = streams.all();
    let wanted = ["--path", "/tree/folder/inner", "--path", "tree/link", "-C", to.to_str().unwrap()];
    succeed([&["-q", "stream", "extract"], &all[..], &wanted].concat());
    let names = |directory: &str| {
        let entries = fs::read_dir(to.join("s2").join(directory)).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(names("tree"), ["folder", "link"]);
    assert_eq!(names("tree/folder"), ["inner"]);
    assert_eq!(names("tree/folder/inner"), ["file1", "file2", "second"]);
    assert!(fs::read(to.join("s2/tree/folder/inner/second")).unwrap() == content(4));
    assert!(xattr_names(&to.join("s2")).is_empty());
    fail(1, "already exists", [&["-q", "stream", "extract"], &all[..], &wanted].concat());
    let missing = ["--path", "/tree/none", "-C", to.to_str().unwrap()];
    fail(1, "no such file", [&["-q", "stream", "extract", "--subvolume", "s1"], &all[..], &missing].concat());
    assert!(!to.join("s1").exists());
}

fn xattr_names(path: &Path) -> Vec<u8> {
    let mut names = vec![0; 1024];
    let length = rustix::fs::listxattr(path, &mut names[..]).unwrap();
    names.truncate(length);
    let own = String::from_utf8_lossy(&names).into_owned();
    let own: Vec<&str> = own.split('\0').filter(|name| name.starts_with("user.")).collect();
    own.concat().into_bytes()
}
