//! The search of trees for items.
//!
//! Kernel counterparts: `btrfs_ioctl_tree_search`, `btrfs_ioctl_tree_search_v2`, `copy_to_sk`
//! (`fs/btrfs/ioctl.c`).

use super::call::{IoctlCall, IoctlReply, Result};
use super::caller_memory::BlockedCaller;
use crate::numbers::own_number;
use papilio::format::{Generation, ItemType, Key, TreeId};
use papilio_ioctl::Errno;
use papilio_ioctl::layout::{SearchArgs, SearchArgsV2, SearchHeader, SearchKey};
use zerocopy::IntoBytes;

/// Most bytes that a search returns at once.
const LARGEST_BUFFER: u64 = 16 << 20;

/// The items that a search found.
struct Found {
    bytes: Vec<u8>,
    items: u32,
    /// Space that the first item would take, if it does not fit at all.
    too_large: Option<u64>,
}

/// Searches with space for `space` bytes of items and their headers.
///
/// A caller may know an inode by the number that the mount shows. The headers then have that
/// number, too, so that a caller can go on from them.
fn search(call: &IoctlCall<'_>, key: &SearchKey, space: u64) -> Result<Found> {
    let tree = if key.tree == 0 { call.inode.tree() } else { TreeId(key.tree) };
    let prefix = own_number(tree, key.min_objectid).map_or(0, |own| key.min_objectid - own);
    let of = |objectid: u64, kind: u32, offset| {
        let objectid = own_number(tree, objectid).filter(|_| prefix > 0).unwrap_or(objectid);
        u8::try_from(kind).map(|kind| Key::new(objectid, ItemType(kind), offset))
    };
    // A type above 255 lies behind all types.
    let Ok(first) = of(key.min_objectid, key.min_type, key.min_offset) else {
        return Ok(Found { bytes: Vec::new(), items: 0, too_large: None });
    };
    let last = of(key.max_objectid, key.max_type, key.max_offset).unwrap_or(Key::new(
        key.max_objectid,
        ItemType(u8::MAX),
        u64::MAX,
    ));
    let mut found = Found { bytes: Vec::new(), items: 0, too_large: None };
    call.fs.search_tree(
        tree,
        first..=last,
        Generation(key.min_generation),
        &mut |generation, at, data| {
            if generation.0 > key.max_generation {
                return true;
            }
            let mut header = SearchHeader {
                generation: generation.0,
                objectid: at.objectid | prefix,
                offset: at.offset,
                kind: at.item_type.0.into(),
                length: data.len() as u32,
            };
            let needed = (size_of::<SearchHeader>() + data.len()) as u64;
            if found.bytes.len() as u64 + needed > space {
                if found.items == 0 {
                    found.too_large = Some(needed);
                    // The caller learns of the item, but gets no data.
                    header.length = 0;
                    if size_of::<SearchHeader>() as u64 <= space {
                        found.bytes.extend_from_slice(header.as_bytes());
                        found.items = 1;
                    }
                }
                return false;
            }
            found.bytes.extend_from_slice(header.as_bytes());
            found.bytes.extend_from_slice(data);
            found.items += 1;
            found.items < key.items
        },
    )?;
    Ok(found)
}

pub(super) fn tree_search(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    call.must_be_administrator()?;
    let mut arguments = call.argument::<SearchArgs>()?;
    let found = search(call, &arguments.key, arguments.bytes.len() as u64)?;
    arguments.key.items = found.items;
    arguments.bytes[..found.bytes.len()].copy_from_slice(&found.bytes);
    call.reply(&arguments)
}

/// The items go to the caller's memory, behind the argument.
pub(super) fn tree_search_v2(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    call.must_be_administrator()?;
    let mut arguments = call.argument::<SearchArgsV2>()?;
    let caller = BlockedCaller::of(call)?;
    if arguments.size < size_of::<SearchHeader>() as u64 {
        arguments.size = size_of::<SearchHeader>() as u64;
        return Ok(IoctlReply { result: -libc::EOVERFLOW, ..call.reply(&arguments)? });
    }
    let found = search(call, &arguments.key, arguments.size.min(LARGEST_BUFFER))?;
    let target = call.address.checked_add(size_of::<SearchArgsV2>() as u64).ok_or(Errno(libc::EFAULT))?;
    caller.memory()?.write(target, &found.bytes)?;
    match found.too_large {
        None => {
            arguments.key.items = found.items;
            call.reply(&arguments)
        }
        Some(needed) => {
            arguments.size = needed;
            Ok(IoctlReply { result: -libc::EOVERFLOW, ..call.reply(&arguments)? })
        }
    }
}
