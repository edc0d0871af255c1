//! What a run was promised by its fsyncs and syncs: [`History`], and whether a file system keeps it.
//!
//! Owns the states that a directory went through, one after each operation, with the moments between which
//! each came about. What is promised after a loss of power:
//!
//! - What a sync acknowledged is there: each name that nobody changed since, and each inode that had a name
//!   ever since.
//! - What an fsync acknowledged is there likewise: the inode, and all of its names; of a directory, also each name
//!   that it had then, and none that it did not have then or since.
//! - An inode is as it was at one moment at which something was made durable, and not before its own last
//!   acknowledgement. So is each name, counted from the acknowledgement of what it leads to.
//! - Nothing else is there.
//!
//! Where a run is not [`History::exact`], as several threads share the file system, a commit of one comes in
//! the midst of the operations of another: inodes and names are then as they were after any operation.
//!
//! Data of some files is not all of one moment, [`loose`](History::loose): with NODATACOW it is overwritten in
//! place at once, in units of 512 bytes, and below a page cache it is written whenever there is time. There
//! each unit has the bytes that it had after any operation since the last acknowledgement; never older ones, never others.
//! The size, too, is then one that lies between those since, as files grow with what is written.

use crate::model::{Entry, Model, Node, NodeKind, Place};
use crate::verify;
use papilio::{FileSystem, Inode};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Bytes that in-place writes have in common at least.
const IN_PLACE_UNIT: usize = 512;
/// Bytes that are written together by writeback.
const SECTOR: usize = 4096;

/// What an operation made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durable {
    /// Everything.
    All,
    /// One inode; with a directory, the names in it.
    Inode(Place),
}

/// An operation, and what was there after it.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// Events on the device when it was asked for.
    pub(crate) started: usize,
    /// Events when it returned.
    pub(crate) ended: usize,
    /// The clock of the run when it was asked for, and when it returned.
    pub(crate) began: u64,
    pub(crate) finished: u64,
    /// What its return acknowledged.
    pub(crate) durable: Option<Durable>,
    /// Whether it may make anything durable: also an fsync of a file that has no name, and acknowledges nothing.
    pub(crate) may_commit: bool,
    pub(crate) model: Model,
    /// What it was, for those who read failures.
    pub(crate) told: String,
}

/// What happened in one directory, by one thread.
#[derive(Debug)]
pub(crate) struct History {
    /// Path of the directory.
    pub(crate) base: Vec<u8>,
    /// The first is the beginning.
    pub(crate) steps: Vec<Step>,
    /// Which inodes had a number. A later one may have that of an earlier one.
    pub(crate) numbers: HashMap<u64, Vec<Place>>,
    /// Nobody else commits.
    pub(crate) exact: bool,
    /// A page cache writes when it likes.
    pub(crate) cached: bool,
}

/// A moment of a history, after which the power went.
struct Moment<'a> {
    history: &'a History,
    /// The last step that may be seen, and all before.
    last: usize,
    /// The last one of which all is promised.
    floor: usize,
    /// The last acknowledged fsync of each inode, behind `floor`.
    fsynced: HashMap<Place, usize>,
}

/// What was found.
#[derive(Default)]
struct Found {
    nodes: BTreeMap<Place, Inode>,
    /// By directory and name.
    names: BTreeMap<(Place, Vec<u8>), Place>,
}

