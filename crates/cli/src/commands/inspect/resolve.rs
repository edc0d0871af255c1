//! `papilio inspect rootid`, `inode-resolve`, `logical-resolve`, `subvolid-resolve` and
//! `min-dev-size`.

use super::host_paths::HostPaths;
use crate::context::{Context, of_image};
use crate::mounted::{Mounted, Target};
use crate::output::Output;
use crate::tree_source::{TreeSource, range_of};
use anyhow::bail;
use papilio::format::items::device::DeviceExtent;
use papilio::format::{DeviceId, InodeNumber, ItemType, Key, LogicalAddress, TreeId, objectid};
use papilio::{AddressUse, ExtentOwner, FileSystem};
use rustix::io::Errno;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Print the id of the subvolume that contains a path
#[derive(Debug, clap::Args)]
pub struct RootId {
    /// The path
    #[arg(value_name = "IMAGE:/PATH|PATH", value_hint = clap::ValueHint::AnyPath)]
    path: OsString,
}

/// Print the paths of an inode
#[derive(Debug, clap::Args)]
pub struct InodeResolve {
    /// The inode number
    inode: u64,
    /// A path in the inode's subvolume
    #[arg(value_name = "IMAGE:/PATH|PATH", value_hint = clap::ValueHint::AnyPath)]
    path: OsString,
}

/// Print the paths of the files whose data is at a logical address
#[derive(Debug, clap::Args)]
pub struct LogicalResolve {
    /// Print inodes, offsets and subvolume ids instead of paths
    #[arg(short = 'P')]
    numbers: bool,
    /// All files that use any byte of the extent
    #[arg(short = 'o')]
    whole_extent: bool,
    /// The memory for the kernel's answer, in bytes; only for mounts
    #[arg(short, value_name = "SIZE", value_parser = crate::units::parse_size, default_value = "64k")]
    size: u64,
    /// The address in bytes
    logical: u64,
    /// The image or device, or a directory in a mount
    #[arg(value_name = "IMAGE|PATH", value_hint = clap::ValueHint::AnyPath)]
    image: PathBuf,
}

/// Print the path of the subvolume with this id
#[derive(Debug, clap::Args)]
pub struct SubvolidResolve {
    /// The id
    id: u64,
    /// The image or device, or a directory in a mount
    #[arg(value_name = "IMAGE|PATH", value_hint = clap::ValueHint::AnyPath)]
    path: OsString,
}

/// Print the smallest size that a device can be resized to without moving data
#[derive(Debug, clap::Args)]
pub struct MinDevSize {
    /// The device
    #[arg(long = "id", value_name = "DEVID", default_value_t = 1)]
    id: u64,
    /// The image or device, or a directory in a mount
    #[arg(value_name = "IMAGE|PATH", value_hint = clap::ValueHint::AnyPath)]
    image: PathBuf,
}

/// Returns the paths of an inode, from the top level.
pub fn paths_of(fs: &FileSystem, tree: TreeId, inode: InodeNumber) -> papilio::Result<Vec<Vec<u8>>> {
    let prefix = match tree {
        objectid::FS_TREE => Vec::new(),
        tree => {
            let path = fs.subvolume(tree)?.path.unwrap_or_else(|| format!("(subvolume {tree})").into());
            [b"/", &path[..]].concat()
        }
    };
    let mut paths = Vec::new();
    for (mut parent, name) in fs.inode_at(tree, inode)?.names()? {
        let mut path = [b"/", &name[..]].concat();
        // A directory has one name. One that leads to itself would be damage.
        for _ in 0..1 << 16 {
            if parent == objectid::FIRST_INODE {
                break;
            }
            let Some((next, name)) = fs.inode_at(tree, parent)?.names()?.pop() else { break };
            path = [b"/", &name[..], &path[..]].concat();
            parent = next;
        }
        paths.push([&prefix[..], &path[..]].concat());
    }
    Ok(paths)
}

fn print_paths(output: &mut Output, paths: Vec<Vec<u8>>) -> anyhow::Result<()> {
    for path in paths {
        output.name(&path)?;
        output.text(format_args!("\n"))?;
    }
    Ok(())
}

