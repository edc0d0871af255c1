//! `papilio convert`, and `btrfs-convert` under its name.

use papilio_oracle::requirement::find_command;
use papilio_oracle::{Need, require};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

fn run(program: &Path, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

#[test]
fn a_conversion_goes_to_and_fro() {
    let needs = ["mke2fs", "e2fsck"].map(Need::Command);
    if require(&needs).is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (source, image) = (folder.path().join("source"), folder.path().join("image"));
    fs::create_dir(&source).unwrap();
    fs::write(source.join("file"), "converted").unwrap();
    fs::write(source.join("large"), vec![7; 3 << 20]).unwrap();
    fs::File::create(&image).unwrap().set_len(120 << 20).unwrap();
    let image = image.to_str().unwrap();
    let folder_text = source.to_str().unwrap();
    let made = run(
        &find_command("mke2fs").unwrap(),
        &["-q", "-F", "-t", "ext4", "-b", "4096", "-L", "old", "-d", folder_text, image],
    );
    assert!(made.status.success(), "{}", text(&made));
    let original = fs::read(image).unwrap();
    let command = assert_cmd::cargo::cargo_bin!("papilio").to_owned();
    let name = folder.path().join("btrfs-convert");
    symlink(&command, &name).unwrap();

    let planned = run(&command, &["convert", "--dry-run", image]);
    assert!(
        planned.status.success() && text(&planned).contains("Nothing was written."),
        "{}",
        text(&planned)
    );
    assert!(fs::read(image).unwrap() == original);
    let wrong = run(&command, &["convert", "-N", "5000", image]);
    assert_eq!(wrong.status.code(), Some(2), "{}", text(&wrong));
    assert_eq!(run(&name, &["-N", "5000", image]).status.code(), Some(1));
    assert_eq!(run(&command, &["convert", "-r", image]).status.code(), Some(1));
    assert_eq!(run(&command, &["convert", "-r", "-n", image]).status.code(), Some(2));
    assert!(text(&run(&name, &["-O", "list-all"])).contains("no-holes"));

    let converted = run(&name, &["-L", "--uuid", "copy", "--csum", "xxhash", image]);
    let said = text(&converted);
    assert!(converted.status.success() && said.contains("Conversion complete"), "{said}");
    assert!(said.contains("Type:           ext4") && said.contains("convert -r"), "{said}");
    let checked = run(&command, &["check", "--check-data-csum", image]);
    assert!(checked.status.success(), "{}", text(&checked));
    assert_eq!(run(&command, &["cat", &format!("{image}:/file")]).stdout, b"converted");
    let label = run(&command, &["filesystem", "label", image]);
    assert_eq!(label.stdout, b"old\n");
    let again = run(&command, &["convert", image]);
    assert_eq!(again.status.code(), Some(1));
    assert!(text(&again).contains("it is Btrfs already"), "{}", text(&again));

    // A cut behind the switch: the old superblock is still there.
    let mut interrupted = fs::read(image).unwrap();
    let whole = interrupted.clone();
    interrupted[..65536].copy_from_slice(&original[..65536]);
    fs::write(image, &interrupted).unwrap();
    let planned = run(&command, &["convert", "--dry-run", image]);
    let said = text(&planned);
    assert!(planned.status.success() && said.contains("was interrupted"), "{said}");
    assert!(said.contains("Nothing was written.") && fs::read(image).unwrap() == interrupted, "{said}");
    let finished = run(&command, &["convert", image]);
    let said = text(&finished);
    assert!(finished.status.success() && said.contains("finished a conversion"), "{said}");
    assert!(fs::read(image).unwrap() == whole);

    let changed = run(&command, &["rm", &format!("{image}:/large")]);
    assert!(changed.status.success(), "{}", text(&changed));
    let back = run(&name, &["--rollback", image]);
    assert!(back.status.success() && text(&back).contains("Rollback succeeded"), "{}", text(&back));
    let checked = run(&find_command("e2fsck").unwrap(), &["-fn", image]);
    assert!(checked.status.success(), "{}", text(&checked));
}

#[test]
fn xfs_goes_to_and_fro() {
    let needs = ["mkfs.xfs", "xfs_repair"].map(Need::Command);
    if require(&needs).is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (source, image) = (folder.path().join("source"), folder.path().join("image"));
    fs::write(&source, "converted").unwrap();
    let description = folder.path().join("prototype");
    let prototype = format!("boot\n0 0\nd--755 0 0\nfile ---644 0 0 {}\n$\n", source.display());
    fs::write(&description, prototype).unwrap();
    fs::File::create(&image).unwrap().set_len(320 << 20).unwrap();
    let image = image.to_str().unwrap();
    let made = run(
        &find_command("mkfs.xfs").unwrap(),
        &["-q", "-L", "old", "-p", description.to_str().unwrap(), image],
    );
    assert!(made.status.success(), "{}", text(&made));
    let command = assert_cmd::cargo::cargo_bin!("papilio").to_owned();
    let converted = run(&command, &["convert", "-L", image]);
    let said = text(&converted);
    assert!(
        converted.status.success() && said.contains("The XFS file system is in xfs_saved/image"),
        "{said}"
    );
    assert_eq!(run(&command, &["cat", &format!("{image}:/file")]).stdout, b"converted");
    let back = run(&command, &["convert", "-r", image]);
    let said = text(&back);
    assert!(back.status.success() && said.contains("Restoring from:  xfs_saved/image"), "{said}");
    let checked = run(&find_command("xfs_repair").unwrap(), &["-n", "-f", image]);
    assert!(checked.status.success(), "{}", text(&checked));
}

/// An ext4 with three files, and the command under the name `btrfs-convert`.
struct Old {
    folder: tempfile::TempDir,
}

impl Old {
    fn new() -> Option<Self> {
        let _met = require(&["mke2fs", "e2fsck"].map(Need::Command))?;
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("source");
        fs::create_dir(&source).unwrap();
        fs::write(source.join("small"), "converted").unwrap();
        fs::write(source.join("large"), vec![7; 90_000]).unwrap();
        let image = folder.path().join("original");
        fs::File::create(&image).unwrap().set_len(120 << 20).unwrap();
        let [source, image] = [&source, &image].map(|path| path.to_str().unwrap());
        let arguments = ["-q", "-F", "-t", "ext4", "-b", "4096", "-L", "old", "-d", source, image];
        let made = run(&find_command("mke2fs").unwrap(), &arguments);
        assert!(made.status.success(), "{}", text(&made));
        let set = run(&find_command("debugfs").unwrap(), &["-w", "-R", "ea_set small user.note kept", image]);
        assert!(set.status.success(), "{}", text(&set));
        symlink(assert_cmd::cargo::cargo_bin!("papilio"), folder.path().join("btrfs-convert")).unwrap();
        Some(Self { folder })
    }

    /// Makes a new image of the old file system.
    fn image(&self) -> String {
        let image = self.folder.path().join("image");
        fs::copy(self.folder.path().join("original"), &image).unwrap();
        image.to_str().unwrap().to_owned()
    }

    /// Converts with these options. Returns the image and the output.
    fn convert(&self, options: &[&str]) -> (String, Output) {
        let image = self.image();
        let output = run(&self.folder.path().join("btrfs-convert"), &[options, &[&image]].concat());
        (image, output)
    }

    /// Converts with these options, which must succeed, and returns what `papilio` says about it.
    fn says(&self, options: &[&str], command: &[&str]) -> String {
        let (image, output) = self.convert(options);
        assert!(output.status.success(), "{options:?}: {}", text(&output));
        let papilio = assert_cmd::cargo::cargo_bin!("papilio");
        let checked = run(papilio, &["check", "--check-data-csum", &image]);
        assert!(checked.status.success(), "{options:?}: {}", text(&checked));
        text(&run(papilio, &[command, &[&image]].concat()))
    }
}

#[test]
fn each_option_of_btrfs_convert_works() {
    let Some(old) = Old::new() else { return };
    let superblock: &[&str] = &["inspect", "dump-super", "-f"];
    let tree: &[&str] = &["inspect", "dump-tree", "-t", "5"];
    let plain = old.says(&["--no-progress"], tree);
    assert!(plain.contains("(inline)") && plain.contains("kept") && !plain.contains("NODATASUM"), "{plain}");
    assert!(!old.says(&["-n"], tree).contains("(inline)"));
    assert!(!old.says(&["--no-xattr"], tree).contains("XATTR_ITEM"));
    assert!(!old.says(&["-i"], tree).contains("XATTR_ITEM"));
    assert!(old.says(&["-d"], tree).contains("NODATASUM"));
    assert!(!old.says(&["-d"], &["inspect", "dump-tree", "-t", "7"]).contains("EXTENT_CSUM EXTENT_CSUM"));
    let given = "01234567-89ab-cdef-0123-456789abcdef";
    let features = "^no-holes,^free-space-tree";
    let all = ["-N", "32K", "--csum", "sha256", "-l", "new", "-u", given, "-O", features, "-p"];
    let said = old.says(&all, superblock);
    let value = |name: &str| {
        let line = said.lines().find(|line| line.split_whitespace().next() == Some(name));
        line.map(|line| line.split_once(char::is_whitespace).unwrap().1.trim().to_owned())
    };
    assert_eq!(value("nodesize").as_deref(), Some("32768"), "{said}");
    assert_eq!(value("label").as_deref(), Some("new"), "{said}");
    assert_eq!(value("fsid").as_deref(), Some(given), "{said}");
    assert!(value("csum_type").is_some_and(|value| value.contains("sha256")), "{said}");
    assert!(!said.contains("NO_HOLES") && !said.contains("FREE_SPACE_TREE"), "{said}");
    let said =
        old.says(&["-O", "block-group-tree", "--checksum", "blake2", "-L", "--uuid", "copy"], superblock);
    assert!(said.contains("BLOCK_GROUP_TREE") && said.contains("blake2"), "{said}");
    let uuid = text(&run(&find_command("dumpe2fs").unwrap(), &["-h", &old.image()]));
    let uuid = uuid.lines().find_map(|line| line.strip_prefix("Filesystem UUID:")).unwrap().trim();
    assert!(said.contains(uuid) && said.lines().any(|line| line.trim_end().ends_with("old")), "{said}");
}

#[test]
fn options_that_btrfs_convert_cannot_follow_are_named() {
    let Some(old) = Old::new() else { return };
    let original = fs::read(old.folder.path().join("original")).unwrap();
    for (options, words) in [
        (&["-N", "5000"][..], "5000"),
        (&["--csum", "md5"], "md5"),
        (&["--uuid", "nonsense"], "nonsense"),
        (&["-O", "nonsense"], "nonsense"),
        (&["-O", "mixed-bg"], "mixed-bg"),
        (&["-O", "quota"], "quota"),
        (&["-O", "block-group-tree,^no-holes"], "block-group-tree"),
        (&["-l", &"x".repeat(256)], "the label has 256 bytes"),
        (&["-L", "-l", "x"], "--label"),
        (&["-r", "-d"], "--no-datasum"),
        (&["-r"], "no Btrfs magic"),
        (&["--bogus"], "--bogus"),
    ] {
        let (image, output) = old.convert(options);
        let said = text(&output);
        assert_eq!(output.status.code(), Some(1), "{options:?}: {said}");
        assert!(said.contains(words), "{options:?}: {said}");
        assert!(!said.contains("Source filesystem"), "{options:?} was refused late: {said}");
        assert!(fs::read(&image).unwrap() == original, "{options:?} changed the image");
    }
    // Two options of which the later one counts.
    assert!(old.convert(&["-p", "--no-progress"]).1.status.success());
}
