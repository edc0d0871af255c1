//! `papilio property`: the properties of `btrfs property`.

use crate::commands::filesystem::UsageSource;
use crate::context::Context;
use crate::host_calls;
use crate::mounted::{Mounted, Target};
use crate::output::Output;
use crate::usage_error::UsageError;
use papilio::{Generation, PathError, Received, Timespec, Uuid, XattrSet};
use papilio_ioctl::mount_table::MountEntry;
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::fd::AsFd;
use std::path::Path;

const COMPRESSION: &str = "btrfs.compression";
/// The mark of a subvolume that was not received.
const NOT_RECEIVED: Received =
    Received { uuid: Uuid::nil(), sent: Generation(0), send_time: Timespec { seconds: 0, nanoseconds: 0 } };

/// Show and set properties of subvolumes and files
///
/// Subvolumes have the property ro, files and directories have compression, and file systems have
/// label.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Subcommand,
}

#[derive(Debug, clap::Subcommand)]
enum Subcommand {
    Get(Get),
    Set(Set),
    List(List),
}

/// Show one or all properties
#[derive(Debug, clap::Args)]
struct Get {
    #[command(flatten)]
    of: ObjectArgs,
    /// The file, directory or subvolume
    #[arg(value_name = "IMAGE:/PATH|PATH", value_hint = clap::ValueHint::AnyPath)]
    path: OsString,
    /// The property; without it, all of them
    name: Option<Name>,
}

/// Set a property
#[derive(Debug, clap::Args)]
struct Set {
    #[command(flatten)]
    of: ObjectArgs,
    /// The file, directory or subvolume
    #[arg(value_name = "IMAGE:/PATH|PATH", value_hint = clap::ValueHint::AnyPath)]
    path: OsString,
    /// The property
    name: Name,
    /// The value: true or false for ro; for compression, zlib, lzo, zstd, none, or "" for the
    /// default
    value: String,
    /// Make a received subvolume writable, which ends its use as a parent of further streams
    #[arg(short, long)]
    force: bool,
}

/// List the properties that a file or subvolume has
#[derive(Debug, clap::Args)]
struct List {
    #[command(flatten)]
    of: ObjectArgs,
    /// The file, directory or subvolume
    #[arg(value_name = "IMAGE:/PATH|PATH", value_hint = clap::ValueHint::AnyPath)]
    path: OsString,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Name {
    /// Whether a subvolume is read-only
    Ro,
    /// The compression of data that is written to a file
    Compression,
    /// The label of a file system
    Label,
}

/// The kind of object, for names that several kinds have.
#[derive(Clone, Copy, Debug, clap::Args)]
struct ObjectArgs {
    /// The type of the object: inode, subvol, filesystem or device, or the first letter of one
    ///
    /// A file or directory is an inode and has the property compression, a subvolume has ro, and a
    /// file system or device has label.
    #[arg(short = 't', long = "type", value_name = "TYPE", value_parser = parse_object)]
    object: Option<Object>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Object {
    Inode,
    Subvolume,
    FileSystem,
    Device,
}

fn parse_object(text: &str) -> Result<Object, String> {
    match text {
        "i" | "inode" => Ok(Object::Inode),
        "s" | "subvol" => Ok(Object::Subvolume),
        "f" | "filesystem" => Ok(Object::FileSystem),
        "d" | "device" => Ok(Object::Device),
        _ => Err("not inode, subvol, filesystem or device".to_owned()),
    }
}

impl ObjectArgs {
    /// Returns the property to show: that which was named, or the only one of the type.
    ///
    /// # Errors
    /// The type does not have the property.
    fn property(self, name: Option<Name>) -> Result<Option<Name>, UsageError> {
        let own = match self.object {
            None => return Ok(name),
            Some(Object::Inode) => Name::Compression,
            Some(Object::Subvolume) => Name::Ro,
            Some(Object::FileSystem | Object::Device) => Name::Label,
        };
        match name {
            Some(name) if name != own => {
                Err(UsageError::new("property: objects of this type have no such property"))
            }
            _ => Ok(Some(own)),
        }
    }
}

impl Args {
    /// Runs the subcommand.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        match self.command {
            Subcommand::Get(get) => get.run(context),
            Subcommand::Set(set) => set.run(context),
            Subcommand::List(list) => list.run(context),
        }
    }
}

