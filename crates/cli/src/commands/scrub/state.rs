//! The state of the last scrub of a file system, kept on the host.
//!
//! Owns [`State`] and [`Folder`]: for each file system a file of state, one that a running scrub
//! holds locked, one that asks it to stop, and one with its limit. They are in
//! `$XDG_STATE_HOME/papilio` if that is set, else in `/var/lib/papilio` for root, and in
//! `~/.local/state/papilio` for others.
//!
//! **Invariant**: a file of state is replaced as a whole. A scrub runs if and only if its lock is
//! held, so that one that was killed is not taken for a running one.

use crate::context::Context;
use crate::state_folder::state_folder;
use anyhow::Context as _;
use papilio::format::{PhysicalAddress, Uuid};
use papilio::{DeviceId, LogicalAddress, ScrubCounts, ScrubDevice, ScrubReport};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::PathBuf;

/// The report of a scrub, with its times.
#[derive(Clone, Debug)]
pub struct State {
    pub report: ScrubReport,
    /// Seconds since 1970.
    pub started: i64,
    pub resumed: Option<i64>,
    /// Seconds of work, those before the last resumption included.
    pub duration: f64,
    pub cancelled: bool,
    pub read_only: bool,
    /// Where the kernel's scrub of a device stopped before its end.
    pub stopped: BTreeMap<DeviceId, PhysicalAddress>,
}

/// The files of one file system.
#[derive(Debug)]
pub struct Folder {
    /// `None` if nothing is kept.
    path: Option<PathBuf>,
    fsid: Uuid,
}

/// Held by a running scrub.
#[derive(Debug)]
pub struct Running {
    _lock: Option<File>,
}

