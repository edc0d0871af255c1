//! Seeded changes of a tree on the host: names, links, data, reflinks.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A generator of numbers that a seed repeats.
pub struct Random(pub u64);

impl Random {
    /// Returns a number below `below`.
    pub fn below(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % below.max(1)
    }

    /// Returns one of `paths`.
    pub fn pick<'a>(&mut self, paths: &'a [PathBuf]) -> &'a Path {
        &paths[self.below(paths.len())]
    }
}

/// Returns the directories and the regular files below `root`, in the order of their names.
pub fn entries(root: &Path) -> [Vec<PathBuf>; 2] {
    let (mut directories, mut files) = (vec![root.to_owned()], Vec::new());
    let mut at = 0;
    while let Some(directory) = directories.get(at).cloned() {
        at += 1;
        let mut found: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap()).collect();
        found.sort_by_key(fs::DirEntry::file_name);
        for entry in found {
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                directories.push(entry.path());
            } else if kind.is_file() {
                files.push(entry.path());
            }
        }
    }
    [directories, files]
}

fn swap(root: &Path, x: &Path, y: &Path) -> io::Result<()> {
    let spare = root.join("spare");
    fs::rename(x, &spare)?;
    match fs::rename(y, x) {
        Ok(()) => fs::rename(&spare, y),
        Err(error) => fs::rename(&spare, x).and(Err(error)),
    }
}

/// Changes the tree: names, links, data, reflinks. Steps that the kernel refuses, such as a
/// directory moved into itself, are left out.
pub fn churn(root: &Path, random: &mut Random, steps: usize) {
    let mut done = 0;
    for step in 0..steps {
        let [directories, files] = entries(root);
        let target = random.pick(&directories).join(format!("new {step} of {steps}"));
        let (a, b) = (random.pick(&files), random.pick(&files));
        let open = || File::options().write(true).open(a);
        let result = match random.below(10) {
            0 => fs::rename(a, &target),
            1 => fs::rename(random.pick(&directories[1..]), &target),
            2 => swap(root, a, b),
            3 => swap(root, random.pick(&directories[1..]), random.pick(&directories[1..])),
            4 => fs::hard_link(a, &target),
            5 => fs::remove_file(a),
            6 => open().and_then(|file| file.write_all_at(&[step as u8; 9000], random.below(40_000) as u64)),
            7 => open().and_then(|file| file.set_len(random.below(30_000) as u64)),
            8 => {
                let status = Command::new("cp").arg("--reflink=always").arg(a).arg(&target).status();
                status.and_then(|status| status.success().then_some(()).ok_or(io::ErrorKind::Other.into()))
            }
            _ => fs::create_dir(&target),
        };
        done += usize::from(result.is_ok());
    }
    assert!(done > steps / 2, "only {done} of {steps} steps succeeded");
}