fn print_owner(output: &mut Output, owner: &ExtentOwner) -> anyhow::Result<()> {
    let (inode, offset, tree) = (owner.inode.0, owner.offset, owner.tree.0);
    Ok(output.text(format_args!("inode {inode} offset {offset} root {tree}\n"))?)
}

impl RootId {
    /// Prints the id.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let target = Target::parse(&self.path)?;
        context.confine_to_target(&target);
        let id = match target {
            Target::Image(path) => context.inode(&path, true)?.tree(),
            Target::Mounted(mounted) => mounted.open()?.subvolume_id().map_err(|error| mounted.at(&error))?,
        };
        let mut output = Output::new()?;
        output.text(format_args!("{}\n", id.0))?;
        Ok(output.finish()?)
    }
}

impl InodeResolve {
    /// Prints the paths.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let target = Target::parse(&self.path)?;
        context.confine_to_target(&target);
        let path = match target {
            Target::Image(path) => path,
            Target::Mounted(mounted) => return self.run_mounted(&mounted),
        };
        let tree = context.inode(&path, true)?.tree();
        let fs = context.open(&path.image)?;
        let paths = paths_of(&fs, tree, InodeNumber(self.inode));
        let mut output = Output::new()?;
        print_paths(&mut output, paths.map_err(|error| context.at(&path, &error))?)?;
        Ok(output.finish()?)
    }
}

/// Prefixes paths inside a subvolume.
fn below(prefix: &[u8], paths: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let slash: &[u8] = if prefix.ends_with(b"/") { b"" } else { b"/" };
    paths.into_iter().map(|path| [prefix, slash, &path].concat()).collect()
}

impl InodeResolve {
    /// As `btrfs` does, puts the given path in front.
    fn run_mounted(&self, mounted: &Mounted) -> anyhow::Result<()> {
        let paths = mounted.open()?.inode_paths(TreeId(0), InodeNumber(self.inode));
        let paths = paths.map_err(|error| mounted.at(&error))?;
        let mut output = Output::new()?;
        print_paths(&mut output, below(self.path.as_bytes(), paths))?;
        Ok(output.finish()?)
    }
}

impl LogicalResolve {
    /// Prints paths of the host, below a mount that shows them.
    fn run_mounted(&self, context: &Context, mounted: &Mounted) -> anyhow::Result<()> {
        let mount = mounted.open()?;
        let address = LogicalAddress(self.logical);
        mount.sync().map_err(|error| mounted.at(&error))?;
        let size = self.size.clamp(4096, 16 << 20) as usize;
        let owners = mount.extent_owners(address, self.whole_extent, size);
        let (owners, missed) =
            owners.map_err(|error| match error.raw_os_error().map(Errno::from_raw_os_error) {
                Some(Errno::NOENT) => anyhow::anyhow!("{mounted}: nothing is at logical address {address}"),
                Some(Errno::INVAL) => anyhow::anyhow!("{mounted}: a tree block is at {address}"),
                _ => mounted.at(&error),
            })?;
        let subvolumes = mount.subvolumes().map_err(|error| mounted.at(&error))?;
        let shown = HostPaths::of(mounted, &mount, &subvolumes)?;
        let mut output = Output::new()?;
        for owner in owners {
            if self.numbers {
                print_owner(&mut output, &owner)?;
                continue;
            }
            let path = subvolumes.iter().find(|one| one.id == owner.tree).and_then(|one| one.path.clone());
            let path = path.unwrap_or_else(|| format!("(subvolume {})", owner.tree).into());
            let prefix = if path.is_empty() { path } else { [b"/", &path[..]].concat() };
            let paths = mount.inode_paths(owner.tree, owner.inode).map_err(|error| mounted.at(&error))?;
            for path in below(&prefix, paths) {
                match shown.find(&path) {
                    Some(path) => print_paths(&mut output, vec![path])?,
                    None => {
                        output.text(format_args!("inode {} of the subvolume ", owner.inode.0))?;
                        output.name(if prefix.is_empty() { b"/" } else { &prefix })?;
                        output.text(format_args!(": not mounted\n"))?;
                    }
                }
            }
        }
        if missed > 0 {
            context.error(format_args!("{mounted}: {missed} files are left out; give more memory with -s"));
        }
        Ok(output.finish()?)
    }

