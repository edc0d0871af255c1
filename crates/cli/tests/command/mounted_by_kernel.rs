//! Images that the kernel's Btrfs has mounted.

use crate::common::{fail, succeed_text as succeed};
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
    succeed(["check", "--force", &image]);
    mounted.unmount().unwrap();
    succeed(["check", "-s", "0", &image]);
    succeed(["check", "-b", &image]);
    fail(1, "no file system has this label", ["filesystem", "show", "no such label"]);
}
