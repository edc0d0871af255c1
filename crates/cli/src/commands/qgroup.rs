//! `papilio qgroup`: groups of subvolumes, and their limits.

use super::quota::{Quotas, parse_qgroup};
use crate::btrfs_json::list_of_btrfs;
use crate::context::Context;
use crate::mounted::Target;
use crate::output::Output;
use crate::units::{UnitArgs, parse_size};
use crate::usage_error::UsageError;
use papilio::{QgroupId, QgroupUsage, QuotaError};
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

/// Group subvolumes for quotas, limit them, and show what they use
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Subcommand,
}

#[derive(Debug, clap::Subcommand)]
enum Subcommand {
    /// Create a qgroup above level 0
    Create(One),
    /// Remove a qgroup that has no members
    Destroy(One),
    /// Make a qgroup a member of one of a higher level
    Assign(Two),
    /// End a qgroup's membership in another
    Remove(Two),
    Limit(Limit),
    Show(Show),
    /// Remove the qgroups of level 0 whose subvolumes are gone
    ClearStale {
        /// The image or device, or a directory in a mount
        #[arg(value_name = "IMAGE|PATH", value_hint = clap::ValueHint::FilePath)]
        image: PathBuf,
    },
}

#[derive(Debug, clap::Args)]
struct One {
    /// The qgroup
    #[arg(value_name = "LEVEL/ID", value_parser = parse_qgroup)]
    id: QgroupId,
    /// The image or device, or a directory in a mount
    #[arg(value_name = "IMAGE|PATH", value_hint = clap::ValueHint::FilePath)]
    image: PathBuf,
}

#[derive(Debug, clap::Args)]
struct Two {
    /// The member: a qgroup, or a path in the subvolume whose qgroup it is
    #[arg(value_name = "MEMBER|PATH")]
    member: String,
    /// The group, or a path in the subvolume whose qgroup it is
    #[arg(value_name = "GROUP|PATH")]
    parent: String,
    /// The image or device, or a directory in a mount
    #[arg(value_name = "IMAGE|PATH", value_hint = clap::ValueHint::FilePath)]
    image: PathBuf,
    /// Count all extents again if the numbers are outdated (default)
    #[arg(long, overrides_with = "no_rescan")]
    rescan: bool,
    /// Leave the numbers inconsistent if they need to be counted anew
    #[arg(long, overrides_with = "rescan")]
    no_rescan: bool,
}

/// Limit the bytes that a qgroup uses
#[derive(Debug, clap::Args)]
struct Limit {
    /// The most bytes, with a suffix such as 10G, or none
    #[arg(value_name = "SIZE|none", value_parser = parse_limit)]
    size: LimitSize,
    /// The qgroup, and the image or device or a directory in a mount; without a qgroup, that of the
    /// subvolume at the path
    #[arg(value_name = "[LEVEL/ID] IMAGE[:/PATH]|PATH", num_args = 1..=2, required = true)]
    target: Vec<String>,
    /// Limit the bytes that no other qgroup uses
    #[arg(short)]
    exclusive: bool,
    /// Accepted for compatibility; limits always apply to bytes after compression
    #[arg(short)]
    compressed: bool,
}

#[derive(Clone, Copy, Debug)]
struct LimitSize(Option<u64>);

fn parse_limit(text: &str) -> Result<LimitSize, String> {
    if text == "none" { Ok(LimitSize(None)) } else { parse_size(text.trim_start()).map(Some).map(LimitSize) }
}