impl List {
    fn run(self, context: &Context) -> anyhow::Result<()> {
        if let Some(object) = self.of.object {
            return list_type(object);
        }
        let is_subvolume = match Target::parse(&self.path)? {
            Target::Image(path) => context.inode(&path, true)?.is_subvolume_root(),
            Target::Mounted(mounted) => {
                mounted.open()?.is_subvolume_root().map_err(|error| mounted.at(&error))?
            }
        };
        let mut output = Output::new()?;
        if is_subvolume {
            output.text(format_args!("{:<20}read-only flag of a subvolume\n", "ro"))?;
        }
        output
            .text(format_args!("{:<20}compression algorithm for the file or directory\n", "compression"))?;
        Ok(output.finish()?)
    }
}

fn list_type(object: Object) -> anyhow::Result<()> {
    let (name, what) = match object {
        Object::Inode => ("compression", "compression algorithm for the file or directory"),
        Object::Subvolume => ("ro", "read-only flag of a subvolume"),
        Object::FileSystem | Object::Device => ("label", "label of the filesystem"),
    };
    let mut output = Output::new()?;
    output.text(format_args!("{name:<20}{what}\n"))?;
    Ok(output.finish()?)
}

impl Get {
    fn run(mut self, context: &Context) -> anyhow::Result<()> {
        self.name = self.of.property(self.name)?;
        if self.name == Some(Name::Label) {
            check_label(context, &self.path)?;
            let label = UsageSource::open(context, Path::new(&self.path))?.label()?;
            let mut output = Output::new()?;
            output.bytes(b"label=")?;
            output.name(&label)?;
            output.bytes(b"\n")?;
            return Ok(output.finish()?);
        }
        let path = match Target::parse(&self.path)? {
            Target::Image(path) => path,
            Target::Mounted(mounted) => return self.run_mounted(context, &mounted),
        };
        let inode = context.inode(&path, true)?;
        let mut output = Output::new()?;
        if inode.is_subvolume_root() && self.name != Some(Name::Compression) {
            let all = context.open(&path.image)?.subvolumes()?;
            let read_only = all.iter().any(|one| one.id == inode.tree() && one.is_read_only());
            output.text(format_args!("ro={read_only}\n"))?;
        } else if self.name == Some(Name::Ro) {
            return Err(no_subvolume(context, &path));
        }
        if self.name != Some(Name::Ro)
            && let Some(value) =
                inode.xattr(COMPRESSION.as_bytes()).map_err(|error| context.at(&path, &error))?
        {
            output.bytes(b"compression=")?;
            output.name(&value)?;
            output.bytes(b"\n")?;
        }
        Ok(output.finish()?)
    }

    fn run_mounted(&self, context: &Context, mounted: &Mounted) -> anyhow::Result<()> {
        let with_path = |error: std::io::Error| mounted.at(&error);
        let mount = mounted.open()?;
        let mut output = Output::new()?;
        if self.name != Some(Name::Compression) && mount.is_subvolume_root().map_err(with_path)? {
            output.text(format_args!("ro={}\n", mount.is_subvolume_read_only().map_err(with_path)?))?;
        } else if self.name == Some(Name::Ro) {
            return Err(no_subvolume(context, mounted));
        }
        if self.name.is_none() && self.of.object.is_none() && is_mount_point(Path::new(&self.path)) {
            output.bytes(b"label=")?;
            output.name(&mount.label().map_err(with_path)?)?;
            output.bytes(b"\n")?;
        }
        let mut value = [0; 64];
        if self.name != Some(Name::Ro) {
            match host_calls::xattr(mount.as_fd(), COMPRESSION.as_bytes(), &mut value) {
                Ok(length) => {
                    output.bytes(b"compression=")?;
                    output.name(&value[..length])?;
                    output.bytes(b"\n")?;
                }
                Err(host_calls::NO_XATTR) => {}
                Err(error) => return Err(with_path(error.into())),
            }
        }
        Ok(output.finish()?)
    }
}

/// The message of btrfs-progs for a property that an object does not have.
const INCOMPATIBLE: &str = "object is not compatible with property";

fn no_subvolume(context: &Context, path: &dyn fmt::Display) -> anyhow::Error {
    match context.arguments().drop_in {
        true => anyhow::anyhow!("{INCOMPATIBLE}: ro"),
        false => anyhow::anyhow!("{path}: {}", PathError::NoSubvolume),
    }
}

/// Refuses the label for anything but an image or a mount point: it belongs to the file system.
fn check_label(context: &Context, path: &OsStr) -> anyhow::Result<()> {
    let (has_label, shown) = match Target::parse(path)? {
        Target::Image(path) => (matches!(&path.path[..], b"" | b"/"), path.to_string()),
        Target::Mounted(mounted) => (is_mount_point(&mounted.path), mounted.to_string()),
    };
    match context.arguments().drop_in {
        _ if has_label => Ok(()),
        true => anyhow::bail!("{INCOMPATIBLE}: label"),
        false => anyhow::bail!("{shown}: has no label; name the image or the mount point"),
    }
}

