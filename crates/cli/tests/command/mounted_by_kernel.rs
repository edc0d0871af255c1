//! Images that the kernel's Btrfs has mounted.

use crate::common::{fail, papilio, succeed_text as succeed, text};
use papilio_oracle::{ImageSet, Need, Scratch, require};

#[test]
fn check_needs_force_while_the_kernel_has_an_image_mounted() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let scratch = Scratch::new(600 << 20).unwrap();
    let path = scratch.image("image", 300 << 20).unwrap();
    let image = path.to_str().unwrap().to_owned();
    succeed(["mkfs", "-q", "-L", "held", &image]);
    let images = ImageSet::open(&scratch, vec![path]);
    let mounted = images.mount().unwrap();
    fail(1, "the kernel has mounted it on", ["check", &image]);
    let forced = papilio(["check", "--force", &image]);
    let (said, warned) = (text(&forced.stdout), text(&forced.stderr));
    assert!(said.contains("no error found") && warned.contains("warning: "), "{said}{warned}");
    // There is nothing to repair.
    let forced = papilio(["check", "--repair", "--force", &image]);
    assert!(forced.status.success() && text(&forced.stdout).contains("nothing was written"));
    mounted.unmount().unwrap();
    succeed(["check", "-s", "0", &image]);
    succeed(["check", "-b", &image]);
    fail(1, "no file system has this label", ["filesystem", "show", "no such label"]);
}