/// Whether what `fs` shows is what the histories of a run were promised when the power went before event
/// `position`, of which a part may be there where it is `torn`.
///
/// # Errors
/// The first thing that is not.
pub(crate) fn judge(
    histories: &[History],
    fs: &FileSystem,
    position: usize,
    torn: bool,
) -> Result<(), String> {
    // A sync by anybody acknowledges what all had done before it.
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

impl History {
    fn at(&self, position: usize, torn: bool, synced: u64) -> Moment<'_> {
        let begun = position + usize::from(torn);
        let last = self.steps.iter().rposition(|step| step.ended <= position || step.started < begun);
        let last = last.expect("the beginning is");
        let floor = self.steps[..=last].iter().rposition(|step| {
            step.finished <= synced || step.durable == Some(Durable::All) && step.ended <= position
        });
        let floor = floor.expect("the beginning was synced");
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

    /// Whether the bytes of a file are not all of one moment, and how many at a time are.
    fn loose(&self, in_place: bool) -> Option<usize> {
        match (in_place, self.exact && !self.cached) {
            (true, _) => Some(IN_PLACE_UNIT),
            (false, false) => Some(SECTOR),
            (false, true) => None,
        }
    }
}

impl<'a> Moment<'a> {
    /// The first step that an inode may be of.
    fn acknowledged(&self, place: Place) -> usize {
        self.fsynced.get(&place).copied().unwrap_or(self.floor)
    }

    /// The states since a step.
    fn all_since(&self, step: usize) -> impl DoubleEndedIterator<Item = &'a Model> {
        self.history.steps[step..=self.last].iter().map(|step| &step.model)
    }

    /// Those that may have been made durable as a whole.
    fn since(&self, step: usize) -> impl DoubleEndedIterator<Item = &'a Model> {
        let exact = self.history.exact;
        let steps = self.history.steps[step..=self.last].iter();
        steps.filter(move |step| !exact || step.may_commit).map(|step| &step.model)
    }

    fn judge(&self, fs: &FileSystem) -> Result<(), String> {
        let base = &self.history.base;
        let path: &[u8] = if base.is_empty() { b"/" } else { base };
        let found =
            self.walk(fs.inode(path).map_err(|error| error.to_string())?).map_err(|what| self.told(&what))?;
        self.names(&found).map_err(|what| self.told(&what))?;
        for (&place, inode) in &found.nodes {
            self.node(&found, place, inode).map_err(|what| self.told(&what))?;
        }
        Ok(())
    }

    /// A failure, with what was done.
    fn told(&self, what: &str) -> String {
        let mut text = format!(
            "below \"{}\": {what}\nall up to step {} is promised, and until step {}:",
            self.history.base.escape_ascii(),
            self.floor,
            self.last
        );
        for index in self.floor.saturating_sub(2)..=self.last {
            let step = &self.history.steps[index];
            text += &format!("\n  {index} [{}, {}] {}", step.started, step.ended, step.told);
        }
        text
    }

    /// Which inode it is that has a number.
    fn identify(&self, number: u64) -> Option<Place> {
        let known = self.history.numbers.get(&number)?;
        let there = |place: &Place| self.all_since(self.floor).any(|model| model.get(*place).is_some());
        known.iter().copied().find(there)
    }

    fn walk(&self, root: Inode) -> Result<Found, String> {
        let mut found = Found::default();
        let mut pending = vec![(Model::root(), root)];
        while let Some((place, inode)) = pending.pop() {
            if inode.metadata().is_dir() {
                for entry in inode.entries().map_err(|error| error.to_string())? {
                    let entry = entry.map_err(|error| error.to_string())?;
                    let shown = entry.name().escape_ascii();
                    let below = entry.inode().map_err(|error| format!("{shown}: {error}"))?;
                    let target = self.identify(below.number().0).ok_or_else(|| {
                        format!("\"{shown}\" leads to inode {}, which is not to be there", below.number().0)
                    })?;
                    if found.names.insert((place, entry.name().to_vec()), target).is_some() {
                        return Err(format!("\"{shown}\" is there twice"));
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
            if !self.since(from).any(|model| leads(model, *directory, name) == Some(*target)) {
                return Err(format!(
                    "\"{}\" in {directory:?} leads to {target:?}, which it did not since step {from}",
                    name.escape_ascii()
                ));
            }
        }
        let floor = &self.history.steps[self.floor].model;
        for (directory, node) in floor.nodes() {
            for (name, entry) in node.entries().into_iter().flatten() {
                let target = floor.target(directory, *entry).expect("no subvolumes");
                self.required(found, self.floor, directory, name, target)?;
            }
        }
        for (&place, &step) in &self.fsynced {
            let model = &self.history.steps[step].model;
            for (directory, node) in model.nodes() {
                for (name, entry) in node.entries().into_iter().flatten() {
                    let target = model.target(directory, *entry).expect("no subvolumes");
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
                return Err(format!("{place:?} of step {from} is gone, with all of its names"));
            }
        }
        Ok(())
    }

    /// A name that was acknowledged with a step and not changed since must be there.
    fn required(
        &self,
        found: &Found,
        step: usize,
        directory: Place,
        name: &[u8],
        target: Place,
    ) -> Result<(), String> {
        let there = found.names.get(&(directory, name.to_vec()));
        if there != Some(&target)
            && self.since(step).all(|model| leads(model, directory, name) == Some(target))
        {
            return Err(format!(
                "\"{}\" in {directory:?} leads to {there:?}, and to {target:?} since step {step}",
                name.escape_ascii()
            ));
        }
        Ok(())
    }

    fn node(&self, found: &Found, place: Place, inode: &Inode) -> Result<(), String> {
        let from = self.acknowledged(place);
        let mut why = String::new();
        // The latest is the likeliest.
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
        Err(format!("{place:?} (\"{}\") is no version since step {from}: {why}", names.join("\", \"")))
    }

    /// Compares an inode with one of its versions. Links are those that are there: which ones may be is judged
    /// by name.
    fn compare(&self, found: &Found, place: Place, inode: &Inode, node: &Node) -> Result<(), String> {
        let mut expected = node.clone();
        if place != Model::root() && node.entries().is_none() {
            expected.nlink = found.names.values().filter(|target| **target == place).count() as u32;
        }
        match &mut expected.kind {
            NodeKind::Directory(entries) => {
                let there = found.names.iter().filter(|((directory, _), _)| *directory == place);
                *entries =
                    there.map(|((_, name), target)| (name.clone(), Entry::Node(target.node))).collect();
            }
            NodeKind::File(content) => {
                if let Some(unit) = self.history.loose(node.nodatacow) {
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

    /// Each piece of a file is that of some version since its acknowledgement.
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
            return Err(format!("a size of {size}, none of {least} to {most}"));
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
                return Err(format!("at {offset} what no version since has; the latest: {difference}"));
            }
        }
        Ok(())
    }
}

/// What a name in a directory leads to.
fn leads(model: &Model, directory: Place, name: &[u8]) -> Option<Place> {
    let entry = model.get(directory)?.entries()?.get(name)?;
    model.target(directory, *entry)
}
