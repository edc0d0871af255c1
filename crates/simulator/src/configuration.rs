//! The shapes of file systems that runs go over: [`Configuration`].

use papilio::{CompressionChoice, MkfsFeature, MkfsOptions, OpenOptions};
use papilio_device::{Device, MemoryDevice};
use papilio_format::ChecksumType;
use papilio_format::items::file_extent::Compression;
use std::sync::Arc;

/// A shape: how a file system is made, and how it is opened.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// What tests call it.
    pub name: String,
    /// How it is made.
    pub mkfs: MkfsOptions,
    /// How it is opened.
    pub open: OpenOptions,
    /// Bytes of its device.
    pub size: u64,
}

impl Configuration {
    /// What `mkfs` and a mount do by themselves, on 256 MiB; commits only when asked for.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            mkfs: MkfsOptions::new(),
            open: OpenOptions::new().write(true).commit_interval(None),
            size: 256 << 20,
        }
    }

    /// With other options of `mkfs`.
    pub fn mkfs(mut self, change: impl FnOnce(MkfsOptions) -> MkfsOptions) -> Self {
        self.mkfs = change(self.mkfs);
        self
    }

    /// With other options of opening.
    pub fn open(mut self, change: impl FnOnce(OpenOptions) -> OpenOptions) -> Self {
        self.open = change(self.open);
        self
    }

    /// On a device of another size.
    pub fn size(mut self, bytes: u64) -> Self {
        self.size = bytes;
        self
    }

    /// Makes the file system in memory.
    ///
    /// # Errors
    /// What `mkfs` says.
    pub fn make(&self) -> papilio::Result<Arc<MemoryDevice>> {
        let device = Arc::new(MemoryDevice::new(self.size));
        papilio::mkfs_device(&(Arc::clone(&device) as Arc<dyn Device>), &self.mkfs)?;
        Ok(device)
    }

    /// Each value of each choice at least once: node sizes, checksums, compression, features, and
    /// devices that are nearly full.
    pub fn matrix() -> Vec<Self> {
        let compress = |algorithm| move |open: OpenOptions| open.compress(CompressionChoice::new(algorithm));
        let feature = |feature, on| move |mkfs: MkfsOptions| mkfs.feature(feature, on);
        vec![
            Self::new("default"),
            Self::new("node 4096, xxhash, zlib")
                .mkfs(|mkfs| mkfs.node_size(4096).checksum(ChecksumType::XxHash64))
                .open(compress(Compression::Zlib)),
            Self::new("node 65536, sha256, lzo")
                .mkfs(|mkfs| mkfs.node_size(65536).checksum(ChecksumType::Sha256))
                .open(compress(Compression::Lzo)),
            Self::new("blake2, zstd, block group tree")
                .mkfs(|mkfs| mkfs.checksum(ChecksumType::Blake2b))
                .mkfs(feature(MkfsFeature::BlockGroupTree, true))
                .open(compress(Compression::Zstd)),
            Self::new("explicit holes, node 4096")
                .mkfs(|mkfs| mkfs.node_size(4096))
                .mkfs(feature(MkfsFeature::NoHoles, false)),
            Self::new("no free space tree, forced zstd")
                .mkfs(feature(MkfsFeature::FreeSpaceTree, false))
                .open(|open| open.compress_force(CompressionChoice::new(Compression::Zstd))),
            Self::new("mixed").mkfs(feature(MkfsFeature::MixedGroups, true)),
            Self::new("commits by themselves, discard, no inline data")
                .open(|open| open.dirty_bytes(1 << 20).discard(true).max_inline(0)),
            Self::new("full").size(SMALL),
            Self::new("full, mixed, explicit holes")
                .mkfs(feature(MkfsFeature::MixedGroups, true))
                .mkfs(feature(MkfsFeature::NoHoles, false))
                .size(18 << 20),
            Self::new("full, node 65536").mkfs(|mkfs| mkfs.node_size(65536)).size(SMALL),
            Self::new("cached").open(|open| open.cache_bytes(CACHE)),
            Self::new("cached, zstd, explicit holes, node 4096")
                .mkfs(|mkfs| mkfs.node_size(4096))
                .mkfs(feature(MkfsFeature::NoHoles, false))
                .open(|open| open.cache_bytes(CACHE).compress(CompressionChoice::new(Compression::Zstd))),
            Self::new("cached, full").size(SMALL).open(|open| open.cache_bytes(CACHE)),
        ]
    }
}

/// Bytes of a page cache that holds a part of what is written only.
const CACHE: u64 = 4 << 20;
/// Bytes of a device that files soon fill.
const SMALL: u64 = 120 << 20;
