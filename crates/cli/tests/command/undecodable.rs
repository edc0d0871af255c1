//! Compressed data that nobody can decode: `check` and `scrub` find it and name the files, `cat`
//! writes what comes before it, and commands that compress do not make it.

use crate::common::{command, text};
use crate::fixture::noise;
use papilio::format::items::file_extent::Compression;
use papilio::{EncodedExtent, FileSystem, OpenOptions};
use std::path::PathBuf;
use std::process::Output;

const EXTENT: usize = 128 << 10;

struct World {
    folder: tempfile::TempDir,
    image: PathBuf,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        let world = Self { folder, image };
        world.succeed(&["mkfs", "-q", "--size", "300M", "IMAGE"]);
        world
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let image = self.image.to_str().unwrap();
        let arguments = arguments.iter().map(|argument| argument.replace("IMAGE", image));
        command().args(arguments).env("XDG_STATE_HOME", self.folder.path()).output().unwrap()
    }

    fn succeed(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// Expects an exit code, with a part of the error and of the output.
    fn fail(&self, code: i32, error: &str, part: &str, arguments: &[&str]) -> Output {
        let output = self.run(arguments);
        let (errors, printed) = (text(&output.stderr), text(&output.stdout));
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
        assert!(errors.contains(error) && errors.lines().count() == 1, "{arguments:?}: {errors}");
        assert!(printed.contains(part), "{arguments:?}: {printed}");
        output
    }

    /// Writes `/folder/file` of three extents, the second of which does not decode. Returns the
    /// first.
    fn wreck(&self) -> Vec<u8> {
        let options = OpenOptions::new().write(true).commit_interval(None);
        let fs = FileSystem::open_with(&self.image, &options).unwrap();
        fs.create_dir("/folder").unwrap();
        let content = noise(3, 3 * EXTENT);
        fs.write("/folder/file", &content).unwrap();
        fs.sync().unwrap();
        let extent = EncodedExtent {
            compression: Compression::Zlib,
            lzo_sector: 4096,
            data: &[&[0x78, 1][..], &[0xff; 8190]].concat(),
            uncompressed: EXTENT as u64,
            offset: 0,
            length: EXTENT as u64,
        };
        let file = fs.open_file("/folder/file").unwrap();
        assert!(file.write_encoded_at(&extent, EXTENT as u64).unwrap());
        drop(file);
        fs.close().unwrap();
        content[..EXTENT].to_vec()
    }
}

#[test]
fn undecodable_data_is_found_and_its_file_is_named() {
    let world = World::new();
    let before = world.wreck();
    let found = "zlib: invalid data: 131072 bytes of data cannot be read; only a rewrite from a good copy \
                 cures it; files: /folder/file";
    let check = ["check", "--check-data-csum", "IMAGE"];
    world.fail(1, "1 errors found", found, &check);
    let json = world.run(&["check", "--check-data-csum", "--json", "IMAGE"]);
    let value: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((&value["counts"]["data-undecodable"], json.status.code()), (&1.into(), Some(1)));
    assert!(!world.succeed(&["check", "--check-data-csum", "--no-decode", "IMAGE"]).contains("decoded"));
    world.succeed(&["check", "IMAGE"]);

    assert!(world.succeed(&["scrub", "start", "-B", "IMAGE"]).contains("no errors found"));
    let (error, line) = (
        "1 compressed extents do not decode: only a rewrite from a good copy cures it",
        "Undecodable:      1 compressed extents\n  logical address ",
    );
    world.fail(3, error, line, &["scrub", "start", "-B", "--decode", "IMAGE"]);
    let status = world.succeed(&["scrub", "status", "IMAGE"]);
    assert!(status.contains("zlib: invalid data; files: /folder/file\n"), "{status}");
    assert!(!status.contains("no errors found"), "{status}");
    let json = world.run(&["scrub", "start", "-B", "--decode", "--json", "IMAGE"]);
    let value: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((&value["undecodable"], json.status.code()), (&1.into(), Some(3)));

    let output = world.fail(1, "offset 131072: zlib: invalid data", "", &["cat", "IMAGE:/folder/file"]);
    assert!(output.stdout == before, "{} bytes before the fault", output.stdout.len());

    let source = world.folder.path().join("source");
    std::fs::write(&source, noise(4, 3 * EXTENT)).unwrap();
    world.succeed(&["cp", source.to_str().unwrap(), "IMAGE:/folder/file"]);
    world.succeed(&check);
    world.succeed(&["scrub", "start", "-B", "--decode", "IMAGE"]);
}

/// Each level of zlib, with a block that does not compress before one that does.
#[test]
fn compressed_files_stay_readable() {
    let world = World::new();
    let mut content = noise(5, EXTENT);
    (0..20_000).for_each(|number| content.extend(format!("{number}\n").into_bytes()));
    let source = world.folder.path().join("source");
    std::fs::write(&source, &content).unwrap();
    let mut extra = 0;
    for level in 1..=9 {
        let path = format!("IMAGE:/{level}");
        world.succeed(&["cp", source.to_str().unwrap(), &path]);
        world.succeed(&["filesystem", "defragment", "-czlib", "-L", &level.to_string(), &path]);
        let read = world.run(&["cat", &path]).stdout;
        assert!(read == content, "level {level}");
        extra += usize::from(world.succeed(&["compsize", &path]).contains("zlib"));
    }
    assert_eq!(extra, 9, "all files are compressed");
    assert!(
        world.succeed(&["check", "--check-data-csum", "IMAGE"]).contains(" compressed extents decoded\n")
    );
}
