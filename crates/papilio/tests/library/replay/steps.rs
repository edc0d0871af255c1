//! Operations of programs on files, with short names. Each panics if it fails.

use rustix::fs::{AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, RenameFlags, XattrFlags};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The folder that relative paths start at.
#[derive(Clone, Debug)]
pub struct At(pub PathBuf);

/// Returns random bytes for a seed.
pub fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..length).map(|_| random.u8(..)).collect()
}

impl At {
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn open(&self, name: &str) -> File {
        let options = File::options().read(true).write(true).open(self.path(name));
        options.unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Writes at an offset; creates the file if it does not exist.
    pub fn write(&self, name: &str, offset: u64, content: &[u8]) {
        let file = File::options().create(true).truncate(false).read(true).write(true).open(self.path(name));
        file.unwrap_or_else(|error| panic!("{name}: {error}")).write_all_at(content, offset).unwrap();
    }

    /// As [`At::write`], with seeded bytes.
    pub fn fill(&self, name: &str, offset: u64, length: usize) {
        self.write(name, offset, &bytes(offset ^ length as u64 ^ name.len() as u64, length));
    }

    pub fn fsync(&self, name: &str) {
        File::open(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}")).sync_all().unwrap();
    }

    pub fn fdatasync(&self, name: &str) {
        self.open(name).sync_data().unwrap();
    }

    pub fn truncate(&self, name: &str, size: u64) {
        self.open(name).set_len(size).unwrap();
    }

    pub fn allocate(&self, name: &str, flags: FallocateFlags, offset: u64, length: u64) {
        rustix::fs::fallocate(self.open(name), flags, offset, length).unwrap();
    }

    pub fn punch(&self, name: &str, offset: u64, length: u64) {
        self.allocate(name, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, length);
    }

    pub fn rename(&self, from: &str, to: &str) {
        std::fs::rename(self.path(from), self.path(to)).unwrap_or_else(|e| panic!("{from} -> {to}: {e}"));
    }

    pub fn exchange(&self, one: &str, other: &str) {
        let flags = RenameFlags::EXCHANGE;
        rustix::fs::renameat_with(CWD, self.path(one), CWD, self.path(other), flags).unwrap();
    }

    pub fn whiteout(&self, from: &str, to: &str) {
        let flags = RenameFlags::WHITEOUT;
        rustix::fs::renameat_with(CWD, self.path(from), CWD, self.path(to), flags).unwrap();
    }

    pub fn link(&self, from: &str, to: &str) {
        std::fs::hard_link(self.path(from), self.path(to)).unwrap_or_else(|e| panic!("{from} -> {to}: {e}"));
    }

    pub fn remove(&self, name: &str) {
        std::fs::remove_file(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    }

    pub fn mkdir(&self, name: &str) {
        std::fs::create_dir(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    }

    pub fn rmdir(&self, name: &str) {
        std::fs::remove_dir(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    }

    pub fn symlink(&self, target: &str, name: &str) {
        std::os::unix::fs::symlink(target, self.path(name)).unwrap();
    }

    pub fn node(&self, name: &str, kind: FileType) {
        let mode = Mode::from_raw_mode(0o640);
        rustix::fs::mknodat(CWD, self.path(name), kind, mode, rustix::fs::makedev(7, 300)).unwrap();
    }

    pub fn chmod(&self, name: &str, mode: u32) {
        rustix::fs::chmodat(CWD, self.path(name), Mode::from_raw_mode(mode), AtFlags::empty()).unwrap();
    }

    pub fn chown(&self, name: &str, owner: u32) {
        std::os::unix::fs::lchown(self.path(name), Some(owner), Some(owner + 1)).unwrap();
    }

    pub fn set_xattr(&self, name: &str, attribute: &str, value: &[u8]) {
        rustix::fs::lsetxattr(self.path(name), attribute, value, XattrFlags::empty()).unwrap();
    }

    pub fn remove_xattr(&self, name: &str, attribute: &str) {
        rustix::fs::lremovexattr(self.path(name), attribute).unwrap();
    }

    pub fn clone_range(&self, from: &str, offset: u64, length: u64, to: &str, at: u64) {
        if !self.path(to).exists() {
            self.write(to, 0, b"");
        }
        papilio_oracle::sys::clone_range(&self.open(from), offset, length, &self.open(to), at).unwrap();
    }

    pub fn no_cow(&self, name: &str) {
        self.write(name, 0, b"");
        let done = std::process::Command::new("chattr").arg("+C").arg(self.path(name)).status();
        assert!(done.expect("chattr runs").success());
    }

    /// Makes an unnamed file, then links it as `name`.
    pub fn tmpfile(&self, name: &str, content: &[u8]) -> File {
        let flags = OFlags::TMPFILE | OFlags::RDWR;
        let file = File::from(rustix::fs::open(&self.0, flags, Mode::from_raw_mode(0o600)).unwrap());
        file.write_all_at(content, 0).unwrap();
        let proc = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        rustix::fs::linkat(CWD, Path::new(&proc), CWD, self.path(name), AtFlags::SYMLINK_FOLLOW).unwrap();
        file
    }

    /// Writes through a memory mapping.
    pub fn write_mapped(&self, name: &str, offset: usize, content: &[u8]) {
        use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
        let file = self.open(name);
        let length = file.metadata().unwrap().len() as usize;
        assert!(offset + content.len() <= length);
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the system chooses the address of the mapping, nothing truncates the file
        // meanwhile, the write is within the mapping, and nothing refers to it after the unmap.
        unsafe {
            let map = mmap(std::ptr::null_mut(), length, rights, MapFlags::SHARED, &file, 0).unwrap();
            std::ptr::copy_nonoverlapping(content.as_ptr(), map.cast::<u8>().add(offset), content.len());
            munmap(map, length).unwrap();
        }
    }
}
