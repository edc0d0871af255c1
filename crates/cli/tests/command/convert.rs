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