/// Returns the error of a compression that could not be set.
fn compression_error(
    context: &Context,
    path: &dyn fmt::Display,
    error: anyhow::Error,
    errno: i32,
) -> anyhow::Error {
    if !context.arguments().drop_in {
        return error;
    }
    let text = std::io::Error::from_raw_os_error(errno).to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    anyhow::anyhow!("failed to set compression for {path}: {text}")
}

/// Returns whether a file system is mounted on this directory itself.
fn is_mount_point(path: &Path) -> bool {
    let Ok(path) = path.canonicalize() else { return false };
    MountEntry::all().is_ok_and(|mounts| mounts.iter().any(|mount| mount.point == path))
}

impl Set {
    fn read_only(&self, context: &Context) -> Result<bool, UsageError> {
        match self.value.as_str() {
            "true" => Ok(true),
            "false" => Ok(false),
            other if context.arguments().drop_in => {
                Err(UsageError::new(format_args!("invalid value for property: {other}")))
            }
            other => Err(UsageError::new(format_args!("ro: {other:?} is not true or false"))),
        }
    }

    /// Refuses to make a received subvolume writable, unless that is forced: its received UUID
    /// promises the content of the stream.
    fn check_received(&self, received: bool, path: &dyn fmt::Display) -> anyhow::Result<()> {
        if received && !self.force {
            anyhow::bail!(
                "{path}: the subvolume was received; -f makes it writable and forgets the received UUID"
            );
        }
        Ok(())
    }

    fn run_mounted(&self, context: &Context, mounted: &Mounted) -> anyhow::Result<()> {
        let mount = mounted.open()?;
        match self.name {
            Name::Ro => {
                let mut received = false;
                if !self.read_only(context)? && mount.is_subvolume_root().is_ok_and(|is| is) {
                    let info = mount.subvolume_info().map_err(|error| mounted.at(&error))?;
                    received = info.received_uuid != [0; 16];
                    self.check_received(received, mounted)?;
                }
                let set = mount
                    .set_subvolume_read_only(self.read_only(context)?)
                    .and_then(|()| if received { mount.forget_received() } else { Ok(()) });
                set.map_err(|error| match error.raw_os_error().map(Errno::from_raw_os_error) {
                    Some(Errno::INVAL) => no_subvolume(context, mounted),
                    _ => mounted.at(&error),
                })
            }
            Name::Label => mount.set_label(self.value.as_bytes()).map_err(|error| mounted.at(&error)),
            Name::Compression => {
                let set = host_calls::set_xattr(mount.as_fd(), COMPRESSION.as_bytes(), self.value.as_bytes());
                set.map_err(|errno| {
                    compression_error(context, mounted, mounted.at(&errno.into()), errno.raw_os_error())
                })
            }
        }
    }

    fn run(self, context: &Context) -> anyhow::Result<()> {
        self.of.property(Some(self.name))?;
        if self.name == Name::Label {
            check_label(context, &self.path)?;
        }
        let path = match Target::parse(&self.path)? {
            Target::Image(path) => path,
            Target::Mounted(mounted) => return self.run_mounted(context, &mounted),
        };
        let fs = context.change(&path.image)?;
        let done = match self.name {
            Name::Label => fs.set_label(&self.value),
            Name::Ro => {
                let read_only = self.read_only(context)?;
                let inode = context.inode(&path, true)?;
                let all = fs.subvolumes()?;
                let own = all.iter().find(|one| inode.is_subvolume_root() && one.id == inode.tree());
                let received =
                    own.is_some_and(|one| !read_only && one.is_read_only() && !one.received_uuid.is_nil());
                self.check_received(received, &path)?;
                fs.set_subvolume_read_only(&path.path, read_only).and_then(|()| {
                    if received { fs.set_received(&path.path, &NOT_RECEIVED).map(drop) } else { Ok(()) }
                })
            }
            Name::Compression => {
                let inode = context.inode(&path, true)?;
                let set = inode.set_xattr(COMPRESSION.as_bytes(), self.value.as_bytes(), XattrSet::Any);
                return set.map_err(|error| {
                    compression_error(context, &path, context.at(&path, &error), error.errno())
                });
            }
        };
        done.map_err(|error| context.at(&path, &error))
    }
}
