//! `papilio subvolume find-new`, in the format of `btrfs subvolume find-new`.
//!
//! Finds file extents by their generation. Leaves and nodes of older transactions are not read, so
//! the cost follows the number of changes.

use crate::context::{Context, of_image};
use crate::mounted::Target;
use crate::output::{Output, json_bytes};
use crate::tree_source::TreeSource;
use crate::usage_error::UsageError;
use anyhow::anyhow;
use papilio::format::items::file_extent::{Compression, FileExtentContent, FileExtentItem};
use papilio::format::items::inode_ref::{InodeExtrefs, InodeRefs};
use papilio::format::{ItemType, Key, TreeId, objectid};
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::ffi::OsString;

/// List the file extents of a subvolume that were written since a generation
///
/// Deleted files and changes of attributes are not shown. The last line has the generation of the
/// subvolume's last change, from which the next run can start.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The subvolume
    #[arg(value_name = "IMAGE:/PATH|PATH", value_hint = clap::ValueHint::AnyPath)]
    path: OsString,
    /// The oldest generation to show
    #[arg(value_name = "GENERATION")]
    oldest: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A subvolume whose tree can be searched.
struct Source {
    trees: TreeSource,
    /// Its id, or 0 for the subvolume of a path in a mount.
    tree: TreeId,
}

/// A file extent of the subvolume.
struct ChangedExtent {
    inode: u64,
    start: u64,
    length: u64,
    address: u64,
    offset: u64,
    generation: u64,
    flags: Vec<&'static str>,
}

impl Args {
    /// Lists the extents.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let source = self.source(context)?;
        let generation = source.generation()?;
        let found = source.extents(self.oldest)?;
        let mut output = Output::new()?;
        let mut names = HashMap::new();
        let mut list = Vec::new();
        for extent in found {
            let name = source.name_of(extent.inode, &mut names)?;
            match self.json {
                true => list.push(extent.to_json(&name)),
                false => extent.print(&mut output, &name)?,
            }
        }
        if self.json {
            let object = serde_json::json!({ "extents": list, "generation": generation });
            output.text(format_args!("{object}\n"))?;
        } else {
            output.text(format_args!("transid marker was {generation}\n"))?;
        }
        Ok(output.finish()?)
    }

    fn source(&self, context: &Context) -> anyhow::Result<Source> {
        let none = || UsageError::new(format_args!("{}: not a subvolume", self.path.display()));
        let target = Target::parse(&self.path)?;
        context.confine_to_target(&target);
        match target {
            Target::Image(path) => {
                let inode = context.inode(&path, true)?;
                if inode.number() != objectid::FIRST_INODE || inode.is_subvolume_stub() {
                    return Err(none().into());
                }
                let fs = context.open(&path.image)?;
                Ok(Source { trees: TreeSource::Image { fs, path: path.image }, tree: inode.tree() })
            }
            Target::Mounted(mounted) => {
                if !mounted.open()?.is_subvolume_root().map_err(|error| mounted.at(&error))? {
                    return Err(none().into());
                }
                Ok(Source { trees: TreeSource::of_mount(mounted)?, tree: TreeId(0) })
            }
        }
    }
}

impl Source {
    /// Returns the generation of the subvolume's last change that was committed.
    fn generation(&self) -> anyhow::Result<u64> {
        match &self.trees {
            TreeSource::Image { fs, path } => {
                Ok(fs.subvolume(self.tree).map_err(|error| of_image(path, error))?.generation.0)
            }
            TreeSource::Mounted { mounted, root } => {
                Ok(root.subvolume_info().map_err(|error| mounted.at(&error))?.generation)
            }
        }
    }