    /// Prints the owners.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        if let Target::Mounted(mounted) = Target::parse(self.image.as_os_str())? {
            return self.run_mounted(context, &mounted);
        }
        context.confine_to_images([self.image.clone()]);
        let fs = context.open(&self.image)?;
        let named = |error| of_image(&self.image, error);
        let address = LogicalAddress(self.logical);
        let mut output = Output::new()?;
        let mut unread = Vec::new();
        let owners = fs.extent_owners_leaving_out(address, self.whole_extent, |tree, error| {
            unread.push((tree, error));
        });
        match owners.map_err(named)? {
            AddressUse::Free => bail!("{}: nothing is at logical address {address}", self.image.display()),
            AddressUse::TreeBlock => bail!("{}: a tree block is at {address}", self.image.display()),
            AddressUse::Data(owners) => {
                for owner in owners {
                    if self.numbers {
                        print_owner(&mut output, &owner)?;
                        continue;
                    }
                    match paths_of(&fs, owner.tree, owner.inode) {
                        Ok(paths) => print_paths(&mut output, paths)?,
                        Err(error) => unread.push((Some(owner.tree), error)),
                    }
                }
            }
        }
        for (tree, error) in unread {
            let image = self.image.display();
            match tree {
                Some(tree) => {
                    context.error(format_args!("{image}: subvolume {tree}: files are left out: {error}"));
                }
                None => context.error(format_args!("{image}: files of a shared leaf are left out: {error}")),
            }
        }
        Ok(output.finish()?)
    }
}

impl SubvolidResolve {
    /// Prints the path.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let target = Target::parse(&self.path)?;
        context.confine_to_target(&target);
        let subvolumes = match target {
            Target::Image(path) => context.open(&path.image)?.subvolumes()?,
            Target::Mounted(mounted) => mounted.open()?.subvolumes().map_err(|error| mounted.at(&error))?,
        };
        let path = match TreeId(self.id) {
            objectid::FS_TREE => Vec::new(),
            id => match subvolumes.into_iter().find(|subvolume| subvolume.id == id) {
                Some(subvolume) => subvolume.path.unwrap_or(subvolume.name),
                None => bail!("{}: no subvolume has id {id}", self.path.display()),
            },
        };
        let mut output = Output::new()?;
        print_paths(&mut output, vec![path])?;
        Ok(output.finish()?)
    }
}

impl MinDevSize {
    /// Prints the size.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let size = match Target::parse(self.image.as_os_str())? {
            Target::Image(_) => {
                let fs = context.change(&self.image)?;
                fs.minimum_size(DeviceId(self.id)).map_err(|error| of_image(&self.image, error))?
            }
            Target::Mounted(mounted) => last_end(mounted, self.id)?,
        };
        let mut output = Output::new()?;
        output.text(format_args!("{size} bytes ({})\n", crate::units::Units::HUMAN.text(size)))?;
        Ok(output.finish()?)
    }
}

/// Returns the end of the last chunk on a device of a mount.
fn last_end(mounted: Mounted, devid: u64) -> anyhow::Result<u64> {
    let shown = mounted.to_string();
    let source = TreeSource::of_mount(mounted)?;
    let mut known = false;
    let item = Key::new(objectid::DEV_ITEMS, ItemType::DEV_ITEM, devid);
    source.search(objectid::CHUNK_TREE, (item, item), 0, |_, _| {
        known = true;
        Ok(())
    })?;
    if !known {
        bail!("{shown}: the file system has no device {devid}");
    }
    let mut end = 0;
    source.search(objectid::DEV_TREE, range_of(devid, ItemType::DEV_EXTENT), 0, |key, bytes| {
        let extent = DeviceExtent::parse(bytes).map_err(|reason| {
            anyhow::anyhow!("{shown}: extent {} of device {devid}: {reason}", key.offset)
        })?;
        end = key.offset.saturating_add(extent.length);
        Ok(())
    })?;
    Ok(end)
}
