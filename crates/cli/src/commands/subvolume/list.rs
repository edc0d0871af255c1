//! `papilio subvolume list`, in the format of `btrfs subvolume list`.

use super::format::{btrfs_facts, to_json, uuid_text};
use crate::btrfs_json::list_of_btrfs;
use crate::context::Context;
use crate::mounted::Target;
use crate::output::{JsonArray, Output};
use crate::time;
use crate::usage_error::UsageError;
use papilio::format::objectid;
use papilio::{PathError, Subvolume};
use serde_json::{Map, Value};
use std::cmp::Ordering;
use std::ffi::OsString;
use std::str::FromStr;

/// List subvolumes and snapshots
///
/// Paths start at the top level, which is not listed itself. Times are local.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file system, or a directory in it
    #[arg(value_name = "IMAGE[:/PATH]|PATH", value_hint = clap::ValueHint::FilePath)]
    path: OsString,
    /// Show the id of the subvolume that contains it
    #[arg(short = 'p', long = "parent")]
    parent: bool,
    /// Show the generation that created it
    #[arg(short = 'c', long = "created")]
    created: bool,
    /// Accepted for compatibility with btrfs-subvolume(8); the generation is always shown
    #[arg(short = 'g', long = "generation")]
    generation: bool,
    /// Show its UUID
    #[arg(short = 'u', long = "uuid")]
    uuid: bool,
    /// Show the UUID of the subvolume that it is a snapshot of, and no warnings
    // It has the id of the global option, and thus shares its letter.
    #[arg(short = 'q', long = "parent-uuid", id = "quiet", action = clap::ArgAction::Count)]
    parent_uuid: u8,
    /// Show the UUID with which it was received
    #[arg(short = 'R', long = "received-uuid")]
    received_uuid: bool,
    /// List only snapshots, with their times of creation
    #[arg(short = 's', long)]
    snapshots: bool,
    /// List only read-only subvolumes
    #[arg(short = 'r', long = "readonly")]
    read_only: bool,
    /// List only subvolumes that are being deleted
    #[arg(short = 'd', long)]
    deleted: bool,
    /// List only subvolumes directly below the one that contains PATH
    #[arg(short = 'o', long = "below")]
    below: bool,
    /// Mark paths that are not directly below the top level with <FS_TREE>
    #[arg(short = 'a', long = "all")]
    all: bool,
    /// List only subvolumes of generation N, at least N (+N) or at most N (-N)
    #[arg(short = 'G', value_name = "[+|-]N", allow_hyphen_values = true)]
    by_generation: Option<Bound>,
    /// List only subvolumes created in generation N, at least N (+N) or at most N (-N)
    #[arg(short = 'C', value_name = "[+|-]N", allow_hyphen_values = true)]
    by_creation: Option<Bound>,
    /// Print a table
    #[arg(short = 't', long)]
    table: bool,
    /// Sort by a comma-separated list of gen, ogen, rootid and path; a leading - reverses
    #[arg(long, value_name = "KEYS", value_delimiter = ',', allow_hyphen_values = true)]
    sort: Vec<SortKey>,
    /// Print one JSON array with all fields
    #[arg(long)]
    json: bool,
}

/// A filter on a generation.
#[derive(Clone, Copy, Debug)]
struct Bound {
    order: Option<Ordering>,
    generation: u64,
}

impl FromStr for Bound {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (order, number) = match text.as_bytes().first() {
            Some(b'+') => (Some(Ordering::Greater), &text[1..]),
            Some(b'-') => (Some(Ordering::Less), &text[1..]),
            _ => (None, text),
        };
        Ok(Self { order, generation: number.parse()? })
    }
}

impl Bound {
    fn accepts(self, generation: u64) -> bool {
        let found = generation.cmp(&self.generation);
        found == Ordering::Equal || Some(found) == self.order
    }
}

/// A sort key.
#[derive(Clone, Copy, Debug)]
struct SortKey {
    field: SortField,
    descending: bool,
}

#[derive(Clone, Copy, Debug)]
enum SortField {
    Generation,
    Created,
    Id,
    Path,
}

impl FromStr for SortKey {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (descending, name) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        let field = match name {
            "gen" => SortField::Generation,
            "ogen" => SortField::Created,
            "rootid" => SortField::Id,
            "path" => SortField::Path,
            _ => return Err("not gen, ogen, rootid or path".to_owned()),
        };
        Ok(Self { field, descending })
    }
}

