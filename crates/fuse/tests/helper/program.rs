//! The second process of the mount tests: a mount's server, or a program that locks a file.
//!
//! The tests start it through `CARGO_BIN_EXE_papilio-fuse-test-helper`. A panic here fails the test
//! that waits for the output.

use papilio::FileSystem;
use papilio_fuse::{MountOptions, Session};
use rustix::fs::FlockOperation;
use std::path::Path;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["serve", image, directory, options] => serve(Path::new(image), Path::new(directory), options),
        ["serve-unprivileged", image, directory, options] => {
            drop_mount_capability();
            serve(Path::new(image), Path::new(directory), options);
        }
        ["try-lock", file] => try_lock(Path::new(file)),
        _ => panic!("usage: serve|serve-unprivileged IMAGE DIRECTORY OPTIONS, or try-lock FILE"),
    }
}

/// Mounts `image` on `directory`, prints `mounted`, and serves until the mount ends.
fn serve(image: &Path, directory: &Path, options: &str) {
    let options = MountOptions::parse(options).expect("the test gives valid options");
    let fs = FileSystem::open_with(image, &options.open).expect("the image opens");
    let session = Session::mount(fs, image, directory, &options).expect("the image mounts");
    println!("mounted");
    session.wait().expect("the last changes become durable");
}

/// Drops CAP_SYS_ADMIN, so that this process mounts as a user does. Programs that it starts, such
/// as the set-user-id `fusermount3`, have the capability again.
fn drop_mount_capability() {
    const VERSION: u32 = 0x2008_0522;
    const SYS_ADMIN: u32 = 1 << 21;
    let mut header = [VERSION, 0];
    // The effective, permitted and inheritable sets, lower halves first.
    let mut sets = [0_u32; 6];
    // SAFETY: system calls on this thread with buffers of the sizes that this version has.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_capget, header.as_mut_ptr(), sets.as_mut_ptr()), 0);
        sets[0] &= !SYS_ADMIN;
        sets[1] &= !SYS_ADMIN;
        assert_eq!(libc::syscall(libc::SYS_capset, header.as_mut_ptr(), sets.as_ptr()), 0);
    }
}

/// Prints the result of a non-blocking exclusive record lock on `file`.
fn try_lock(file: &Path) {
    let file = std::fs::File::options().read(true).write(true).open(file).expect("the file opens");
    println!("{:?}", rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive));
}
