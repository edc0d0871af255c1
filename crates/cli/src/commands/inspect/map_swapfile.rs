//! `papilio inspect map-swapfile`, in the format of `btrfs inspect-internal map-swapfile`.
//!
//! Kernel counterpart: `btrfs_swap_activate` (`fs/btrfs/inode.c`), whose conditions are checked.

use crate::context::Context;
use crate::mounted::Target;
use crate::output::Output;
use crate::tree_source::{TreeSource, UsedChunk, range_of};
use anyhow::{anyhow, bail};
use papilio::format::items::chunk::RaidProfile;
use papilio::format::items::file_extent::{Compression, FileExtentContent, FileExtentItem};
use papilio::format::items::inode::{InodeFlags, InodeItem};
use papilio::format::{DeviceId, ItemType, TreeId};
use std::ffi::OsString;

/// Check that a file can be a swap file, and print where it begins on its device
///
/// The kernel swaps only to files that are not copied on write, not compressed, without holes, and
/// on one device with the profile single. The resume offset is for /sys/power/resume_offset.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file
    #[arg(value_name = "IMAGE:/PATH|PATH", value_hint = clap::ValueHint::AnyPath)]
    path: OsString,
    /// Print only the resume offset
    #[arg(short, long)]
    resume_offset: bool,
}

impl Args {
    /// Checks the file and prints the place.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let shown = self.path.display();
        let (source, tree, inode) = match Target::parse(&self.path)? {
            Target::Image(path) => {
                let inode = context.inode(&path, true)?;
                let fs = context.open(&path.image)?;
                (TreeSource::Image { fs, path: path.image }, inode.tree(), inode.number().0)
            }
            Target::Mounted(mounted) => {
                let source = TreeSource::of_mount(mounted)?;
                let TreeSource::Mounted { mounted, root } = &source else { unreachable!("made above") };
                let (_, inode) = root.place().map_err(|error| mounted.at(&error))?;
                (source, TreeId(0), inode)
            }
        };
        let start = first_byte(&source, tree, inode).map_err(|error| error.context(format!("{shown}")))?;
        let offset = start / rustix::param::page_size() as u64;
        let mut output = Output::new()?;
        match self.resume_offset {
            true => output.text(format_args!("{offset}\n"))?,
            false => {
                output.text(format_args!("Physical start: {start:>12}\nResume offset:  {offset:>12}\n"))?
            }
        }
        Ok(output.finish()?)
    }
}

/// Returns the offset on its device of the first byte of a file that can be a swap file.
fn first_byte(source: &TreeSource, tree: TreeId, inode: u64) -> anyhow::Result<u64> {
    let mut item = None;
    source.search(tree, range_of(inode, ItemType::INODE_ITEM), 0, |_, bytes| {
        item = Some(InodeItem::parse(bytes).map_err(|reason| anyhow!("inode {inode}: {reason}"))?);
        Ok(())
    })?;
    let Some(item) = item else { bail!("the inode is missing") };
    if item.kind() != Some(papilio::FileKind::Regular) {
        bail!("not a regular file");
    }
    if !item.flags.contains(InodeFlags::NODATACOW) {
        bail!("the file is copied on write; see mkswapfile, or chattr +C on an empty file");
    }
    if !item.flags.contains(InodeFlags::NODATASUM) {
        bail!("the file has checksums");
    }
    let chunks = source.chunks()?;
    let mut found: Option<(DeviceId, u64)> = None;
    let mut next = 0;
    source.search(tree, range_of(inode, ItemType::EXTENT_DATA), 0, |key, bytes| {
        if next >= item.size {
            return Ok(());
        }
        let extent = FileExtentItem::parse(bytes).map_err(|reason| anyhow!("file extent: {reason}"))?;
        if extent.compression != Compression::None {
            bail!("the file is compressed at offset {}", key.offset);
        }
        let part = match extent.content {
            FileExtentContent::Inline(_) => bail!("the file is stored in its metadata"),
            FileExtentContent::Regular(part) | FileExtentContent::Prealloc(part) => part,
        };
        if key.offset > next || part.disk_address.0 == 0 {
            bail!("the file has a hole at offset {next}");
        }
        next = key.offset.saturating_add(part.length);
        let (devid, physical) = place(&chunks, part.disk_address.0.saturating_add(part.offset))?;
        if found.is_some_and(|(first, _)| first != devid) {
            bail!("the file is on several devices");
        }
        found.get_or_insert((devid, physical));
        Ok(())
    })?;
    if next < item.size {
        bail!("the file has a hole at offset {next}");
    }
    found.map(|(_, physical)| physical).ok_or_else(|| anyhow!("the file is empty"))
}

fn place(chunks: &[UsedChunk], address: u64) -> anyhow::Result<(DeviceId, u64)> {
    let chunk = chunks
        .iter()
        .find(|chunk| (chunk.start.0..chunk.start.0.saturating_add(chunk.item.length)).contains(&address))
        .ok_or_else(|| anyhow!("no chunk has logical address {address}"))?;
    let profile = chunk.item.profile().map_err(|reason| anyhow!("chunk {}: {reason}", chunk.start))?;
    if profile != RaidProfile::Single {
        bail!("the profile of the data is {profile}, not single");
    }
    let places = chunk.item.places(address - chunk.start.0);
    let places = places.map_err(|reason| anyhow!("chunk {}: {reason}", chunk.start))?;
    Ok((places[0].devid, places[0].offset.0))
}
