//! `scrub` and `device stats` on images: exit codes, output, and the state between runs.

use crate::common::{command, text};
use crate::fixture::noise;
use papilio_oracle::{Need, require};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Output;
use std::time::{Duration, Instant};

/// A file system with two copies of everything, and a folder for the state of scrubs.
struct World {
    folder: tempfile::TempDir,
    image: PathBuf,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        std::fs::File::create(&image).unwrap().set_len(512 << 20).unwrap();
        let world = Self { folder, image };
        world.succeed(&["mkfs", "-d", "dup", "-m", "dup", "IMAGE"]);
        let source = world.folder.path().join("source");
        std::fs::write(&source, noise(5, 8 << 20)).unwrap();
        world.succeed(&["cp", source.to_str().unwrap(), "IMAGE:/file"]);
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

    fn fail(&self, code: i32, part: &str, arguments: &[&str]) {
        let output = self.run(arguments);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
        assert!(errors.contains(part) && errors.lines().count() == 1, "{arguments:?}: {errors}");
    }

    /// Overwrites the sectors that have the `which`-th 4 KiB of the file, at most `copies`.
    fn damage(&self, which: usize, copies: usize) {
        let wanted = &noise(5, 8 << 20)[which * 4096..][..4096];
        let bytes = std::fs::read(&self.image).unwrap();
        let file = std::fs::File::options().write(true).open(&self.image).unwrap();
        let places: Vec<_> = bytes.chunks(4096).enumerate().filter(|(_, sector)| *sector == wanted).collect();
        assert_eq!(places.len(), 2);
        for (number, _) in places.into_iter().take(copies) {
            file.write_all_at(&[7; 4096], number as u64 * 4096).unwrap();
        }
    }

