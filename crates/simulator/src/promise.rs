//! The guarantees of fsyncs and syncs in a run: [`ThreadHistory`], and whether a file system
//! fulfils them.
//!
//! Owns the states of a directory, one after each operation, and the span of events in which each
//! came about. The guarantees after a power loss:
//!
//! - Everything that a sync acknowledged is visible: each name that is unchanged since, and each
//!   inode that had a name ever since.
//! - Everything that an fsync acknowledged is visible: the inode and all of its names. For a
//!   directory, also each name that it had then, and no name that it had neither then nor since.
//! - An inode is as it was at one moment at which something became durable, no earlier than its own
//!   last acknowledgement. So is each name, counted from the acknowledgement of its target.
//! - Nothing else is visible.
//!
//! If a run is not [`ThreadHistory::exact`], several threads share the file system, and one
//! thread's commit can come amid another's operations. Inodes and names are then as they were after
//! any operation.
//!
//! The data of some files is not all from one moment (see [`ThreadHistory::mixing_unit`]).
//! With NODATACOW it is overwritten in place at once, in units of 512 bytes; below a page cache it
//! is written back at any time. Each unit then holds its bytes as of any operation since the last
//! acknowledgement, never older or other bytes. The size is within the range of sizes since then,
//! because files grow while they are written.

use crate::model::{Entry, Model, Node, NodeKind, Place};
use crate::verify;
use papilio::{FileSystem, Inode};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Smallest unit of in-place writes, in bytes.
const IN_PLACE_UNIT: usize = 512;
/// Unit of writeback, in bytes.
const SECTOR: usize = 4096;

/// The part of the state that an operation made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durable {
    /// Everything.
    All,
    /// One inode; for a directory, also the names in it.
    Inode(Place),
}

/// An operation and the state after it.
#[derive(Clone, Debug)]
pub(crate) struct ThreadStep {
    /// Number of device events when it was requested.
    pub(crate) started: usize,
    /// Number of device events when it returned.
    pub(crate) ended: usize,
    /// The run's clock when it was requested, and (`finished`) when it returned.
    pub(crate) began: u64,
    pub(crate) finished: u64,
    /// The part of the state that its return acknowledged as durable.
    pub(crate) durable: Option<Durable>,
    /// Whether it may make anything durable. An fsync of a file without a name may, but
    /// acknowledges nothing.
    pub(crate) may_commit: bool,
    pub(crate) model: Model,
    /// The operation as text, for failure messages.
    pub(crate) label: String,
}

/// One thread's operations in one directory.
#[derive(Debug)]
pub(crate) struct ThreadHistory {
    /// Path of the directory.
    pub(crate) base: Vec<u8>,
    /// The states; the first is the initial one.
    pub(crate) steps: Vec<ThreadStep>,
    /// The inodes that had each number; a number may be reused.
    pub(crate) numbers: HashMap<u64, Vec<Place>>,
    /// Whether no other thread commits.
    pub(crate) exact: bool,
    /// Whether a page cache writes at any time.
    pub(crate) cached: bool,
}

/// A moment of a history at which the power failed.
struct Moment<'a> {
    history: &'a ThreadHistory,
    /// The last step that may be visible; all earlier ones may be too.
    last: usize,
    /// The last step that is guaranteed completely.
    floor: usize,
    /// The last acknowledged fsync of each inode, after `floor`.
    fsynced: HashMap<Place, usize>,
}

/// The state that was found.
#[derive(Default)]
struct Found {
    nodes: BTreeMap<Place, Inode>,
    /// By directory and name.
    names: BTreeMap<(Place, Vec<u8>), Place>,
}

/// Checks that `fs` fulfils the guarantees of a run's histories when the power fails before event
/// `position`. With `torn`, a part of that event may be visible.
///
/// # Errors
/// The first violation.
pub(crate) fn judge(
    histories: &[ThreadHistory],
    fs: &FileSystem,
    position: usize,
    torn: bool,
) -> Result<(), String> {
    // A sync by any thread acknowledges everything that all threads did before it.
    let synced = histories
        .iter()
        .flat_map(|history| &history.steps)
        .filter(|step| step.durable == Some(Durable::All) && step.ended <= position)
        .map(|step| step.began)
        .max();
    for history in histories {
        history.at(position, torn, synced.unwrap_or(0)).judge(fs)?;
    }
    Ok(())
}

