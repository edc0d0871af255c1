//! The shapes of file systems that runs iterate over: [`Configuration`].

use papilio::{
    CompressionChoice, DiscardMode, MkfsFeature, MkfsOptions, OpenOptions, Tuning, VerifyCompression,
};
use papilio_device::{Device, MemoryDevice};
use papilio_format::ChecksumType;
use papilio_format::items::file_extent::Compression;
use std::sync::Arc;

/// A shape: how to make a file system, and how to open it.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// The name in test output.
    pub name: String,
    /// Options for making it.
    pub mkfs: MkfsOptions,
    /// Options for opening it.
    pub open: OpenOptions,
    /// Size of each device in bytes.
    pub size: u64,
    /// Number of devices.
    pub devices: usize,
}

impl Configuration {
    /// Creates the default shape: defaults of `mkfs` and mount on 256 MiB, without periodic
    /// commits. Whatever a compressor gives is verified.
    pub fn new(name: impl Into<String>) -> Self {
        let mut tuning = Tuning::default();
        tuning.verify_compression = VerifyCompression::Always;
        Self {
            name: name.into(),
            mkfs: MkfsOptions::new(),
            open: OpenOptions::new().write(true).commit_interval(None).tuning(tuning),
            size: 256 << 20,
            devices: 1,
        }
    }

    /// Returns the shape with changed `mkfs` options.
    pub fn mkfs(mut self, change: impl FnOnce(MkfsOptions) -> MkfsOptions) -> Self {
        self.mkfs = change(self.mkfs);
        self
    }

    /// Returns the shape with changed options for opening.
    pub fn open(mut self, change: impl FnOnce(OpenOptions) -> OpenOptions) -> Self {
        self.open = change(self.open);
        self
    }

    /// Returns the shape with another device size.
    pub fn size(mut self, bytes: u64) -> Self {
        self.size = bytes;
        self
    }

    /// Returns the shape with another number of devices.
    pub fn devices(mut self, devices: usize) -> Self {
        self.devices = devices;
        self
    }

    /// Makes the file system in memory.
    ///
    /// # Errors
    /// The error of `mkfs`.
    ///
    /// # Panics
    /// If the shape has several devices.
    pub fn make(&self) -> papilio::Result<Arc<MemoryDevice>> {
        let [device] = <[_; 1]>::try_from(self.make_devices()?).expect("the shape has one device");
        Ok(device)
    }

    /// Makes the file system in memory, on all of its devices.
    ///
    /// # Errors
    /// The error of `mkfs`.
    pub fn make_devices(&self) -> papilio::Result<Vec<Arc<MemoryDevice>>> {
        let devices: Vec<_> = (0..self.devices).map(|_| Arc::new(MemoryDevice::new(self.size))).collect();
        let shared: Vec<Arc<dyn Device>> =
            devices.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect();
        papilio::mkfs_devices(&shared, &self.mkfs)?;
        Ok(devices)
    }

    /// Returns shapes that cover each value of each choice at least once: node sizes, checksums,
    /// compression, features, and nearly full devices.
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
                .open(|open| open.dirty_bytes(1 << 20).discard(DiscardMode::Sync).max_inline(0)),
            Self::new("discard in the background, no free space tree")
                .mkfs(feature(MkfsFeature::FreeSpaceTree, false))
                .open(|open| open.dirty_bytes(1 << 20).discard(DiscardMode::Async)),
            Self::new("full").size(SMALL),
            Self::new("full, mixed, explicit holes")
                .mkfs(feature(MkfsFeature::MixedGroups, true))
                .mkfs(feature(MkfsFeature::NoHoles, false))
                .size(18 << 20),
            Self::new("full, node 65536").mkfs(|mkfs| mkfs.node_size(65536)).size(SMALL),
            Self::new("sector 16384, zlib")
                .mkfs(|mkfs| mkfs.sector_size(16384))
                .open(compress(Compression::Zlib)),
            Self::new("sector 65536, lzo")
                .mkfs(|mkfs| mkfs.sector_size(65536))
                .open(compress(Compression::Lzo)),
            Self::new("sector 8192, cached, zstd, explicit holes")
                .mkfs(|mkfs| mkfs.sector_size(8192))
                .mkfs(feature(MkfsFeature::NoHoles, false))
                .open(|open| open.cache_bytes(CACHE).compress(CompressionChoice::new(Compression::Zstd))),
            Self::new("cached").open(|open| open.cache_bytes(CACHE)),
            Self::new("cached, zstd, explicit holes, node 4096")
                .mkfs(|mkfs| mkfs.node_size(4096))
                .mkfs(feature(MkfsFeature::NoHoles, false))
                .open(|open| open.cache_bytes(CACHE).compress(CompressionChoice::new(Compression::Zstd))),
            Self::new("cached, full").size(SMALL).open(|open| open.cache_bytes(CACHE)),
        ]
    }
}

/// Bytes of a page cache that holds only part of the written data.
const CACHE: u64 = 4 << 20;
/// Bytes of a device that files fill quickly.
const SMALL: u64 = 120 << 20;
