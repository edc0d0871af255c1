//! A mount that another mount namespace holds: an unmount ends within a bound, and says who holds
//! the mount and what ends it.

use crate::world::{World, eventually, papilio, try_unmount};
use papilio_oracle::Need;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// A process in a mount namespace of its own.
struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn an_unmount_does_not_wait_for_another_namespace() {
    let needs = [Need::Root, Need::Fuse, Need::Command("unshare"), Need::Command("findmnt")];
    let Some(world) = World::new(&needs) else { return };
    world.mount(&[]);
    std::fs::write(world.at("f"), "kept").unwrap();
    // It keeps this mount only: other tests wait until theirs are gone.
    let script = "umount -a -i -t btrfs 2> /dev/null
        findmnt -nro TARGET -t fuse.papilio | grep -vxF \"$1\" | xargs -r umount -i 2> /dev/null
        exec sleep 600";
    let mut holder = Command::new("unshare");
    holder.args(["-m", "sh", "-c", script, "sh"]).arg(world.directory());
    let holder = Holder(holder.spawn().unwrap());
    let process = holder.0.id();
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    eventually("the namespace exists", || namespace(&process.to_string()) != namespace("self"));
    let begun = Instant::now();
    let output = try_unmount(&world.directory());
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert!(errors.contains("still mounted in another namespace, of process"), "{errors}");
    assert!(errors.contains("nsenter -t "), "{errors}");
    drop(holder);
    // The server ends with the last mount, and the image is free.
    eventually("the image is closed", || {
        papilio(["check", world.image().to_str().unwrap()]).status.success()
    });
}
