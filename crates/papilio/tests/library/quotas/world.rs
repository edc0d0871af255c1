//! Random changes of a file system with many subvolumes.

use papilio::FileSystem;

/// Files in each subvolume, at most.
const FILES: u64 = 60;
/// Subvolumes, at most.
const SUBVOLUMES: usize = 20;

/// A file system that a seed changes.
pub struct World {
    random: fastrand::Rng,
    subvolumes: Vec<String>,
    made: u64,
}

impl World {
    pub fn new(seed: u64) -> Self {
        Self { random: fastrand::Rng::with_seed(seed), subvolumes: Vec::new(), made: 0 }
    }

    /// Makes one random change.
    pub fn step(&mut self, fs: &FileSystem) {
        match self.random.u32(..1000) {
            _ if self.subvolumes.is_empty() => self.create(fs),
            0..8 if self.subvolumes.len() < SUBVOLUMES => self.create(fs),
            8..24 if self.subvolumes.len() < SUBVOLUMES => self.snapshot(fs),
            24..38 => self.delete(fs),
            38..40 => fs.clean_subvolumes().unwrap(),
            40..45 => fs.sync().unwrap(),
            45..300 => self.write(fs),
            300..380 => self.truncate(fs),
            380..500 => self.reflink(fs),
            500..600 => self.rename(fs),
            600..720 => self.unlink(fs),
            720..760 => self.punch(fs),
            760..790 => self.preallocate(fs),
            _ => self.small(fs),
        }
    }

    pub fn steps(&mut self, fs: &FileSystem, count: u64) {
        for _ in 0..count {
            self.step(fs);
        }
    }

    fn create(&mut self, fs: &FileSystem) {
        self.made += 1;
        let path = format!("/sub{}", self.made);
        fs.create_subvolume(&path).unwrap();
        self.subvolumes.push(path);
    }

    fn snapshot(&mut self, fs: &FileSystem) {
        self.made += 1;
        let (source, path) = (self.subvolume(), format!("/sub{}", self.made));
        fs.snapshot(&source, &path, false).unwrap();
        self.subvolumes.push(path);
    }

    fn delete(&mut self, fs: &FileSystem) {
        let path = self.subvolumes.swap_remove(self.random.usize(..self.subvolumes.len()));
        fs.delete_subvolume(&path).unwrap();
    }

    fn subvolume(&mut self) -> String {
        self.subvolumes[self.random.usize(..self.subvolumes.len())].clone()
    }

    fn path(&mut self) -> String {
        format!("{}/file{}", self.subvolume(), self.random.u64(..FILES))
    }

    fn file(&mut self, fs: &FileSystem) -> papilio::File {
        let path = self.path();
        fs.open_file(&path).or_else(|_| fs.create_file(&path)).unwrap()
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        let first = self.random.u8(..);
        (0..length).map(|at| first.wrapping_add((at % 251) as u8)).collect()
    }

    fn write(&mut self, fs: &FileSystem) {
        let file = self.file(fs);
        let length = self.random.usize(1..200_000);
        let data = self.bytes(length);
        file.write_all_at(&data, self.random.u64(..300_000)).unwrap();
    }

    fn small(&mut self, fs: &FileSystem) {
        let file = self.file(fs);
        let length = self.random.usize(1..1500);
        let data = self.bytes(length);
        file.write_all_at(&data, 0).unwrap();
    }

    fn truncate(&mut self, fs: &FileSystem) {
        let file = self.file(fs);
        file.set_len(self.random.u64(..300_000)).unwrap();
    }

    fn punch(&mut self, fs: &FileSystem) {
        let file = self.file(fs);
        file.punch_hole(self.random.u64(..200_000), self.random.u64(1..100_000)).unwrap();
    }

    fn preallocate(&mut self, fs: &FileSystem) {
        let file = self.file(fs);
        file.allocate(self.random.u64(..200_000), self.random.u64(1..100_000), self.random.bool()).unwrap();
    }

    fn reflink(&mut self, fs: &FileSystem) {
        let (source, target) = (self.file(fs), self.file(fs));
        let size = source.metadata().unwrap().size();
        if size < 8192 {
            return;
        }
        let blocks = size / 4096;
        let from = self.random.u64(..blocks);
        let length = self.random.u64(1..=blocks - from);
        // Ranges of one file may overlap, which is refused.
        let _ = target.clone_range(&source, from * 4096, length * 4096, self.random.u64(..80) * 4096);
    }

    fn rename(&mut self, fs: &FileSystem) {
        let subvolume = self.subvolume();
        let [from, to] = [0; 2].map(|_| format!("{subvolume}/file{}", self.random.u64(..FILES)));
        let _ = fs.rename(from, to);
    }

    fn unlink(&mut self, fs: &FileSystem) {
        let _ = fs.remove_file(self.path());
    }
}