    fn search(
        &self,
        keys: (Key, Key),
        oldest: u64,
        each: impl FnMut(Key, &[u8]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        self.trees.search(self.tree, keys, oldest, each)
    }

    fn extents(&self, oldest: u64) -> anyhow::Result<Vec<ChangedExtent>> {
        let mut found = Vec::new();
        self.search((Key::MIN, Key::MAX), oldest, |key, item| {
            if key.item_type == ItemType::EXTENT_DATA {
                let item = FileExtentItem::parse(item)
                    .map_err(|reason| anyhow!("file extent of inode {}: {reason}", key.objectid))?;
                found.extend((item.generation.0 >= oldest).then(|| ChangedExtent::of(key, &item)));
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// Returns the first name of an inode, from the subvolume's root. `known` remembers names.
    fn name_of(&self, inode: u64, known: &mut HashMap<u64, Vec<u8>>) -> anyhow::Result<Vec<u8>> {
        let mut path = Vec::new();
        let mut next = inode;
        // A directory that leads to itself would be damage.
        for _ in 0..1 << 12 {
            if next == objectid::FIRST_INODE.0 {
                break;
            }
            if let Some(known) = known.get(&next) {
                path = joined(known, &path);
                break;
            }
            let Some((parent, name)) = self.first_name(next)? else {
                path = joined(b"(deleted)", &path);
                break;
            };
            path = joined(&name, &path);
            next = parent;
        }
        known.insert(inode, path.clone());
        Ok(path)
    }

    fn first_name(&self, inode: u64) -> anyhow::Result<Option<(u64, Vec<u8>)>> {
        let mut first = None;
        let keys =
            (Key::new(inode, ItemType::INODE_REF, 0), Key::new(inode, ItemType::INODE_EXTREF, u64::MAX));
        self.search(keys, 0, |key, item| {
            let fault = |reason| anyhow!("names of inode {inode}: {reason}");
            let found = match key.item_type {
                ItemType::INODE_REF => {
                    let mut names = InodeRefs::parse(item).map_err(fault)?;
                    names.next().map(|name| (key.offset, name.name.to_vec()))
                }
                ItemType::INODE_EXTREF => {
                    let mut names = InodeExtrefs::parse(item).map_err(fault)?;
                    names.next().map(|name| (name.parent.0, name.name.to_vec()))
                }
                _ => None,
            };
            first = first.take().or(found);
            Ok(())
        })?;
        Ok(first)
    }
}

fn joined(directory: &[u8], rest: &[u8]) -> Vec<u8> {
    if rest.is_empty() { directory.to_vec() } else { [directory, b"/", rest].concat() }
}

impl ChangedExtent {
    fn of(key: Key, item: &FileExtentItem<'_>) -> Self {
        let (length, address, offset) = match item.content {
            FileExtentContent::Inline(_) => (item.ram_bytes, 0, 0),
            FileExtentContent::Regular(part) | FileExtentContent::Prealloc(part) => {
                (part.length, part.disk_address.0, part.offset)
            }
        };
        let flags = [
            (item.compression != Compression::None, "COMPRESS"),
            (matches!(item.content, FileExtentContent::Prealloc(_)), "PREALLOC"),
            (matches!(item.content, FileExtentContent::Inline(_)), "INLINE"),
        ];
        Self {
            inode: key.objectid,
            start: key.offset,
            length,
            address,
            offset,
            generation: item.generation.0,
            flags: flags.into_iter().filter_map(|(set, name)| set.then_some(name)).collect(),
        }
    }

    fn print(&self, output: &mut Output, name: &[u8]) -> anyhow::Result<()> {
        let flags = if self.flags.is_empty() { "NONE".to_owned() } else { self.flags.join("|") };
        output.text(format_args!(
            "inode {} file offset {} len {} disk start {} offset {} gen {} flags {flags} ",
            self.inode, self.start, self.length, self.address, self.offset, self.generation
        ))?;
        output.name(name)?;
        Ok(output.text(format_args!("\n"))?)
    }

    fn to_json(&self, name: &[u8]) -> Value {
        let mut object = Map::new();
        json_bytes(&mut object, "path", name);
        for (field, value) in [
            ("inode", self.inode),
            ("file_offset", self.start),
            ("length", self.length),
            ("disk_start", self.address),
            ("offset", self.offset),
            ("generation", self.generation),
        ] {
            object.insert(field.into(), value.into());
        }
        object.insert("flags".into(), self.flags.clone().into());
        object.into()
    }
}