/// Show the qgroups, and the bytes that they use
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
struct Show {
    /// The image or device, or a directory in a mount
    #[arg(value_name = "IMAGE[:/PATH]|PATH", value_hint = clap::ValueHint::FilePath)]
    image: PathBuf,
    /// Print the groups that include each qgroup
    #[arg(short = 'p')]
    parents: bool,
    /// Print the members of each qgroup
    #[arg(short = 'c')]
    children: bool,
    /// Print the limit on referenced bytes
    #[arg(short = 'r')]
    max_referenced: bool,
    /// Print the limit on exclusive bytes
    #[arg(short = 'e')]
    max_exclusive: bool,
    /// Show only the qgroups that concern the subvolume at the path, groups included
    #[arg(short = 'F')]
    including: bool,
    /// Show only the qgroup of the subvolume at the path
    #[arg(short = 'f')]
    only: bool,
    /// Commit first
    #[arg(long)]
    sync: bool,
    /// Sort by these columns; - in front means descending
    #[arg(long, value_name = "KEYS", value_delimiter = ',', allow_hyphen_values = true)]
    sort: Vec<String>,
    #[command(flatten)]
    units: UnitArgs,
    /// Print one JSON array
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

impl Args {
    /// Runs the subcommand.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        match self.command {
            Subcommand::Create(One { id, image }) => Quotas::open(context, &image, true)?
                .run(|fs| fs.create_qgroup(id), |mount| mount.create_qgroup(id, true)),
            Subcommand::Destroy(One { id, image }) => Quotas::open(context, &image, true)?
                .run(|fs| fs.destroy_qgroup(id), |mount| mount.create_qgroup(id, false)),
            Subcommand::Assign(two) => two.run(context, true),
            Subcommand::Remove(two) => two.run(context, false),
            Subcommand::Limit(limit) => limit.run(context),
            Subcommand::Show(show) => show.run(context),
            Subcommand::ClearStale { image } => clear_stale(context, &image),
        }
    }
}

impl Two {
    fn run(&self, context: &Context, assign: bool) -> anyhow::Result<()> {
        let (member, parent) = (qgroup_of(context, &self.member)?, qgroup_of(context, &self.parent)?);
        let quotas = Quotas::open(context, &self.image, true)?;
        let inconsistent = quotas.run(
            |fs| if assign { fs.assign_qgroup(member, parent) } else { fs.remove_qgroup(member, parent) },
            |mount| mount.assign_qgroup(member, parent, assign),
        )?;
        if !inconsistent {
            return Ok(());
        }
        if self.no_rescan {
            context.warning("the numbers of quotas are inconsistent now; a rescan mends them");
            return Ok(());
        }
        quotas.rescan(context, false)
    }
}

impl Limit {
    fn run(&self, context: &Context) -> anyhow::Result<()> {
        let (LimitSize(bytes), exclusive) = (self.size, self.exclusive);
        let (id, path) = match &self.target[..] {
            [id, path] => (Some(parse_qgroup(id).map_err(anyhow::Error::msg)?), Path::new(path)),
            [path, ..] => (None, Path::new(path)),
            [] => unreachable!("clap requires one value"),
        };
        let quotas = Quotas::open(context, path, true)?;
        let own = match (id, &quotas) {
            (Some(id), _) => id,
            (None, _) => subvolume_at(context, path)?,
        };
        quotas.run(
            |fs| fs.limit_qgroup(own, bytes, exclusive),
            |mount| mount.limit_qgroup(Some(own), bytes, exclusive),
        )
    }
}

/// Returns the qgroup that an operand names: by its id, or by a path in its subvolume.
fn qgroup_of(context: &Context, operand: &str) -> anyhow::Result<QgroupId> {
    match parse_qgroup(operand) {
        Ok(id) => Ok(id),
        Err(wrong) => subvolume_at(context, Path::new(operand))
            .map_err(|error| UsageError::new(format_args!("{operand}: {wrong} ({error})")).into()),
    }
}

/// The qgroup of the subvolume that contains a path.
fn subvolume_at(context: &Context, path: &Path) -> anyhow::Result<QgroupId> {
    Ok(QgroupId(match Target::parse(path.as_os_str())? {
        Target::Image(path) => context.inode(&path, true)?.tree().0,
        Target::Mounted(mounted) => mounted.open()?.subvolume_id().map_err(|error| mounted.at(&error))?.0,
    }))
}

