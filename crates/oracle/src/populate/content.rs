//! Seeded bytes, and the writer that stores them in files and counts them.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use fastrand::Rng;

const PIECE: usize = 1 << 20;

/// The kind of bytes to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// Words from a small dictionary: compresses to about a third.
    Text,
    /// Random bytes: incompressible.
    Random,
    /// Zeros.
    Zeros,
    /// Stretches of all three kinds, changing every few sectors.
    Mixed,
}

impl Data {
    /// Fills `buffer`.
    pub fn fill(self, random: &mut Rng, buffer: &mut [u8]) {
        match self {
            Self::Random => random.fill(buffer),
            Self::Zeros => buffer.fill(0),
            Self::Text => fill_text(random, buffer),
            Self::Mixed => {
                let mut rest = buffer;
                while !rest.is_empty() {
                    let length = (random.usize(1..64) * 1024).min(rest.len());
                    let (head, tail) = rest.split_at_mut(length);
                    [Self::Text, Self::Random, Self::Zeros][random.usize(0..3)].fill(random, head);
                    rest = tail;
                }
            }
        }
    }

    /// Returns a random kind, most often text.
    pub fn any(random: &mut Rng) -> Self {
        match random.u8(0..8) {
            0..4 => Self::Text,
            4..6 => Self::Random,
            6 => Self::Zeros,
            _ => Self::Mixed,
        }
    }
}

fn fill_text(random: &mut Rng, buffer: &mut [u8]) {
    const WORDS: [&[u8]; 16] = [
        b"extent ",
        b"chunk ",
        b"delayed refs\n",
        b"a ",
        b"the ",
        b"of ",
        b"subvolume ",
        b"snapshot ",
        b"generation\n",
        b"checksum ",
        b"tree ",
        b"leaf ",
        b"copy on write, ",
        b"0",
        b"device ",
        b"inode\n",
    ];
    let mut at = 0;
    while at < buffer.len() {
        // One number yields sixteen words: most of the output is text, so this must be fast.
        let mut bits = random.u64(..);
        for _ in 0..16 {
            let word = WORDS[(bits & 15) as usize];
            let length = word.len().min(buffer.len() - at);
            buffer[at..at + length].copy_from_slice(&word[..length]);
            at += length;
            bits >>= 4;
        }
    }
}

/// Counts of written entries and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Populated {
    /// Files, directories and other inodes created, without snapshots.
    pub entries: u64,
    /// Bytes of content written.
    pub bytes: u64,
}

/// Creates files and directories and counts them. Each file's content depends only on the seed and
/// the file's path, so one part can change without affecting the others.
#[derive(Debug)]
pub struct Writer {
    root: PathBuf,
    seed: u64,
    buffer: Vec<u8>,
    done: Populated,
}

impl Writer {
    /// Creates a writer below `root`.
    pub fn new(root: &Path, seed: u64) -> Self {
        Self { root: root.to_owned(), seed, buffer: vec![0; PIECE], done: Populated::default() }
    }

    /// Returns the counts so far.
    pub fn done(&self) -> Populated {
        self.done
    }

    /// Counts an entry that other code created.
    pub fn count(&mut self) {
        self.done.entries += 1;
    }

    /// Returns a random number generator seeded for `path`.
    pub fn random(&self, path: &Path) -> Rng {
        use std::os::unix::ffi::OsStrExt;
        let name = path.strip_prefix(&self.root).unwrap_or(path).as_os_str().as_bytes();
        Rng::with_seed(xxhash_rust::xxh3::xxh3_64_with_seed(name, !self.seed))
    }

    /// Creates a directory.
    ///
    /// # Errors
    /// The file system's.
    pub fn directory(&mut self, path: &Path) -> anyhow::Result<()> {
        std::fs::create_dir(path).with_context(|| path.display().to_string())?;
        self.count();
        Ok(())
    }

    /// Creates an empty file.
    ///
    /// # Errors
    /// The file system's.
    pub fn create(&mut self, path: &Path) -> anyhow::Result<File> {
        let file = File::options().read(true).write(true).create_new(true).open(path);
        self.count();
        file.with_context(|| path.display().to_string())
    }

    /// Creates a file of `size` bytes.
    ///
    /// # Errors
    /// The file system's.
    pub fn file(&mut self, path: &Path, size: u64, data: Data) -> anyhow::Result<File> {
        let mut file = self.create(path)?;
        let mut random = self.random(path);
        let mut rest = size;
        while rest > 0 {
            let length = usize::try_from(rest).map_or(PIECE, |rest| rest.min(PIECE));
            data.fill(&mut random, &mut self.buffer[..length]);
            file.write_all(&self.buffer[..length]).with_context(|| path.display().to_string())?;
            rest -= length as u64;
        }
        self.done.bytes += size;
        Ok(file)
    }

    /// Writes `length` bytes at `offset` of an open file.
    ///
    /// # Errors
    /// The file system's.
    pub fn write_at(
        &mut self,
        file: &File,
        random: &mut Rng,
        offset: u64,
        length: u64,
        data: Data,
    ) -> anyhow::Result<()> {
        let mut at = 0;
        while at < length {
            let piece = usize::try_from(length - at).map_or(PIECE, |rest| rest.min(PIECE));
            data.fill(random, &mut self.buffer[..piece]);
            file.write_all_at(&self.buffer[..piece], offset + at)?;
            at += piece as u64;
        }
        self.done.bytes += length;
        Ok(())
    }
}

/// Commits the file system that holds `path`.
pub(crate) fn sync(path: &Path) -> anyhow::Result<()> {
    Ok(rustix::fs::syncfs(File::open(path)?)?)
}

/// Builds a path below `folder` from a prefix and a number.
pub(crate) fn numbered(folder: &Path, prefix: &str, number: u64) -> PathBuf {
    folder.join(format!("{prefix}{number}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_gives_same_bytes() {
        for data in [Data::Text, Data::Random, Data::Zeros, Data::Mixed] {
            let mut a = vec![1; 100_001];
            let mut b = vec![2; 100_001];
            data.fill(&mut Rng::with_seed(7), &mut a);
            data.fill(&mut Rng::with_seed(7), &mut b);
            assert_eq!(a, b, "{data:?}");
        }
    }
}
