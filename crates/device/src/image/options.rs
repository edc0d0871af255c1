//! `ImageOptions`: how a disk image is opened.

use super::choice::PartitionChoice;
use crate::object_stores::RemoteOptions;

/// How to open a disk image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageOptions {
    /// The partition, if the image has several and its path names none.
    pub partition: PartitionChoice,
    /// Whether the image may name files outside of its own directory as its parts. An image from an
    /// untrusted source could name any file that the caller may read.
    pub allow_backing: bool,
    /// How an image at a URL is read.
    pub remote: RemoteOptions,
}