fn clear_stale(context: &Context, image: &Path) -> anyhow::Result<()> {
    let quotas = Quotas::open(context, image, true)?;
    let cleared = quotas.run(
        |fs| fs.clear_stale_qgroups(),
        |mount| {
            let known: BTreeSet<u64> = mount.subvolumes()?.iter().map(|subvolume| subvolume.id.0).collect();
            let (_, groups) = mount.qgroups()?;
            let stale = groups.iter().filter(|group| group.id.level() == 0 && !known.contains(&group.id.0));
            stale.map(|group| mount.create_qgroup(group.id, false).map(|()| group.id)).collect()
        },
    )?;
    if context.verbosity >= 0 {
        for id in cleared {
            context.note(format_args!("removed stale qgroup {id}"));
        }
    }
    Ok(())
}

/// A column of `qgroup show`.
struct TextColumn {
    title: &'static str,
    right: bool,
    cells: Vec<String>,
}

impl Show {
    fn run(&self, context: &Context) -> anyhow::Result<()> {
        // Groups of an image are those of the last commit, and nothing is changed since.
        let quotas = Quotas::open(context, &self.image, false)?;
        if self.sync {
            quotas.run(|_| Ok(()), |mount| mount.sync())?;
        }
        let (status, mut groups) = quotas.read()?;
        if status.is_rescanning() {
            context.warning("a rescan is under way: the numbers are incomplete");
        } else if status.is_inconsistent() {
            context.warning("the numbers are inconsistent; a rescan mends them");
        }
        let paths = paths_of(&quotas)?;
        if self.only || self.including {
            let own = subvolume_at(context, &self.image)?;
            let mut wanted = BTreeSet::from([own]);
            let mut next = vec![own];
            while let Some(id) = next.pop().filter(|_| self.including) {
                for group in groups.iter().filter(|group| group.id == id) {
                    next.extend(group.parents.iter().filter(|parent| wanted.insert(**parent)));
                }
            }
            groups.retain(|group| wanted.contains(&group.id));
            if groups.is_empty() {
                anyhow::bail!("{}: {}", self.image.display(), QuotaError::NoQgroup(own));
            }
        }
        self.sort(&mut groups, &paths)?;
        let mut output = Output::new()?;
        if self.json && context.arguments().drop_in {
            let rows = groups.iter().map(|group| json_of_btrfs(group, &paths));
            output.text(format_args!("{:#}\n", list_of_btrfs("qgroup-show", rows)))?;
        } else if self.json {
            let rows = groups.iter().map(|group| json_of(group, &paths)).collect::<Value>();
            output.text(format_args!("{rows:#}\n"))?;
        } else {
            print(&self.columns(&groups, &paths), &mut output)?;
        }
        Ok(output.finish()?)
    }

    fn sort(&self, groups: &mut [QgroupUsage], paths: &Paths) -> anyhow::Result<()> {
        // The last key first, because each sort keeps the order of equals.
        for key in self.sort.iter().rev() {
            let (name, descending) = match key.strip_prefix('-') {
                Some(name) => (name, true),
                None => (key.strip_prefix('+').unwrap_or(key), false),
            };
            match name {
                "qgroupid" => groups.sort_by_key(|group| group.id),
                "rfer" => groups.sort_by_key(|group| group.referenced),
                "excl" => groups.sort_by_key(|group| group.exclusive),
                "max_rfer" => groups.sort_by_key(|group| group.max_referenced.unwrap_or(0)),
                "max_excl" => groups.sort_by_key(|group| group.max_exclusive.unwrap_or(0)),
                "path" => groups.sort_by_key(|group| path_of(group, paths)),
                other => {
                    let known = "qgroupid, rfer, excl, max_rfer, max_excl and path";
                    let text = format_args!("--sort: {other:?} is no column; there are {known}");
                    return Err(crate::usage_error::UsageError::new(text).into());
                }
            }
            if descending {
                groups.reverse();
            }
        }
        Ok(())
    }