impl ThreadHistory {
    fn at(&self, position: usize, torn: bool, synced: u64) -> Moment<'_> {
        let begun = position + usize::from(torn);
        let last = self.steps.iter().rposition(|step| step.ended <= position || step.started < begun);
        let last = last.expect("the initial step ended at event 0");
        let floor = self.steps[..=last].iter().rposition(|step| {
            step.finished <= synced || step.durable == Some(Durable::All) && step.ended <= position
        });
        let floor = floor.expect("the initial step is durable");
        let mut fsynced = HashMap::new();
        for (index, step) in self.steps.iter().enumerate().take(last + 1).skip(floor + 1) {
            if let Some(Durable::Inode(place)) = step.durable
                && step.ended <= position
            {
                fsynced.insert(place, index);
            }
        }
        Moment { history: self, last, floor, fsynced }
    }

    /// Returns the size of the units from different moments that a file's bytes may mix; `None` if
    /// all are from one moment.
    fn mixing_unit(&self, in_place: bool) -> Option<usize> {
        match (in_place, self.exact && !self.cached) {
            (true, _) => Some(IN_PLACE_UNIT),
            (false, false) => Some(SECTOR),
            (false, true) => None,
        }
    }
}

impl<'a> Moment<'a> {
    /// Returns the first step that may show an inode.
    fn acknowledged(&self, place: Place) -> usize {
        self.fsynced.get(&place).copied().unwrap_or(self.floor)
    }

