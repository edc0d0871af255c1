//! Steps of stock programs have the same results on a mount as on the kernel's Btrfs.

use crate::kernel::KernelMount;
use crate::world::{MOUNT, World, binary};
use papilio_oracle::{FileSystemSpec, Need, Scratch};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

/// Runs the script in `directory`, with our command under the name `btrfs`, and returns the lines
/// that it printed.
fn steps(world: &World, directory: &Path) -> Vec<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mount/steps.sh");
    let names = world.beside("names");
    if !names.exists() {
        std::fs::create_dir(&names).unwrap();
        symlink(binary(), names.join("btrfs")).unwrap();
    }
    let path = format!("{}:{}", names.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("bash");
    command.arg(script).arg(directory).env("LC_ALL", "C").env("PATH", path);
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.is_empty(), "{stderr}");
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn containers_and_moves_between_subvolumes_are_as_in_the_kernel() {
    let programs = ["btrfs", "setpriv", "unshare", "setcap", "getfacl", "setfattr", "lsattr", "python3"]
        .map(Need::Command);
    let needs = [MOUNT, Need::KERNEL_MOUNT, &programs].concat();
    let Some(world) = World::new(&needs) else { return };
    let scratch = Scratch::new(512 << 20).unwrap();
    let images = FileSystemSpec::default().make(&scratch).unwrap();
    let expected = {
        let _kernel = KernelMount::new(&images.paths()[0], &world.directory(), "rw");
        steps(&world, &world.directory())
    };
    assert!(expected.len() > 130, "{} steps", expected.len());
    world.mount(&[]);
    let found = steps(&world, &world.directory());
    world.unmount();
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.len(), expected.len());
    world.assert_clean();
}
