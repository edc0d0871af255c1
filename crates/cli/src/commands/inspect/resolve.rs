//! `papilio inspect rootid`, `inode-resolve`, `logical-resolve`, `subvolid-resolve` and
//! `min-dev-size`.

use crate::context::{Context, of_image};
use crate::mounted::Target;
use crate::output::Output;
use anyhow::bail;
use papilio::format::{DeviceId, InodeNumber, LogicalAddress, TreeId, objectid};
use papilio::{AddressUse, FileSystem};
use std::ffi::OsString;
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
    #[arg(value_name = "IMAGE:/PATH", value_hint = clap::ValueHint::AnyPath)]
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
    /// The address in bytes
    logical: u64,
    /// The image or device
    #[arg(value_hint = clap::ValueHint::FilePath)]
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
    /// The image or device
    #[arg(value_hint = clap::ValueHint::FilePath)]
    image: PathBuf,
}

/// Returns the paths of an inode, from the top level.
fn paths_of(fs: &FileSystem, tree: TreeId, inode: InodeNumber) -> papilio::Result<Vec<Vec<u8>>> {
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

impl RootId {
    /// Prints the id.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let id = match Target::parse(&self.path)? {
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
        let Target::Image(path) = Target::parse(&self.path)? else {
            bail!("{}: inode-resolve works on images that are not mounted", self.path.display());
        };
        let tree = context.inode(&path, true)?.tree();
        let fs = context.open(&path.image)?;
        let paths = paths_of(&fs, tree, InodeNumber(self.inode));
        let mut output = Output::new()?;
        print_paths(&mut output, paths.map_err(|error| context.at(&path, &error))?)?;
        Ok(output.finish()?)
    }
}

impl LogicalResolve {
    /// Prints the owners.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let fs = context.open(&self.image)?;
        let named = |error| of_image(&self.image, error);
        let address = LogicalAddress(self.logical);
        let mut output = Output::new()?;
        match fs.extent_owners(address, self.whole_extent).map_err(named)? {
            AddressUse::Free => bail!("{}: nothing is at logical address {address}", self.image.display()),
            AddressUse::TreeBlock => bail!("{}: a tree block is at {address}", self.image.display()),
            AddressUse::Data(owners) => {
                for owner in owners {
                    if self.numbers {
                        let (inode, offset, tree) = (owner.inode.0, owner.offset, owner.tree.0);
                        output.text(format_args!("inode {inode} offset {offset} root {tree}\n"))?;
                    } else {
                        print_paths(&mut output, paths_of(&fs, owner.tree, owner.inode).map_err(named)?)?;
                    }
                }
            }
        }
        Ok(output.finish()?)
    }
}

impl SubvolidResolve {
    /// Prints the path.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let subvolumes = match Target::parse(&self.path)? {
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
        let fs = context.change(&self.image)?;
        let size = fs.minimum_size(DeviceId(self.id)).map_err(|error| of_image(&self.image, error))?;
        let mut output = Output::new()?;
        output.text(format_args!("{size} bytes ({})\n", crate::units::Units::HUMAN.text(size)))?;
        Ok(output.finish()?)
    }
}
