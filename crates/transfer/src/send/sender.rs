//! A send under way.
//!
//! Owns [`Sender`], the state of one stream, and [`CloneSource`].

use super::directory_times::DirectoryTimes;
use super::names::Names;
use super::stream::StreamWriter;
use papilio_engine::btree::Tree;
use papilio_engine::items::trees::OpenTree;
use papilio_engine::items::xattr::Xattr;
use papilio_format::{Generation, LogicalAddress, Uuid};
use papilio_fs::FileSystem;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A subvolume that the receiver has, with the identity by which it finds it.
pub(crate) struct CloneSource {
    pub(super) tree: Tree,
    pub(super) uuid: Uuid,
    pub(super) ctransid: Generation,
}

impl CloneSource {
    pub(super) fn of(open: &OpenTree) -> Self {
        let item = open.item();
        let uuid = if item.received_uuid.is_nil() { item.uuid } else { item.received_uuid };
        Self { tree: open.tree.clone(), uuid, ctransid: item.ctransid }
    }
}

/// The state of a stream that is being written.
pub(crate) struct Sender<'a> {
    pub(super) fs: &'a FileSystem,
    pub(super) names: Names<'a>,
    pub(super) sector_size: u32,
    pub(super) no_data: bool,
    pub(super) compressed: bool,
    pub(super) out: StreamWriter<'a>,
    /// The subvolume itself, then the parent, then the other sources of clones.
    pub(super) sources: Vec<CloneSource>,
    /// The extent that was looked up last, and what its references name.
    pub(super) last_hints: Option<(LogicalAddress, BTreeSet<(u64, u64)>)>,
    /// Directories whose times are still to be sent.
    pub(super) times: DirectoryTimes,
    /// Attributes of the root that new inodes would inherit. They are set last.
    pub(super) postponed: Vec<Xattr>,
    pub(super) new: Arc<OpenTree>,
    pub(super) old: Option<Arc<OpenTree>>,
}
