//! Deleted files: the kernel creates, commits, deletes and commits; older root trees have them.

use crate::common::{papilio, succeed, succeed_json, succeed_text, text};
use papilio_oracle::{FileSystemSpec, Need, Scratch, require, sys};
use std::fs;

#[test]
fn deleted_files_are_listed_and_restored() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let scratch = Scratch::new(1 << 30).unwrap();
    let spec = FileSystemSpec { mount_options: vec!["nodiscard".to_owned()], ..FileSystemSpec::default() };
    let images = spec.make(&scratch).unwrap();
    let mounted = images.mount().unwrap();
    let top = mounted.path();
    let big: Vec<u8> = (0..300_000u32).map(|at| (at % 251) as u8).collect();
    fs::create_dir_all(top.join("work/papers")).unwrap();
    sys::create_subvolume(&top.join("home")).unwrap();
    let files: [(&str, &[u8]); 4] = [
        ("work/papers/thesis", &big),
        ("work/note", b"a note"),
        ("home/letter", &big[..9000]),
        ("kept", &big[..100_000]),
    ];
    for (path, content) in files {
        fs::write(top.join(path), content).unwrap();
    }
    mounted.sync().unwrap();
    fs::remove_dir_all(top.join("work/papers")).unwrap();
    fs::remove_file(top.join("work/note")).unwrap();
    fs::remove_file(top.join("home/letter")).unwrap();
    fs::rename(top.join("kept"), top.join("renamed")).unwrap();
    mounted.sync().unwrap();
    mounted.unmount().unwrap();
    let image = images.paths()[0].to_str().unwrap();

    let listed = succeed_json(["ls", "--deleted", "--json", image]);
    let paths: Vec<_> =
        listed.as_array().unwrap().iter().map(|file| file["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["/home/letter", "/work/note", "/work/papers/thesis"]);
    let below = succeed_text(["ls", "--deleted", &format!("{image}:/work")]);
    let lines: Vec<_> = below.lines().collect();
    assert!(lines.len() == 2 && lines[0].ends_with(" 6 /work/note"), "{below}");
    assert!(lines[1].ends_with(" 300000 /work/papers/thesis"), "{below}");
    assert_eq!(succeed_text(["ls", "--deleted", &format!("{image}:/wo")]), "");

    // One by its root tree, as the listing says.
    let root = listed[2]["tree_root"].to_string();
    let thesis = format!("{image}:/work/papers/thesis");
    assert!(succeed(["cat", "--tree-root", &root, &thesis]) == big);

    let out = scratch.unique("restored");
    let listing = succeed_text(["restore", "--deleted", "-D", image]);
    assert_eq!(listing, "/home/letter\n/work/note\n/work/papers/thesis\n");
    let output = papilio(["restore", "--deleted", image, out.to_str().unwrap()]);
    assert!(output.status.success(), "{} {listed:#}", text(&output.stderr));
    for (path, content) in &files[..3] {
        assert!(fs::read(out.join(path)).unwrap() == *content, "{path}");
    }
    assert!(!out.join("kept").exists() && !out.join("renamed").exists());

    // Data that was overwritten since is missing, and never taken from another file.
    let mounted = images.mount().unwrap();
    for number in 0..40 {
        fs::write(mounted.path().join(format!("new{number}")), vec![number; 4 << 20]).unwrap();
    }
    mounted.sync().unwrap();
    mounted.unmount().unwrap();
    let out = scratch.unique("again");
    let output = papilio(["restore", "--deleted", image, out.to_str().unwrap()]);
    let errors = text(&output.stderr);
    for (path, content) in &files[..3] {
        if let Ok(found) = fs::read(out.join(path)) {
            assert!(found == *content || errors.contains(path), "{path}: wrong and not listed: {errors}");
        }
    }
}
