//! `papilio balance`, `device add`, `device remove`, and resizing that moves data.

use crate::common::{assert_clean, fail, papilio, succeed, succeed_text};
use std::fs;
use std::path::PathBuf;

struct Set {
    _folder: tempfile::TempDir,
    images: Vec<PathBuf>,
}

impl Set {
    /// A file system on the first of three image files, with a file.
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let images: Vec<_> = (1..=3).map(|number| folder.path().join(format!("{number}.img"))).collect();
        for image in &images {
            fs::File::create(image).unwrap().set_len(300 << 20).unwrap();
        }
        let host = folder.path().join("file");
        fs::write(&host, vec![7; 20 << 20]).unwrap();
        let set = Self { _folder: folder, images };
        succeed(["mkfs", "-q", set.image(0)]);
        succeed(["cp", host.to_str().unwrap(), &format!("{}:/file", set.image(0))]);
        set
    }

    fn image(&self, number: usize) -> &str {
        self.images[number].to_str().unwrap()
    }
}

#[test]
fn profiles_are_converted_on_added_devices() {
    let set = Set::new();
    let (one, two, three) = (set.image(0), set.image(1), set.image(2));
    fail(1, "needs 2 devices", ["balance", "start", "-dconvert=raid1", one]);
    assert!(succeed_text(["device", "add", two, one]).contains("is device 2 now"));
    fail(1, "is a device of the file system already", ["device", "add", "--device", two, two, one]);
    let both = ["--device", two];
    let convert = ["balance", "start", "-dconvert=raid1,soft", "-mconvert=raid1,soft"];
    assert!(succeed_text(convert.iter().chain(&both).chain(&[one])).starts_with("Done, had to relocate"));
    let shown = succeed_text(["filesystem", "df", "--device", two, one]);
    assert!(shown.contains("Data, RAID1") && shown.contains("Metadata, RAID1"), "{shown}");
    assert!(!shown.contains("Data, single") && !shown.contains("DUP"), "{shown}");

    // Nothing is left to convert.
    let again = succeed_text(convert.iter().chain(&both).chain(&[one]));
    assert!(again.contains("relocate 0 out of"), "{again}");
    fail(1, "--force", ["balance", "start", "-mconvert=single", "--device", two, one]);
    fail(1, "needs 2 devices", ["device", "remove", "--device", two, "2", one]);
    fail(2, "not a filter", ["balance", "start", "-dsize=3", one]);
    fail(2, "--force", ["balance", "start", "-s", one]);

    succeed(["device", "add", "--device", two, three, one]);
    succeed(["device", "remove", "--device", one, "--device", three, "1", two]);
    assert_ne!(papilio(["ls", one]).status.code(), Some(0), "the removed device is still found");
    assert_eq!(succeed(["cat", "--device", three, &format!("{two}:/file")]), vec![7; 20 << 20]);
}

#[test]
fn a_device_added_to_a_seed_is_a_new_file_system() {
    let set = Set::new();
    let (seed, new, more) = (set.image(0), set.image(1), set.image(2));
    succeed(["tune", "-S", "1", seed]);
    let before = fs::read(seed).unwrap();
    fail(1, "is a device of the seed", ["device", "add", seed, seed]);
    let shown = succeed_text(["device", "add", new, more, seed]);
    assert!(shown.contains("is device 2 now") && shown.contains("builds on the seed"), "{shown}");
    assert!(shown.contains("is device 3 now"), "{shown}");
    let all = ["--device", seed, "--device", more];
    assert_eq!(succeed(["cat"].iter().chain(&all).chain(&[&*format!("{new}:/file")])), vec![7; 20 << 20]);

    succeed(["device", "remove"].iter().chain(&all).chain(&["1", new]));
    assert_eq!(succeed(["cat", "--device", more, &format!("{new}:/file")]), vec![7; 20 << 20]);
    succeed(["check", "--device", more, new]);
    assert!(before == fs::read(seed).unwrap(), "the seed was written");
}

#[test]
fn shrinking_moves_data_and_emptying_frees_block_groups() {
    let set = Set::new();
    let image = set.image(0);
    succeed(["filesystem", "resize", "150M", image]);
    assert_eq!(fs::metadata(image).unwrap().len(), 150 << 20);
    assert_clean(&set.images[0]);
    fail(1, "no space", ["filesystem", "resize", "20M", image]);
    assert_clean(&set.images[0]);
    succeed(["rm", &format!("{image}:/file")]);
    assert!(succeed_text(["balance", "start", "-dusage=0", image]).contains("relocate"));
    succeed(["balance", "start", "-m", "-d", image]);
    assert_clean(&set.images[0]);
}