    fn wait(&self, status: &str) {
        let end = Instant::now() + Duration::from_secs(60);
        while !self.succeed(&["scrub", "status", "IMAGE"]).contains(status) {
            assert!(Instant::now() < end, "{}", self.succeed(&["scrub", "status", "IMAGE"]));
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

#[test]
fn errors_are_counted_mended_and_kept_in_the_statistics() {
    let world = World::new();
    assert!(world.succeed(&["scrub", "status", "IMAGE"]).contains("no stats available"));
    world.fail(2, "no scrub to resume", &["scrub", "resume", "-B", "IMAGE"]);
    world.fail(2, "no scrub is running", &["scrub", "cancel", "IMAGE"]);
    assert!(world.succeed(&["scrub", "start", "-B", "IMAGE"]).contains("no errors found"));

    world.damage(3, 1);
    world.damage(900, 1);
    let damaged = std::fs::read(&world.image).unwrap();
    let output = world.succeed(&["scrub", "start", "-B", "-r", "-R", "IMAGE"]);
    assert!(output.contains("\tcsum_errors: 2\n") && output.contains("\tcorrected_errors: 2\n"), "{output}");
    let output = world.succeed(&["scrub", "start", "-B", "-r", "IMAGE"]);
    assert!(output.contains("Corrected:      0\n  Correctable:    2\n"), "{output}");
    assert!(std::fs::read(&world.image).unwrap() == damaged, "-r writes nothing");
    let output = world.succeed(&["scrub", "start", "-B", "IMAGE"]);
    assert!(output.contains("csum=2") && output.contains("Corrected:      2"), "{output}");
    assert!(world.succeed(&["scrub", "start", "-B", "IMAGE"]).contains("no errors found"));
    let output = world.succeed(&["device", "stats", "IMAGE"]);
    assert!(output.contains("].corruption_errs  2\n") && output.lines().count() == 5, "{output}");
    world.fail(64, "2 errors were counted", &["device", "stats", "-c", "IMAGE"]);
    world.succeed(&["device", "stats", "-z", "IMAGE"]);
    world.succeed(&["device", "stats", "-c", "IMAGE"]);

    world.damage(4, 2);
    world.fail(3, "2 errors cannot be corrected", &["scrub", "start", "-B", "IMAGE"]);
    let output = world.run(&["scrub", "start", "-B", "--json", "IMAGE"]);
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["devices"][0]["uncorrectable_errors"], 2);
    assert_eq!((&value["status"], output.status.code()), (&"finished".into(), Some(3)));
    let source = world.folder.path().join("source");
    let source = source.to_str().unwrap();
    world.fail(1, "no Btrfs file system", &["scrub", "status", source]);
    world.fail(1, "device 9 is not", &["scrub", "start", "-B", "--devid", "9", "IMAGE"]);
}

/// Data of which the only copy is on a missing device is not called free of errors.
#[test]
fn data_on_a_missing_device_is_an_error() {
    let world = World::new();
    let at = |name: &str| world.folder.path().join(name).to_str().unwrap().to_owned();
    let (first, second) = (at("first"), at("second"));
    for image in [&first, &second] {
        std::fs::File::create(image).unwrap().set_len(300 << 20).unwrap();
    }
    world.succeed(&["mkfs", "-q", "-d", "raid0", "-m", "raid1", &first, &second]);
    let scrub = ["scrub", "start", "-B", "-r", &first];
    let degraded = [&["--degraded"], &scrub[..]].concat();
    std::fs::copy(&second, at("empty")).unwrap();
    std::fs::remove_file(&second).unwrap();
    // Nothing is in the chunk.
    world.succeed(&degraded);
    std::fs::rename(at("empty"), &second).unwrap();
    std::fs::write(at("file"), noise(7, 4 << 20)).unwrap();
    world.succeed(&["--device", &second, "cp", &at("file"), &format!("{first}:/")]);
    std::fs::remove_file(&second).unwrap();
    let output = world.run(&degraded);
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{errors}");
    assert!(errors.contains("1 ranges were not scrubbed: logical address"), "{errors}");
    assert!(text(&output.stdout).contains("Not scrubbed:     1 ranges"), "{}", text(&output.stdout));
}

#[test]
fn a_scrub_has_the_priority_that_is_asked_for() {
    if require(&[Need::Command("ionice")]).is_none() {
        return;
    }
    let world = World::new();
    world.succeed(&["scrub", "limit", "-l", "1M", "IMAGE"]);
    let ended = |status: &str| ["aborted", "finished"].iter().any(|end| status.contains(end));
    for (options, shown) in
        [(&[][..], "idle"), (&["-c", "2", "-n", "6"], "best-effort: prio 6"), (&["-n3", "-c2"], "prio 3")]
    {
        let started = world.succeed(&[&["scrub", "start", "-f"], options, &["IMAGE"]].concat());
        let pid = started.split("pid=").nth(1).unwrap().trim_end().trim_end_matches(')').to_owned();
        world.wait("running");
        let output = std::process::Command::new("ionice").args(["-p", &pid]).output().unwrap();
        assert!(text(&output.stdout).contains(shown), "{options:?}: {}", text(&output.stdout));
        world.succeed(&["scrub", "cancel", "IMAGE"]);
        assert!(ended(&world.succeed(&["scrub", "status", "IMAGE"])));
    }
    world.succeed(&["scrub", "limit", "-l", "0", "IMAGE"]);
    world.succeed(&["scrub", "resume", "-B", "-c", "2", "-n", "7", "IMAGE"]);
    // A limit of its own holds for one scrub only, and can be lifted. There are 16 MiB to read.
    world.succeed(&["scrub", "start", "--limit", "1M", "IMAGE"]);
    std::thread::sleep(Duration::from_millis(1500));
    assert!(world.succeed(&["scrub", "status", "IMAGE"]).contains("running"));
    assert!(world.succeed(&["scrub", "limit", "IMAGE"]).contains("no limit"));
    world.succeed(&["scrub", "cancel", "IMAGE"]);
    let begun = Instant::now();
    world.succeed(&["scrub", "start", "-f", "-B", "IMAGE"]);
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    for wrong in [["-c", "0"], ["-c", "4"], ["-n", "8"], ["-n", "-1"]] {
        let output = world.run(&[&["scrub", "start", "-B"], &wrong[..], &["IMAGE"]].concat());
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn a_scrub_in_the_background_is_cancelled_and_resumed() {
    let world = World::new();
    assert!(world.succeed(&["scrub", "limit", "IMAGE"]).contains("no limit"));
    world.damage(1, 1);
    world.succeed(&["scrub", "limit", "-l", "1M", "IMAGE"]);
    assert!(world.succeed(&["scrub", "start", "IMAGE"]).contains("scrub started on"));
    world.wait("running");
    world.fail(1, "running already", &["scrub", "start", "-B", "IMAGE"]);
    world.succeed(&["scrub", "cancel", "IMAGE"]);
    assert!(world.succeed(&["scrub", "status", "IMAGE"]).contains("aborted"));
    world.fail(1, "resume it, or start anew with -f", &["scrub", "start", "-B", "IMAGE"]);
    world.succeed(&["scrub", "limit", "-l", "0", "IMAGE"]);
    let output = world.succeed(&["scrub", "resume", "-B", "-R", "IMAGE"]);
    assert!(output.contains("Scrub resumed:") && output.contains("\tcsum_errors: 1\n"), "{output}");
    assert!(output.contains(&format!("\tdata_bytes_scrubbed: {}\n", 16 << 20)), "{output}");
    assert!(world.succeed(&["scrub", "status", "IMAGE"]).contains("finished"));
    assert!(world.succeed(&["scrub", "start", "-B", "IMAGE"]).contains("no errors found"));
}

/// A user without a home, or a system whose root is read-only, has no place for the state.
#[test]
fn a_scrub_in_the_foreground_needs_no_place_for_its_state() {
    let world = World::new();
    world.damage(1, 1);
    let run = |arguments: &[&str]| {
        let image = world.image.to_str().unwrap();
        let arguments = arguments.iter().map(|argument| argument.replace("IMAGE", image));
        command().args(arguments).env("XDG_STATE_HOME", "/dev/null/none").output().unwrap()
    };
    for options in [&["-r"][..], &[]] {
        let output = run(&[&["scrub", "start", "-B"], options, &["IMAGE"]].concat());
        let (said, errors) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success() && said.contains("csum=1"), "{said}{errors}");
        assert!(errors.contains("/dev/null/none") && errors.contains("the scrub runs"), "{errors}");
    }
    let output = run(&["scrub", "start", "-B", "IMAGE"]);
    assert!(text(&output.stdout).contains("no errors found"), "{}", text(&output.stdout));
    // In the background nobody could find it again.
    let output = run(&["scrub", "start", "IMAGE"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
}
