//! Redundancy that degraded writing took away: commands and mounts say so, and name the balance
//! that gives it back.

use crate::world::{MOUNT, World, papilio, succeed};
use std::fs;
use std::process::Output;

fn warned(output: &Output) -> bool {
    assert!(output.status.success(), "{output:?}");
    let errors = String::from_utf8_lossy(&output.stderr);
    errors.contains(" of data are single beside raid1")
        && errors.contains("balance start -dconvert=raid1,soft")
}

#[test]
fn chunks_of_degraded_writing_are_named_until_a_balance() {
    let Some(world) = World::new(MOUNT) else { return };
    let images = ["a.img", "b.img", "new.img"].map(|name| world.beside(name));
    for image in &images {
        fs::File::create(image).unwrap().set_len(600 << 20).unwrap();
    }
    let [first, second, new] = images.each_ref().map(|image| image.to_str().unwrap());
    let directory = world.directory();
    let directory = directory.to_str().unwrap();
    succeed(["mkfs", "-q", "-f", "-d", "raid1", "-m", "raid1", first, second]);
    assert!(!warned(&papilio(["filesystem", "df", "--device", second, first])));
    fs::remove_file(second).unwrap();
    assert!(papilio(["mount", "-o", "degraded", first, directory]).status.success());
    // More than the mirrored chunks have room for.
    fs::write(world.at("f"), vec![7; 300 << 20]).unwrap();
    world.unmount();
    let replaced = papilio(["replace", "start", "--degraded", "2", new, first]);
    assert!(warned(&replaced), "{replaced:?}");
    for command in [
        &["filesystem", "df", "--device", new, first][..],
        &["filesystem", "usage", "--device", new, first],
        &["mount", "--device", new, first, directory],
        &["filesystem", "df", directory],
        &["filesystem", "usage", directory],
    ] {
        let output = papilio(command);
        assert!(warned(&output), "{command:?}: {output:?}");
    }
    succeed(["balance", "start", "-dconvert=raid1,soft", "-mconvert=raid1,soft", directory]);
    assert!(!warned(&papilio(["filesystem", "df", directory])));
    assert!(fs::read(world.at("f")).unwrap() == vec![7; 300 << 20]);
    world.unmount();
    succeed(["check", "--device", new, first]);
}
