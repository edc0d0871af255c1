//! Metadata dumps: the files that `btrfs-image` writes.
//!
//! Owns [`Cluster`], the index of one part of a dump.
//!
//! A dump is a sequence of clusters. Each is a header of 1,024 bytes, then the bytes of its items
//! one after the other, then zeros up to a multiple of 1,024 bytes. An item is a range of logical
//! addresses: one or more tree blocks, or data. The item at [`SUPERBLOCK_ADDRESS`] is the
//! superblock instead. The bytes of an item are compressed by zlib if the header says so.
//!
//! Source: `image/metadump.h` of btrfs-progs.

use crate::disk::OnDisk;
use crate::error::Corrupt;
use crate::parse::disk_struct;
use crate::units::LogicalAddress;
use zerocopy::IntoBytes;

/// Size of a cluster's header, and what a cluster's size is a multiple of, in bytes.
pub const CLUSTER_ALIGNMENT: usize = 1024;
/// Most items of a cluster.
pub const CLUSTER_ITEMS: usize = (CLUSTER_ALIGNMENT - ClusterHeader::SIZE) / ClusterItem::SIZE;
/// The address that stands for the superblock.
pub const SUPERBLOCK_ADDRESS: LogicalAddress = LogicalAddress(64 << 10);

disk_struct! {
    /// The fixed part of a cluster's header.
    pub struct ClusterHeader as ClusterHeaderDisk = 21 {
        /// That of a [`DumpVersion`].
        pub magic: u64,
        /// Where the cluster starts in the dump, in bytes.
        pub start: u64,
        /// Number of items.
        pub item_count: u32,
        /// 0 for none, 1 for zlib.
        pub compression: u8,
    }
}

disk_struct! {
    /// One item of a cluster.
    pub struct ClusterItem as ClusterItemDisk = 12 {
        /// The first logical address.
        pub address: LogicalAddress,
        /// Bytes in the dump, compressed or not.
        pub size: u32,
    }
}

/// The content of a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DumpVersion {
    /// Metadata alone.
    Metadata,
    /// Metadata and data.
    Data,
}

impl DumpVersion {
    /// Returns the magic number of every cluster.
    pub const fn magic(self) -> u64 {
        match self {
            Self::Metadata => 0xbd5c_25e2_7295_668b,
            Self::Data => 0x3176_5f50_6d55_445f,
        }
    }

    /// Returns the most bytes of an item, uncompressed, that a writer should make.
    pub const fn item_limit(self) -> usize {
        match self {
            Self::Metadata => 256 << 10,
            Self::Data => 1 << 20,
        }
    }
}

/// The header of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// The content of the dump.
    pub version: DumpVersion,
    /// Whether items are compressed by zlib.
    pub compressed: bool,
    /// The items, in the order of their bytes.
    pub items: Vec<ClusterItem>,
}

impl Cluster {
    /// Decodes the header at byte `start` of a dump.
    ///
    /// # Errors
    /// The first field that is wrong.
    pub fn parse(bytes: &[u8; CLUSTER_ALIGNMENT], start: u64) -> Result<Self, Corrupt> {
        let bad = |field, value, why| Err(Corrupt::field("cluster", field, value, why));
        let (header, mut rest) = ClusterHeader::parse_prefix(bytes)?;
        let versions = [DumpVersion::Metadata, DumpVersion::Data];
        let Some(version) = versions.into_iter().find(|version| version.magic() == header.magic) else {
            return bad("magic", header.magic, "not that of a metadata dump");
        };
        if header.start != start {
            return bad("start", header.start, "not its place in the dump");
        }
        if header.item_count as usize > CLUSTER_ITEMS {
            return bad("item count", header.item_count.into(), "more than the header can hold");
        }
        if header.compression > 1 {
            return bad("compression", header.compression.into(), "neither 0 for none nor 1 for zlib");
        }
        let mut items = Vec::with_capacity(header.item_count as usize);
        for _ in 0..header.item_count {
            let (item, after) = ClusterItem::parse_prefix(rest)?;
            items.push(item);
            rest = after;
        }
        Ok(Self { version, compressed: header.compression == 1, items })
    }

    /// Encodes the header for byte `start` of a dump.
    ///
    /// # Panics
    /// With more than [`CLUSTER_ITEMS`] items.
    pub fn to_bytes(&self, start: u64) -> [u8; CLUSTER_ALIGNMENT] {
        assert!(self.items.len() <= CLUSTER_ITEMS, "a cluster has at most {CLUSTER_ITEMS} items");
        let header = ClusterHeader {
            magic: self.version.magic(),
            start,
            item_count: self.items.len() as u32,
            compression: u8::from(self.compressed),
        };
        let mut bytes = [0; CLUSTER_ALIGNMENT];
        bytes[..ClusterHeader::SIZE].copy_from_slice(&header.to_bytes());
        for (item, place) in
            self.items.iter().zip(bytes[ClusterHeader::SIZE..].chunks_exact_mut(ClusterItem::SIZE))
        {
            place.copy_from_slice(item.to_disk().as_bytes());
        }
        bytes
    }

    /// Returns the bytes of all items, without the padding behind them.
    pub fn item_bytes(&self) -> u64 {
        self.items.iter().map(|item| u64::from(item.size)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_survive_encoding() {
        let item = |number: u32| ClusterItem { address: LogicalAddress(number.into()), size: number };
        for count in [0, 1, CLUSTER_ITEMS as u32] {
            let items: Vec<_> = (0..count).map(item).collect();
            let cluster = Cluster { version: DumpVersion::Data, compressed: true, items };
            assert_eq!(Cluster::parse(&cluster.to_bytes(2048), 2048).unwrap(), cluster);
        }
        assert_eq!(CLUSTER_ITEMS, 83);
    }

    #[test]
    fn wrong_headers_are_refused() {
        let cluster = Cluster { version: DumpVersion::Metadata, compressed: false, items: Vec::new() };
        let good = cluster.to_bytes(0);
        assert!(Cluster::parse(&good, 1024).unwrap_err().to_string().contains("place"));
        for (at, part) in [(0, "magic"), (16, "item count"), (20, "compression")] {
            let mut bytes = good;
            bytes[at] ^= 0xff;
            assert!(Cluster::parse(&bytes, 0).unwrap_err().to_string().contains(part), "{at}");
        }
    }
}