impl SortKey {
    fn compare(self, a: &Subvolume, b: &Subvolume) -> Ordering {
        let order = match self.field {
            SortField::Generation => a.generation.cmp(&b.generation),
            SortField::Created => a.created.cmp(&b.created),
            SortField::Id => a.id.cmp(&b.id),
            SortField::Path => a.path.cmp(&b.path),
        };
        if self.descending { order.reverse() } else { order }
    }
}

/// A column; the variants are in the order of the columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListColumn {
    Id,
    Generation,
    Created,
    Parent,
    TopLevel,
    CreationTime,
    ParentUuid,
    ReceivedUuid,
    Uuid,
    Path,
}

impl ListColumn {
    fn name(self) -> &'static str {
        match self {
            Self::Id => "ID",
            Self::Generation => "gen",
            Self::Created => "cgen",
            Self::Parent => "parent",
            Self::TopLevel => "top level",
            Self::CreationTime => "otime",
            Self::ParentUuid => "parent_uuid",
            Self::ReceivedUuid => "received_uuid",
            Self::Uuid => "uuid",
            Self::Path => "path",
        }
    }
}

impl ListColumn {
    /// The key in the JSON of btrfs-progs.
    fn key(self) -> &'static str {
        match self {
            Self::Id => "id",
            Self::Generation => "generation",
            Self::Created => "cgeneration",
            Self::TopLevel => "top_level",
            other => other.name(),
        }
    }
}

/// Marks a path that is not directly below the top level.
const MARK: &str = "<FS_TREE>/";

