//! Notifications: messages to the kernel that answer no request.
//!
//! Owns [`Notification`] and its encoding.
//!
//! Kernel counterpart: `fuse_notify` (`fs/fuse/dev.c`).

use super::layout::{InvalidateEntry, InvalidateInode, OutHeader, StoreOut, notification};
use crate::transport::NodeId;
use zerocopy::IntoBytes;

/// A message that makes the kernel change its caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notification<'a> {
    /// Writes back a file's dirty pages and drops all of its pages and attributes. For a directory
    /// it drops the cached listing.
    Data(NodeId),
    /// Drops the pages of a range, given as file offset and length in bytes, and the attributes.
    Pages(NodeId, u64, u64),
    /// Drops a node's attributes.
    Attributes(NodeId),
    /// Drops a directory entry and the directory's attributes.
    Entry(NodeId, &'a [u8]),
    /// Stores bytes of a file at this offset in the kernel's cache. The file grows if they lie
    /// after its end.
    Store(NodeId, u64, &'a [u8]),
}

impl Notification<'_> {
    /// Encodes the message, which goes to the kernel in one write.
    pub(crate) fn encode(self) -> Vec<u8> {
        match self {
            // Length 0 means up to the end of the file. A negative offset leaves pages alone.
            Self::Data(node) => inode(node, 0, 0),
            Self::Pages(node, offset, length) => inode(node, offset as i64, length as i64),
            Self::Attributes(node) => inode(node, -1, 0),
            Self::Entry(directory, name) => {
                let body =
                    InvalidateEntry { directory: directory.0, name_length: name.len() as u32, flags: 0 };
                message(notification::INVALIDATE_ENTRY, &[body.as_bytes(), name, b"\0"])
            }
            Self::Store(node, offset, bytes) => {
                let body = StoreOut { node: node.0, offset, size: bytes.len() as u32, padding: 0 };
                message(notification::STORE, &[body.as_bytes(), bytes])
            }
        }
    }
}

fn inode(node: NodeId, offset: i64, length: i64) -> Vec<u8> {
    let body = InvalidateInode { node: node.0, offset, length };
    message(notification::INVALIDATE_INODE, &[body.as_bytes()])
}

/// A notification's code stands where a reply has its error. It answers request 0.
fn message(code: i32, parts: &[&[u8]]) -> Vec<u8> {
    let bytes = parts.iter().map(|part| part.len()).sum::<usize>() + size_of::<OutHeader>();
    let header = OutHeader { length: bytes as u32, error: code, unique: 0 };
    let mut message = Vec::with_capacity(bytes);
    message.extend_from_slice(header.as_bytes());
    parts.iter().for_each(|part| message.extend_from_slice(part));
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notifications_have_the_kernels_layout() {
        let bytes = Notification::Entry(NodeId(5), b"name").encode();
        assert_eq!(bytes.len(), 16 + 16 + 5);
        assert_eq!(bytes[..4], 37_u32.to_ne_bytes());
        assert_eq!(bytes[4..8], 3_i32.to_ne_bytes());
        assert_eq!(bytes[8..16], [0; 8]);
        assert_eq!((&bytes[16..24], &bytes[24..28]), (&5_u64.to_ne_bytes()[..], &4_u32.to_ne_bytes()[..]));
        assert_eq!(bytes[32..], *b"name\0");
        let bytes = Notification::Store(NodeId(7), 9, b"x").encode();
        assert_eq!((bytes.len(), bytes[40], &bytes[4..8]), (41, b'x', &4_i32.to_ne_bytes()[..]));
        assert_eq!((&bytes[24..32], &bytes[32..36]), (&9_u64.to_ne_bytes()[..], &1_u32.to_ne_bytes()[..]));
        let bytes = Notification::Attributes(NodeId(6)).encode();
        assert_eq!((bytes.len(), &bytes[24..32]), (40, &(-1_i64).to_ne_bytes()[..]));
    }
}
