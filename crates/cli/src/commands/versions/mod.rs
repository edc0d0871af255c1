//! `papilio versions`: the versions of a file that snapshots keep.
//!
//! Owns the list; [`diff`] compares two versions, [`restore`] brings one back, and [`undelete`] is
//! about files that only snapshots still have.

mod diff;
mod restore;
mod shown_path;
mod undelete;

use crate::context::Context;
use crate::mounted::Target;
use crate::output::{JsonArray, Output, json_bytes, mode_letters};
use crate::sought::{LeftOut, SoughtPath, read_past, shown_subvolume};
use crate::time;
use crate::units::Units;
use crate::usage_error::UsageError;
use anyhow::Context as _;
use papilio::{FileVersion, Subvolume, VersionHolder, file_versions_leaving_out};
use restore::Restore;
use serde_json::{Map, Value, json};
use shown_path::shown_path;
use std::ffi::OsString;

/// Show the versions of a file that snapshots keep, compare and restore them
///
/// The command looks for the path in all snapshots of the subvolume and in their relatives, and for
/// the file itself under other names. The file may be gone: then snapshots may still have it. The
/// newest version comes last.
///
/// Versions differ in content, owner, mode or time of modification. Contents are compared by their
/// extents: data that was written again is another version.
///
/// A version is restored with owner, mode, times and attributes. In the same file system it shares
/// its data with the snapshot.
///
/// In a mount, the command needs to read the devices, and shows the state of the last commit.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file, or the path that it had
    #[arg(value_name = "IMAGE:/PATH|PATH", value_hint = clap::ValueHint::AnyPath)]
    path: OsString,
    /// Show what differs between version N and version M, by default the newest
    ///
    /// Texts are compared by lines. Of other files, the bytes are named that differ.
    #[arg(long, value_names = ["N", "M"], num_args = 1..=2, conflicts_with_all = ["restore", "undelete"])]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    diff: Vec<u64>,
    /// Restore version N: in place, or as TO
    ///
    /// In place, the version replaces the current file. That needs -f, unless a snapshot has the
    /// current state too. Other hard links of it keep their content.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    restore: Option<u64>,
    /// Where to restore: a path on the host, in a mount or in an image
    #[arg(value_name = "TO", value_hint = clap::ValueHint::AnyPath)]
    to: Option<OsString>,
    /// Restore the newest version of a file or directory that only snapshots still have; of a
    /// directory that exists, list the files that only snapshots have
    #[arg(long, conflicts_with = "restore")]
    undelete: bool,
    /// Replace an existing file
    #[arg(short, long)]
    force: bool,
    /// Name every subvolume that holds a version, not only the first and the last
    #[arg(short, long)]
    all: bool,
    /// Print sizes in bytes
    #[arg(short, long)]
    bytes: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Shows, compares or restores versions.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        if self.to.is_some() && self.restore.is_none() && !self.undelete {
            return Err(UsageError::new("versions: TO is for --restore and --undelete").into());
        }
        let target = Target::parse_with_parents(&self.path)?;
        let writes = self.changes_image(&target);
        if self.restore.is_none() && !self.undelete {
            context.confine_to_target(&target);
        }
        if self.undelete && self.lists_directory(context, &target)? {
            return undelete::list(context, &target, self.json, self.units());
        }
        let mut left_out = LeftOut::default();
        let found = read_past(context, &target, writes, |place| {
            left_out = LeftOut::default();
            let mut failed =
                |subvolume: &Subvolume, error| left_out.add(place, &shown_subvolume(subvolume), error);
            let (system, path) = (&place.system, &place.path);
            match path.is_empty() {
                true => Ok(Vec::new()),
                false => file_versions_leaving_out(system, place.subvolume, path, &mut failed),
            }
        });
        left_out.tell(context);
        let (place, versions) = found?;
        place.must_be_in_subvolume()?;
        if let [old, new @ ..] = &self.diff[..] {
            let new = new.first().copied().unwrap_or(versions.len() as u64);
            let pair = [numbered(&versions, *old)?, numbered(&versions, new)?];
            return diff::show(&place, pair, [*old, new], self.json, self.units());
        }
        if let Some(number) = self.restore {
            return self.restore(context, &place, &versions, numbered(&versions, number)?);
        }
        if self.undelete {
            let version = versions.last().with_context(|| format!("{}: no version", place.shown))?;
            return self.restore(context, &place, &versions, version);
        }
        self.list(&versions)
    }

    fn units(&self) -> Units {
        if self.bytes { Units::BYTES } else { Units::HUMAN }
    }

    /// Whether the run writes to the image that it reads.
    fn changes_image(&self, target: &Target) -> bool {
        let Target::Image(path) = target else { return false };
        let restores = self.restore.is_some() || self.undelete;
        restores && self.to.as_ref().is_none_or(|to| restore::image_of(to).is_some_and(|to| to == path.image))
    }

    /// Whether the path is a directory that exists; a file that exists is refused.
    fn lists_directory(&self, context: &Context, target: &Target) -> anyhow::Result<bool> {
        let present = match target {
            Target::Image(path) => {
                let place = SoughtPath::probe(context, path)?;
                let present = place.present().map_err(|error| place.explain(error))?;
                present.map(|inode| inode.metadata().is_dir())
            }
            Target::Mounted(_) => {
                let present = read_past(context, target, false, SoughtPath::present)?.1;
                present.map(|inode| inode.metadata().is_dir())
            }
        };
        match present {
            Some(true) => Ok(true),
            Some(false) => anyhow::bail!("{}: exists; --restore has another version", self.path.display()),
            None => Ok(false),
        }
    }

    fn restore(
        &self,
        context: &Context,
        place: &SoughtPath,
        versions: &[FileVersion],
        version: &FileVersion,
    ) -> anyhow::Result<()> {
        if let Some(to) = &self.to {
            return Restore { context, place, version, force: self.force }.to(to);
        }
        let is_present =
            |holder: &VersionHolder| holder.subvolume == place.subvolume && holder.path == place.path;
        let present = versions.iter().find(|version| version.holders.iter().any(is_present));
        if present.is_some_and(|present| std::ptr::eq(present, version)) {
            anyhow::bail!("{}: this is its present version", place.shown);
        }
        let is_kept = present.is_some_and(|present| !present.holders.iter().all(is_present));
        if present.is_some() && !is_kept && !self.force {
            anyhow::bail!(
                "{}: no snapshot has its present version, which would be lost; -f replaces it",
                place.shown
            );
        }
        Restore { context, place, version, force: true }.in_place()
    }

    fn list(&self, versions: &[FileVersion]) -> anyhow::Result<()> {
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
        output.text(format_args!(
            "{number:>4}  {:<19} {:>12} {:>11} {:<10}  ",
            time::to_second(metadata.mtime()),
            self.units().text(metadata.size()),
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

/// Returns the version with a number.
fn numbered(versions: &[FileVersion], number: u64) -> anyhow::Result<&FileVersion> {
    let found = usize::try_from(number - 1).ok().and_then(|at| versions.get(at));
    found.with_context(|| format!("there is no version {number}, only {}", versions.len()))
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