impl Args {
    /// Lists the subvolumes.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        if self.below && self.all {
            return Err(UsageError::new("subvolume list: -o and -a exclude each other").into());
        }
        let target = Target::parse(&self.path)?;
        context.confine_to_target(&target);
        let (holder, mut subvolumes) = match target {
            Target::Image(path) => {
                let directory = context.inode(&path, true)?;
                if !directory.metadata().is_dir() {
                    anyhow::bail!("{path}: {}", PathError::NotADirectory);
                }
                (self.below.then(|| directory.tree()), context.open(&path.image)?.subvolumes()?)
            }
            Target::Mounted(mounted) => {
                let mount = mounted.open()?;
                if !mount.is_directory().map_err(|error| mounted.at(&error))? {
                    anyhow::bail!("{mounted}: {}", PathError::NotADirectory);
                }
                let holder = self.below.then(|| mount.subvolume_id()).transpose();
                let listed = holder.and_then(|holder| Ok((holder, mount.subvolumes()?)));
                let (holder, mut subvolumes) = listed.map_err(|error| mounted.at(&error))?;
                if !mounted.mount.is_papilio() {
                    // The kernel marks a deleted subvolume in its item by the next commit only.
                    subvolumes.retain(|one| self.deleted || one.path.is_some());
                }
                (holder, subvolumes)
            }
        };
        subvolumes.retain(|subvolume| {
            self.wants(subvolume) && holder.is_none_or(|holder| subvolume.parent == Some(holder))
        });
        subvolumes.sort_by(|a, b| {
            let keys = self.sort.iter().map(|key| key.compare(a, b));
            keys.fold(Ordering::Equal, Ordering::then).then_with(|| a.id.cmp(&b.id))
        });
        let mut output = Output::new()?;
        if self.json && context.arguments().drop_in {
            let keys: Vec<&str> = self.columns().into_iter().map(ListColumn::key).collect();
            let rows = subvolumes.iter().map(|one| {
                let mut row: Map<String, Value> = btrfs_facts(one, &keys).collect();
                if self.is_marked(one)
                    && let Some(Value::String(path)) = row.get_mut("path")
                {
                    path.insert_str(0, MARK);
                }
                Value::Object(row)
            });
            output.text(format_args!("{:#}\n", list_of_btrfs("subvolume-list", rows)))?;
        } else if self.json {
            let mut array = JsonArray::begin(&mut output)?;
            for subvolume in &subvolumes {
                array.push(&mut output, &to_json(subvolume))?;
            }
            array.end(&mut output)?;
        } else if self.table {
            self.print_table(&mut output, &subvolumes)?;
        } else {
            self.print_lines(&mut output, &subvolumes)?;
        }
        Ok(output.finish()?)
    }

    /// Whether `-a` marks the path of a subvolume.
    fn is_marked(&self, subvolume: &Subvolume) -> bool {
        self.all && subvolume.path.is_some() && subvolume.parent != Some(objectid::FS_TREE)
    }

    fn wants(&self, subvolume: &Subvolume) -> bool {
        subvolume.id != objectid::FS_TREE
            && subvolume.is_being_deleted() == self.deleted
            && (!self.snapshots || subvolume.is_snapshot())
            && (!self.read_only || subvolume.is_read_only())
            && self.by_generation.is_none_or(|bound| bound.accepts(subvolume.generation.0))
            && self.by_creation.is_none_or(|bound| bound.accepts(subvolume.created.0))
    }

    fn columns(&self) -> Vec<ListColumn> {
        let all = [
            (ListColumn::Id, true),
            (ListColumn::Generation, true),
            (ListColumn::Created, self.created || self.snapshots),
            (ListColumn::Parent, self.parent),
            (ListColumn::TopLevel, true),
            (ListColumn::CreationTime, self.snapshots),
            (ListColumn::ParentUuid, self.parent_uuid > 0),
            (ListColumn::ReceivedUuid, self.received_uuid),
            (ListColumn::Uuid, self.uuid),
            (ListColumn::Path, true),
        ];
        all.into_iter().filter(|(_, shown)| *shown).map(|(column, _)| column).collect()
    }

    /// Returns the text of a column, except for the path, which need not be UTF-8.
    fn cell(&self, column: ListColumn, subvolume: &Subvolume) -> String {
        let parent = subvolume.parent.map_or(0, |parent| parent.0);
        match column {
            ListColumn::Id => subvolume.id.to_string(),
            ListColumn::Generation => subvolume.generation.to_string(),
            ListColumn::Created => subvolume.created.to_string(),
            ListColumn::Parent | ListColumn::TopLevel => parent.to_string(),
            ListColumn::CreationTime => time::to_second(subvolume.creation_time),
            ListColumn::ParentUuid => uuid_text(subvolume.parent_uuid),
            ListColumn::ReceivedUuid => uuid_text(subvolume.received_uuid),
            ListColumn::Uuid => uuid_text(subvolume.uuid),
            ListColumn::Path => String::new(),
        }
    }

    fn path(&self, output: &mut Output, subvolume: &Subvolume) -> anyhow::Result<()> {
        match &subvolume.path {
            None if subvolume.is_being_deleted() => output.bytes(b"DELETED")?,
            None => output.bytes(b"<unreachable>")?,
            Some(path) => {
                if self.is_marked(subvolume) {
                    output.bytes(MARK.as_bytes())?;
                }
                output.name(path)?;
            }
        }
        Ok(output.bytes(b"\n")?)
    }

    fn print_lines(&self, output: &mut Output, subvolumes: &[Subvolume]) -> anyhow::Result<()> {
        let columns = self.columns();
        for subvolume in subvolumes {
            for &column in &columns {
                let cell = self.cell(column, subvolume);
                match column {
                    ListColumn::Path => output.bytes(b"path ")?,
                    ListColumn::ParentUuid | ListColumn::ReceivedUuid | ListColumn::Uuid => {
                        output.text(format_args!("{} {cell:<36} ", column.name()))?;
                    }
                    _ => output.text(format_args!("{} {cell} ", column.name()))?,
                }
            }
            self.path(output, subvolume)?;
        }
        Ok(())
    }

    fn print_table(&self, output: &mut Output, subvolumes: &[Subvolume]) -> anyhow::Result<()> {
        let columns = self.columns();
        for column in &columns {
            output.text(format_args!("{}\t", column.name()))?;
        }
        output.bytes(b"\n")?;
        for column in &columns {
            output.text(format_args!("{}\t", "-".repeat(column.name().len())))?;
        }
        output.bytes(b"\n")?;
        for subvolume in subvolumes {
            for &column in columns.iter().filter(|column| **column != ListColumn::Path) {
                let cell = self.cell(column, subvolume);
                // The heading of this column is wider than a tab.
                let gap = if column == ListColumn::TopLevel { "\t\t" } else { "\t" };
                output.text(format_args!("{cell}{gap}"))?;
            }
            self.path(output, subvolume)?;
        }
        Ok(())
    }
}