    fn columns(&self, groups: &[QgroupUsage], paths: &Paths) -> Vec<TextColumn> {
        let units = self.units.resolve();
        let column = |shown: bool, title, right, cell: &dyn Fn(&QgroupUsage) -> String| {
            shown.then(|| TextColumn { title, right, cells: groups.iter().map(cell).collect() })
        };
        let limit = |bytes: Option<u64>| bytes.map_or("none".to_owned(), |bytes| units.text(bytes));
        let list = |ids: &[QgroupId]| {
            let text: Vec<String> = ids.iter().map(ToString::to_string).collect();
            if text.is_empty() { "-".to_owned() } else { text.join(",") }
        };
        [
            column(true, "Qgroupid", false, &|group| group.id.to_string()),
            column(true, "Referenced", true, &|group| units.text(group.referenced)),
            column(true, "Exclusive", true, &|group| units.text(group.exclusive)),
            column(self.max_referenced, "Max referenced", true, &|group| limit(group.max_referenced)),
            column(self.max_exclusive, "Max exclusive", true, &|group| limit(group.max_exclusive)),
            column(self.parents, "Parent", false, &|group| list(&group.parents)),
            column(self.children, "Child", false, &|group| list(&group.members)),
            column(true, "Path", false, &|group| path_of(group, paths)),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

/// The paths of subvolumes, by id.
type Paths = HashMap<u64, Option<String>>;

fn paths_of(quotas: &Quotas) -> anyhow::Result<Paths> {
    let subvolumes = quotas.run(|fs| fs.subvolumes(), |mount| mount.subvolumes())?;
    let text = |path: Vec<u8>| String::from_utf8_lossy(&crate::output::escaped(&path)).into_owned();
    Ok(subvolumes.into_iter().map(|subvolume| (subvolume.id.0, subvolume.path.map(text))).collect())
}

/// The path of a subvolume, or a description as btrfs(8) prints it.
fn path_of(group: &QgroupUsage, paths: &Paths) -> String {
    if group.id.level() > 0 {
        let count = group.members.len();
        return format!("<{count} member qgroup{}>", if count == 1 { "" } else { "s" });
    }
    match paths.get(&group.id.0) {
        _ if group.id.0 == 5 => "<toplevel>".to_owned(),
        Some(Some(path)) => path.clone(),
        Some(None) => "<under deletion>".to_owned(),
        None => "<stale>".to_owned(),
    }
}

fn json_of(group: &QgroupUsage, paths: &Paths) -> Value {
    let list = |ids: &[QgroupId]| ids.iter().map(|id| Value::from(id.to_string())).collect::<Value>();
    json!({
        "qgroupid": group.id.to_string(),
        "referenced": group.referenced,
        "exclusive": group.exclusive,
        "max_referenced": group.max_referenced,
        "max_exclusive": group.max_exclusive,
        "path": paths.get(&group.id.0).cloned().flatten(),
        "parents": list(&group.parents),
        "children": list(&group.members),
    })
}

/// The keys and types of `btrfs qgroup show`.
fn json_of_btrfs(group: &QgroupUsage, paths: &Paths) -> Value {
    let mut value = json_of(group, paths);
    for limit in ["max_referenced", "max_exclusive"] {
        if value[limit].is_null() {
            value[limit] = "none".into();
        }
    }
    if value["path"].is_null() {
        value["path"] = "".into();
    }
    value
}

fn print(columns: &[TextColumn], output: &mut Output) -> anyhow::Result<()> {
    let width = |column: &TextColumn| {
        let cells = column.cells.iter().map(|cell| cell.chars().count());
        cells.chain([column.title.len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = columns.iter().map(width).collect();
    let rows = columns.first().map_or(0, |column| column.cells.len());
    let mut line = |cell: &dyn Fn(&TextColumn) -> String| {
        let cells = columns.iter().zip(&widths).map(|(column, &width)| match column.right {
            true => format!("{:>width$}", cell(column)),
            false => format!("{:<width$}", cell(column)),
        });
        let text = cells.collect::<Vec<_>>().join("   ");
        output.text(format_args!("{}\n", text.trim_end()))
    };
    line(&|column| column.title.to_owned())?;
    line(&|column| "-".repeat(column.title.len()))?;
    (0..rows).try_for_each(|row| line(&|column| column.cells[row].clone()))?;
    Ok(())
}
