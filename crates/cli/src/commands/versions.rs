//! `papilio versions`: the versions of a file that snapshots keep.

use crate::context::{Context, of_image};
use crate::copy::progress::Progress;
use crate::copy::{self, CopyReport};
use crate::mounted::{Mounted, Target, device_paths};
use crate::output::{JsonArray, Output, escaped, json_bytes, mode_letters};
use crate::path::{ImagePath, Operand};
use crate::time;
use crate::units::Units;
use crate::usage_error::UsageError;
use anyhow::Context as _;
use papilio::format::{InodeNumber, TreeId};
use papilio::{
    FileSystem, FileVersion, HostOptions, HostPlace, HostSink, Source, SourceOptions, VersionHolder,
    file_versions,
};
use serde_json::{Map, Value, json};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Show the versions of a file that snapshots keep, and restore one of them
///
/// The command looks for the path in all snapshots of the subvolume and in their relatives, and for
/// the file itself under other names. The file may be gone: then snapshots may still have it. The
/// newest version comes last.
///
/// Versions differ in content, owner, mode or time of modification. Contents are compared by their
/// extents: data that was written again is another version.
///
/// In a mount, the command needs to read the devices, and shows the state of the last commit.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file, or the path that it had
    #[arg(value_name = "IMAGE:/PATH|PATH", value_hint = clap::ValueHint::AnyPath)]
    path: OsString,
    /// Copy version N to TO; existing files are not replaced
    #[arg(long, value_name = "N", requires = "to", value_parser = clap::value_parser!(u64).range(1..))]
    restore: Option<u64>,
    /// The path on the host, or in an image, for --restore
    #[arg(value_name = "TO", requires = "restore", value_hint = clap::ValueHint::AnyPath)]
    to: Option<OsString>,
    /// Name every subvolume that holds a version, not only the first and the last
    #[arg(short, long)]
    all: bool,
    /// Print sizes in bytes
    #[arg(short, long)]
    bytes: bool,
    /// Print one JSON array
    #[arg(long)]
    json: bool,
}

/// A file that is looked for.
struct SoughtFile {
    system: FileSystem,
    /// The image or device.
    image: PathBuf,
    subvolume: TreeId,
    /// From the root of the subvolume, without a leading slash.
    path: Vec<u8>,
}

impl Args {
    /// Shows or restores versions.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let place = match Target::parse_new(&self.path)? {
            Target::Image(path) => in_image(context, &path)?,
            Target::Mounted(mounted) => in_mount(context, &mounted)?,
        };
        let versions = file_versions(&place.system, place.subvolume, &place.path)
            .map_err(|error| of_image(&place.image, error))?;
        if let (Some(number), Some(to)) = (self.restore, &self.to) {
            let version = usize::try_from(number - 1).ok().and_then(|number| versions.get(number));
            let version =
                version.with_context(|| format!("there is no version {number}, only {}", versions.len()))?;
            return restore(context, &place, version, to);
        }
        let mut output = Output::new()?;
        if self.json {
            let mut array = JsonArray::begin(&mut output)?;
            for (number, version) in versions.iter().enumerate() {
                array.push(&mut output, &to_json(number + 1, version))?;
            }
            array.end(&mut output)?;
        } else {
            let head = ("N", "Modified", "Size", "Owner", "Mode");
            output.text(format_args!(
                "{:>4}  {:<19} {:>12} {:>11} {:<10}  In\n",
                head.0, head.1, head.2, head.3, head.4
            ))?;
            for (number, version) in versions.iter().enumerate() {
                self.print(&mut output, number + 1, version)?;
            }
        }
        Ok(output.finish()?)
    }

    fn print(&self, output: &mut Output, number: usize, version: &FileVersion) -> anyhow::Result<()> {
        let metadata = &version.metadata;
        let units = if self.bytes { Units::BYTES } else { Units::HUMAN };
        output.text(format_args!(
            "{number:>4}  {:<19} {:>12} {:>11} {:<10}  ",
            time::to_second(metadata.mtime()),
            units.text(metadata.size()),
            format!("{}:{}", metadata.uid(), metadata.gid()),
            mode_letters(metadata.file_type(), metadata.mode()),
        ))?;
        let holders = &version.holders;
        let shown: Vec<&VersionHolder> = match holders.as_slice() {
            [first, .., last] if !self.all => vec![first, last],
            few => few.iter().collect(),
        };
        for (position, holder) in shown.iter().enumerate() {
            match position {
                0 => {}
                _ if self.all => output.bytes(b", ")?,
                _ => output.text(format_args!(" to "))?,
            }
            output.name(&shown_path(holder))?;
        }
        if holders.len() > shown.len() {
            output.text(format_args!(" ({} subvolumes)", holders.len()))?;
        }
        Ok(output.bytes(b"\n")?)
    }
}