type Field = (&'static str, fn(&mut ScrubCounts) -> &mut u64);

/// The counters by name, in the order of `btrfs scrub status -R`.
pub const FIELDS: [Field; 14] = [
    ("data_extents_scrubbed", |counts| &mut counts.data_extents_scrubbed),
    ("tree_extents_scrubbed", |counts| &mut counts.tree_extents_scrubbed),
    ("data_bytes_scrubbed", |counts| &mut counts.data_bytes_scrubbed),
    ("tree_bytes_scrubbed", |counts| &mut counts.tree_bytes_scrubbed),
    ("read_errors", |counts| &mut counts.read_errors),
    ("csum_errors", |counts| &mut counts.csum_errors),
    ("verify_errors", |counts| &mut counts.verify_errors),
    ("no_csum", |counts| &mut counts.no_csum),
    ("super_errors", |counts| &mut counts.super_errors),
    ("uncorrectable_errors", |counts| &mut counts.uncorrectable_errors),
    ("corrected_errors", |counts| &mut counts.corrected_errors),
    ("generation_errors", |counts| &mut counts.generation_errors),
    ("parity_errors", |counts| &mut counts.parity_errors),
    ("write_errors", |counts| &mut counts.write_errors),
];

/// Returns the counters as a JSON object.
pub fn counts_json(counts: &ScrubCounts) -> Map<String, Value> {
    let mut counts = *counts;
    FIELDS.iter().map(|(name, field)| ((*name).to_owned(), json!(*field(&mut counts)))).collect()
}

impl State {
    /// Returns the state as JSON.
    pub fn to_json(&self) -> Value {
        let device = |device: &ScrubDevice| {
            let mut object = counts_json(&device.counts);
            object.insert("devid".into(), device.devid.0.into());
            object.insert("path".into(), device.path.clone().into());
            if let Some(at) = self.stopped.get(&device.devid) {
                object.insert("stopped".into(), at.0.into());
            }
            Value::Object(object)
        };
        json!({
            "devices": self.report.devices.iter().map(device).collect::<Vec<_>>(),
            "bytes_done": self.report.bytes_done,
            "bytes_total": self.report.bytes_total,
            "position": self.report.position.0,
            "skipped": self.report.skipped,
            "first_error": self.report.first_error,
            "undecodable": self.report.undecodable,
            "undecodable_extents": self.report.undecodable_extents,
            "lost_data": self.report.lost_data,
            "finished": self.report.finished,
            "started": self.started,
            "resumed": self.resumed,
            "duration": self.duration,
            "cancelled": self.cancelled,
            "read_only": self.read_only,
        })
    }

    fn from_json(value: &Value) -> Option<Self> {
        let number = |value: &Value, name: &str| value.get(name)?.as_u64();
        let (mut devices, mut stopped) = (Vec::new(), BTreeMap::new());
        for device in value.get("devices")?.as_array()? {
            let mut counts = ScrubCounts::default();
            for (name, field) in FIELDS {
                *field(&mut counts) = number(device, name)?;
            }
            let path = device.get("path")?.as_str().map(str::to_owned);
            let devid = DeviceId(number(device, "devid")?);
            if let Some(at) = number(device, "stopped") {
                stopped.insert(devid, PhysicalAddress(at));
            }
            devices.push(ScrubDevice { devid, path, counts });
        }
        // Absent in states of older versions.
        let lines = |name: &str| {
            let lines = value.get(name).and_then(Value::as_array);
            lines.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let report = ScrubReport {
            devices,
            bytes_done: number(value, "bytes_done")?,
            bytes_total: number(value, "bytes_total")?,
            position: LogicalAddress(number(value, "position")?),
            skipped: number(value, "skipped")?,
            first_error: value.get("first_error")?.as_str().map(str::to_owned),
            undecodable: number(value, "undecodable").unwrap_or(0),
            undecodable_extents: lines("undecodable_extents"),
            lost_data: lines("lost_data"),
            finished: value.get("finished")?.as_bool()?,
        };
        Some(Self {
            report,
            started: value.get("started")?.as_i64()?,
            resumed: value.get("resumed")?.as_i64(),
            duration: value.get("duration")?.as_f64()?,
            cancelled: value.get("cancelled")?.as_bool()?,
            read_only: value.get("read_only")?.as_bool()?,
            stopped,
        })
    }

    /// Adds the counters of the part before a resumption.
    pub fn add(&mut self, earlier: &ScrubReport) {
        let report = &mut self.report;
        for before in &earlier.devices {
            match report.devices.iter_mut().find(|device| device.devid == before.devid) {
                Some(device) => device.counts.add(&before.counts),
                None => report.devices.push(before.clone()),
            }
        }
        report.skipped += earlier.skipped;
        report.first_error = earlier.first_error.clone().or(report.first_error.take());
        report.undecodable += earlier.undecodable;
        report.undecodable_extents.splice(0..0, earlier.undecodable_extents.iter().cloned());
        report.lost_data.splice(0..0, earlier.lost_data.iter().cloned());
    }

    /// Returns whether errors are left that cannot be corrected.
    pub fn is_uncorrectable(&self) -> bool {
        let report = &self.report;
        report.total().uncorrectable_errors > 0 || report.skipped > 0 || report.undecodable > 0
    }

    /// Describes the errors that are left, in one line.
    pub fn uncorrectable_text(&self) -> String {
        let errors = self.report.total().uncorrectable_errors;
        let undecodable = match self.report.undecodable {
            0 => String::new(),
            count => {
                format!("{count} compressed extents do not decode: only a rewrite from a good copy cures it")
            }
        };
        if errors == 0 && self.report.skipped == 0 {
            return undecodable;
        }
        let named = self.report.first_error.as_ref().map_or_else(String::new, |error| format!(": {error}"));
        let and = if undecodable.is_empty() { "" } else { "; " };
        let left = match errors {
            0 => format!("{} ranges were not scrubbed", self.report.skipped),
            _ => format!("{errors} errors cannot be corrected"),
        };
        format!("{left}{named}{and}{undecodable}")
    }
}

impl Folder {
    /// Returns the files of a file system; makes the folder.
    pub fn of(fsid: Uuid) -> anyhow::Result<Self> {
        let path = state_folder("the state of the scrub")?;
        Ok(Self { path: Some(path), fsid })
    }

    /// Like [`Folder::of`]. Where no file can be written, it warns and keeps nothing: a scrub in
    /// the foreground needs no state.
    pub fn if_writable(context: &Context, fsid: Uuid) -> Self {
        let kept = Self::of(fsid).and_then(|folder| folder.lock().map(|_| folder));
        kept.unwrap_or_else(|error| {
            context.warning(format_args!(
                "{error:#}; the scrub runs, and status, cancel, limit and resume do not know of it"
            ));
            Self { path: None, fsid }
        })
    }

    fn file(&self, kind: &str) -> Option<PathBuf> {
        Some(self.path.as_ref()?.join(format!("scrub.{}.{kind}", self.fsid)))
    }

    /// Returns the state of the last scrub; `None` if there was none.
    pub fn read(&self) -> anyhow::Result<Option<State>> {
        let Some(path) = self.file("json") else { return Ok(None) };
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            text => text.with_context(|| format!("{}: cannot read", path.display()))?,
        };
        let state = serde_json::from_str(&text).ok().as_ref().and_then(State::from_json);
        state.map(Some).with_context(|| format!("{}: not the state of a scrub; remove it", path.display()))
    }

    /// Replaces the state.
    pub fn write(&self, state: &State) -> anyhow::Result<()> {
        self.replace("json", &format!("{:#}\n", state.to_json()))
    }

    fn replace(&self, kind: &str, text: &str) -> anyhow::Result<()> {
        let (Some(path), Some(new)) = (self.file(kind), self.file("new")) else { return Ok(()) };
        let written = fs::write(&new, text).and_then(|()| fs::rename(&new, &path));
        written.with_context(|| format!("{}: cannot write", path.display()))
    }

    /// Locks the file system for a scrub; `None` if one runs.
    pub fn lock(&self) -> anyhow::Result<Option<Running>> {
        let Some(path) = self.file("lock") else { return Ok(Some(Running { _lock: None })) };
        let lock = File::create(&path).with_context(|| format!("{}: cannot create", path.display()))?;
        match lock.try_lock() {
            Ok(()) => Ok(Some(Running { _lock: Some(lock) })),
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(error)) => {
                Err(error).with_context(|| format!("{}: cannot lock", path.display()))
            }
        }
    }

    /// Asks the running scrub to stop.
    pub fn request_stop(&self) -> anyhow::Result<()> {
        self.replace("stop", "")
    }

    /// Returns whether the scrub is to stop.
    pub fn is_stop_requested(&self) -> bool {
        self.file("stop").is_some_and(|path| path.exists())
    }

    /// Forgets a request to stop.
    pub fn clear_stop(&self) {
        // It mostly does not exist.
        let _ = self.file("stop").map(fs::remove_file);
    }

    /// Returns the bytes that are read in a second at most; 0 if there is no limit.
    pub fn limit(&self) -> u64 {
        let text = self.file("limit").and_then(|path| fs::read_to_string(path).ok());
        text.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }

    /// Sets the limit, for the running scrub and later ones.
    pub fn set_limit(&self, bytes: u64) -> anyhow::Result<()> {
        self.replace("limit", &format!("{bytes}\n"))
    }
}
