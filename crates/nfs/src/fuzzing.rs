//! Entries for fuzz targets: records of a client that may lie. They promise nothing to others.

use crate::dispatch::{Route, answer};
use crate::duplicates::Duplicates;
use crate::export::Export;
use crate::handle::Id;
use crate::identity::Squash;
use papilio::device::{Device, MemoryDevice};
use papilio::{FileSystem, Inode, MkfsOptions, OpenOptions};
use std::sync::Arc;

const SIZE: u64 = 128 << 20;
/// The first bytes of a word for which a handle is put.
const MARK: &[u8] = b"@H@";
/// Records until the file system is made anew.
const LIFETIME: u32 = 20_000;

/// An export of a small file system in memory, and handles of it.
#[derive(Debug)]
pub struct Records {
    export: Export,
    duplicates: Duplicates,
    handles: Vec<Vec<u8>>,
    left: u32,
}

impl Default for Records {
    fn default() -> Self {
        Self::new()
    }
}

impl Records {
    /// Makes the file system.
    ///
    /// # Panics
    /// It cannot be made.
    pub fn new() -> Self {
        let devices: Vec<Arc<dyn Device>> = vec![Arc::new(MemoryDevice::new(SIZE))];
        papilio::mkfs_devices(&devices, &MkfsOptions::new()).expect("a file system in memory");
        let options = OpenOptions::new().write(true).cache_bytes(4 << 20);
        let fs = FileSystem::from_devices(devices, &options).expect("it opens");
        fs.create_dir("/a").expect("a directory");
        fs.write("/a/file", [7; 100_000]).expect("a file");
        fs.write("/outside", b"secret").expect("a file");
        fs.create_subvolume("/a/sub").expect("a subvolume");
        let squash = Squash::default().root(false);
        let export = Export::new(fs.clone(), b"/a", false).expect("an export").squash(squash).sync(false);
        let handle = |inode: &Inode| export.handle_of(Id::of(inode)).data.to_vec();
        let handles = ["/a", "/a/file", "/a/sub"].map(|path| handle(&fs.inode(path).expect(path)));
        Self { handles: handles.into(), export, duplicates: Duplicates::default(), left: LIFETIME }
    }

    /// Answers a record. Words `@H@` with a number are replaced by handles before.
    ///
    /// # Panics
    /// A reply is none, or has what lies outside of the export.
    pub fn answer(&mut self, record: &[u8]) {
        if self.left == 0 {
            *self = Self::new();
        }
        self.left -= 1;
        let message = self.with_handles(record);
        let route = Route { client: ([127, 0, 0, 1], 700).into(), port: 2049 };
        let Ok(Some(reply)) = answer(&self.export, &self.duplicates, route, &message) else { return };
        assert!(reply.len() % 4 == 0 && reply.len() >= 12 && reply[..4] == message[..4]);
        assert!(!reply.windows(6).any(|bytes| bytes == b"secret") || contains_secret(record));
    }

    fn with_handles(&self, record: &[u8]) -> Vec<u8> {
        let mut message = Vec::with_capacity(record.len() + 64);
        for word in record.chunks(4) {
            match word.strip_prefix(MARK) {
                Some(&[number]) => {
                    let handle = &self.handles[usize::from(number) % self.handles.len()];
                    message.extend((handle.len() as u32).to_be_bytes());
                    message.extend(handle);
                }
                _ => message.extend(word),
            }
        }
        message
    }
}

/// A client may write the word itself, and read it again later.
fn contains_secret(record: &[u8]) -> bool {
    record.windows(2).any(|bytes| bytes == b"se")
}