    /// Returns the states since a step.
    fn all_since(&self, step: usize) -> impl DoubleEndedIterator<Item = &'a Model> {
        self.history.steps[step..=self.last].iter().map(|step| &step.model)
    }

    /// Returns the states since a step that may have become durable as a whole.
    fn since(&self, step: usize) -> impl DoubleEndedIterator<Item = &'a Model> {
        let exact = self.history.exact;
        let steps = self.history.steps[step..=self.last].iter();
        steps.filter(move |step| !exact || step.may_commit).map(|step| &step.model)
    }

    fn judge(&self, fs: &FileSystem) -> Result<(), String> {
        let base = &self.history.base;
        let path: &[u8] = if base.is_empty() { b"/" } else { base };
        let found = self
            .walk(fs.inode(path).map_err(|error| error.to_string())?)
            .map_err(|what| self.label(&what))?;
        self.names(&found).map_err(|what| self.label(&what))?;
        for (&place, inode) in &found.nodes {
            self.node(&found, place, inode).map_err(|what| self.label(&what))?;
        }
        Ok(())
    }

    /// Formats a failure, with the steps around it.
    fn label(&self, what: &str) -> String {
        let mut text = format!(
            "below \"{}\": {what}\neverything up to step {} is guaranteed, steps up to {} may be visible:",
            self.history.base.escape_ascii(),
            self.floor,
            self.last
        );
        for index in self.floor.saturating_sub(2)..=self.last {
            let step = &self.history.steps[index];
            text += &format!("\n  {index} [{}, {}] {}", step.started, step.ended, step.label);
        }
        text
    }

    /// Returns the inode that a number belongs to.
    fn identify(&self, number: u64) -> Option<Place> {
        let known = self.history.numbers.get(&number)?;
        let visible = |place: &Place| self.all_since(self.floor).any(|model| model.get(*place).is_some());
        known.iter().copied().find(visible)
    }

    fn walk(&self, root: Inode) -> Result<Found, String> {
        let mut found = Found::default();
        let mut pending = vec![(Model::root(), root)];
        while let Some((place, inode)) = pending.pop() {
            if inode.metadata().is_dir() {
                for entry in inode.read_dir().map_err(|error| error.to_string())? {
                    let entry = entry.map_err(|error| error.to_string())?;
                    let shown = entry.file_name().escape_ascii();
                    let below = entry.inode().map_err(|error| format!("{shown}: {error}"))?;
                    let target = self.identify(below.number().0).ok_or_else(|| {
                        format!("\"{shown}\" leads to inode {}, which should not exist", below.number().0)
                    })?;
                    if found.names.insert((place, entry.file_name().to_vec()), target).is_some() {
                        return Err(format!("\"{shown}\" is listed twice"));
                    }
                    if !found.nodes.contains_key(&target) {
                        pending.push((target, below));
                    }
                }
            }
            found.nodes.insert(place, inode);
        }
        Ok(found)
    }

    fn names(&self, found: &Found) -> Result<(), String> {
        for ((directory, name), target) in &found.names {
            let from = self.acknowledged(*target).max(self.acknowledged(*directory));
            if !self.since(from).any(|model| lookup(model, *directory, name) == Some(*target)) {
                return Err(format!(
                    "\"{}\" in {directory:?} leads to {target:?}, but never did since step {from}",
                    name.escape_ascii()
                ));
            }
        }
        let floor = &self.history.steps[self.floor].model;
        for (directory, node) in floor.nodes() {
            for (name, entry) in node.entries().into_iter().flatten() {
                let target = floor.target(directory, *entry).expect("these runs have no subvolumes");
                self.required(found, self.floor, directory, name, target)?;
            }
        }
        for (&place, &step) in &self.fsynced {
            let model = &self.history.steps[step].model;
            for (directory, node) in model.nodes() {
                for (name, entry) in node.entries().into_iter().flatten() {
                    let target = model.target(directory, *entry).expect("these runs have no subvolumes");
                    if target == place || directory == place {
                        self.required(found, step, directory, name, target)?;
                    }
                }
            }
        }
        let acknowledged: BTreeSet<Place> =
            floor.nodes().map(|(place, _)| place).chain(self.fsynced.keys().copied()).collect();
        for place in acknowledged {
            let from = self.acknowledged(place);
            let named = |model: &Model| model.get(place).is_some_and(|node| node.nlink > 0);
            if !found.nodes.contains_key(&place) && self.since(from).all(named) {
                return Err(format!("{place:?} of step {from} is missing, with all of its names"));
            }
        }
        Ok(())
    }

    /// Checks that a name that was acknowledged with a step and is unchanged since exists.
    fn required(
        &self,
        found: &Found,
        step: usize,
        directory: Place,
        name: &[u8],
        target: Place,
    ) -> Result<(), String> {
        let visible = found.names.get(&(directory, name.to_vec()));
        if visible != Some(&target)
            && self.since(step).all(|model| lookup(model, directory, name) == Some(target))
        {
            return Err(format!(
                "\"{}\" in {directory:?} leads to {visible:?}, expected {target:?} since step {step}",
                name.escape_ascii()
            ));
        }
        Ok(())
    }

    fn node(&self, found: &Found, place: Place, inode: &Inode) -> Result<(), String> {
        let from = self.acknowledged(place);
        let mut why = String::new();
        // The latest version is the most likely match.
        for node in self.since(from).rev().filter_map(|model| model.get(place)) {
            let difference = match self.compare(found, place, inode, node) {
                Ok(()) => return Ok(()),
                Err(difference) => difference,
            };
            if !why.contains(&difference) {
                why += &format!("\n    {difference}");
            }
        }
        let names: Vec<String> = found
            .names
            .iter()
            .filter(|(_, target)| **target == place)
            .map(|((_, name), _)| name.escape_ascii().to_string())
            .collect();
        Err(format!("{place:?} (\"{}\") matches no version since step {from}: {why}", names.join("\", \"")))
    }

    /// Compares an inode with one of its versions. The expected links are those found; each name is
    /// checked separately.
    fn compare(&self, found: &Found, place: Place, inode: &Inode, node: &Node) -> Result<(), String> {
        let mut expected = node.clone();
        if place != Model::root() && node.entries().is_none() {
            expected.nlink = found.names.values().filter(|target| **target == place).count() as u32;
        }
        match &mut expected.kind {
            NodeKind::Directory(entries) => {
                let visible = found.names.iter().filter(|((directory, _), _)| *directory == place);
                *entries =
                    visible.map(|((_, name), target)| (name.clone(), Entry::Node(target.node))).collect();
            }
            NodeKind::File(content) => {
                if let Some(unit) = self.history.mixing_unit(node.nodatacow) {
                    content.set_size(inode.metadata().size());
                    verify::metadata(inode, &expected)?;
                    return self.mixed(place, inode, unit);
                }
            }
            _ => {}
        }
        verify::metadata(inode, &expected)?;
        verify::content(inode, &expected)
    }

    /// Checks that each unit of a file equals that of some version since its acknowledgement.
    fn mixed(&self, place: Place, inode: &Inode, unit: usize) -> Result<(), String> {
        let versions: Vec<_> = self
            .all_since(self.acknowledged(place))
            .filter_map(|model| model.get(place)?.content())
            .collect();
        let found = inode.open().and_then(|file| file.read_all()).map_err(|error| error.to_string())?;
        let size = found.len() as u64;
        let sizes = versions.iter().map(|content| content.size());
        let (least, most) = (sizes.clone().min().unwrap_or(0), sizes.max().unwrap_or(0));
        if !(least..=most).contains(&size) {
            return Err(format!("found size {size}, expected {least} to {most}"));
        }
        let mut expected = vec![0; unit];
        for (index, piece) in found.chunks(unit).enumerate() {
            let offset = (index * unit) as u64;
            let known = versions.iter().any(|content| {
                expected.fill(0);
                content.read(&mut expected, offset);
                piece == &expected[..piece.len()]
            });
            if !known {
                let latest = versions.last().map(|content| content.bytes(offset, unit as u64));
                let difference = verify::difference(piece, &latest.unwrap_or_default());
                return Err(format!(
                    "bytes at {offset} match no version since; compared with the latest: {difference}"
                ));
            }
        }
        Ok(())
    }
}

/// Returns the target of a name in a directory.
fn lookup(model: &Model, directory: Place, name: &[u8]) -> Option<Place> {
    let entry = model.get(directory)?.entries()?.get(name)?;
    model.target(directory, *entry)
}