/// Returns the path of a holder from the top level.
fn shown_path(holder: &VersionHolder) -> Vec<u8> {
    let subvolume = match &holder.subvolume_path {
        Some(path) if path.is_empty() => Vec::new(),
        Some(path) => [b"/", &path[..]].concat(),
        None => format!("<subvolume {}>", holder.subvolume).into_bytes(),
    };
    [&subvolume[..], b"/", &holder.path].concat()
}

fn to_json(number: usize, version: &FileVersion) -> Value {
    let metadata = &version.metadata;
    let holder = |holder: &VersionHolder| {
        let mut object = Map::new();
        object.insert("subvolume".into(), holder.subvolume.0.into());
        object.insert("inode".into(), holder.inode.0.into());
        json_bytes(&mut object, "path", &shown_path(holder));
        Value::Object(object)
    };
    json!({
        "number": number,
        "modified": time::rfc3339(metadata.mtime()),
        "size": metadata.size(),
        "uid": metadata.uid(),
        "gid": metadata.gid(),
        "mode": metadata.permissions(),
        "last_changed": metadata.last_changed().0,
        "holders": version.holders.iter().map(holder).collect::<Vec<_>>(),
    })
}

/// Finds out which subvolume of an image a path lies in. Its last components need not exist.
fn in_image(context: &Context, path: &ImagePath) -> anyhow::Result<SoughtFile> {
    let system = context.open(&path.image)?;
    let mut inode = system.root()?;
    let mut rest: Vec<&[u8]> = Vec::new();
    let mut exists = true;
    for name in path.path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".") {
        if name == b".." {
            return Err(UsageError::new(format!("{path}: .. is not allowed here")).into());
        }
        if exists
            && inode.metadata().is_dir()
            && let Some(child) = inode.lookup(name)?
        {
            if child.tree() != inode.tree() {
                rest.clear();
            } else {
                rest.push(name);
            }
            inode = child;
        } else {
            exists = false;
            rest.push(name);
        }
    }
    if rest.is_empty() {
        return Err(UsageError::new(format!("{path}: a subvolume; give a file in it")).into());
    }
    Ok(SoughtFile { image: path.image.clone(), subvolume: inode.tree(), path: rest.join(&b'/'), system })
}

/// Finds out which subvolume of a mount a path lies in. The last component need not exist.
fn in_mount(context: &Context, mounted: &Mounted) -> anyhow::Result<SoughtFile> {
    let name = mounted.path.file_name().with_context(|| format!("{}: no file", mounted.path.display()))?;
    let parent = match mounted.path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let directory = Mounted { path: parent.to_path_buf(), mount: mounted.mount.clone() };
    let opened = directory.open()?;
    let at = |error: &std::io::Error| directory.at(error);
    let subvolume = opened.subvolume_id().map_err(|error| at(&error))?;
    let above = match opened.is_subvolume_root().map_err(|error| at(&error))? {
        true => Vec::new(),
        false => {
            let inode = InodeNumber(parent.metadata()?.ino());
            opened.directory_path(subvolume, inode).map_err(|error| at(&error))?
        }
    };
    let (image, further) = device_paths(&directory)?;
    let system = context.open_last_commit(&image, &further, true)?;
    Ok(SoughtFile { image, subvolume, path: [&above[..], name.as_bytes()].concat(), system })
}

fn restore(
    context: &Context,
    place: &SoughtFile,
    version: &FileVersion,
    to: &OsString,
) -> anyhow::Result<()> {
    let holder = version.holders.last().expect("a version has a holder");
    let inode = place.system.inode_at(holder.subvolume, holder.inode)?;
    let from = ImagePath { image: place.image.clone(), path: shown_path(holder) };
    let destination = match Operand::parse(to) {
        Operand::Host(path) => path,
        Operand::Image(path) => {
            let shown = String::from_utf8_lossy(&escaped(&from.path)).into_owned();
            return Err(UsageError::new(format!(
                "{path}: --restore writes to the host; use papilio cp -a {}:{shown} {path}",
                place.image.display()
            ))
            .into());
        }
    };
    if destination.symlink_metadata().is_ok() {
        anyhow::bail!("{}: exists already", destination.display());
    }
    let name = destination.file_name().with_context(|| format!("{}: no file name", destination.display()))?;
    let parent = match destination.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => PathBuf::from("."),
    };
    let to = HostPlace::Named { parent, name: name.as_bytes().to_vec(), in_place: false };
    let options = SourceOptions { recursive: true, links: true, xattrs: true, ..SourceOptions::default() };
    let progress = Progress::new(false);
    let report = CopyReport { context, progress: &progress, json: false };
    let host = HostOptions { archive: true, no_clobber: true };
    let mut sink = HostSink::new(&report, host, vec![(from.clone(), to)])?;
    let copied = copy::run(vec![Source { path: from, inode }], options, &mut sink, &report);
    sink.finish();
    copied
}
