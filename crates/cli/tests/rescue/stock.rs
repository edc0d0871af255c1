//! The same damage in the hands of btrfs-progs, with limits on their time.

use crate::world::{World, contents};
use papilio::{FileSystem, OpenOptions};
use papilio_oracle::Scratch;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Seconds of processor time for each program.
const LIMIT: &str = "ulimit -t 20; exec btrfs \"$@\"";

fn run(arguments: &[&str]) -> bool {
    let mut command = Command::new("sh");
    command.args(["-c", LIMIT, "btrfs"]).args(arguments);
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// Returns how many files are right after `btrfs restore`, how many after `btrfs check --repair`,
/// and whether `btrfs check` finds no error then. Papilio's reader counts the latter.
pub fn judge(world: &World, damaged: &papilio::device::MemoryDevice, scratch: &Scratch) -> (u64, u64, bool) {
    let (image, out) = (scratch.unique("stock"), scratch.unique("stock-out"));
    damaged.write_image(&image).unwrap();
    fs::create_dir(&out).unwrap();
    let (path, place) = (image.to_str().unwrap(), out.to_str().unwrap());
    run(&["restore", "-s", "-i", path, place]);
    let right = |(file, content): &(&Vec<u8>, &Vec<u8>)| {
        let place = out.join(Path::new(std::ffi::OsStr::from_bytes(file)));
        fs::read(place).is_ok_and(|found| found == **content)
    };
    let restored = world.files.iter().filter(right).count() as u64;
    run(&["check", "--repair", "--force", path]);
    let clean = run(&["check", path]);
    let fs_after = FileSystem::open_with(&image, &OpenOptions::new().ignore_bad_roots(true));
    let after = fs_after.map(|fs| contents(&fs)).unwrap_or_default();
    let repaired = world.files.iter().filter(|(path, content)| after.get(*path) == Some(content)).count();
    fs::remove_file(&image).unwrap();
    fs::remove_dir_all(&out).unwrap();
    (restored, repaired as u64, clean)
}
