//! Switches between several ways to do the same thing.
//!
//! Owns [`Tuning`]: one row for each mechanism whose gain is to be measured, the fast way first and by
//! default. All ways of a row make the same results and the same format; they differ in speed only. Text like
//! `nocow_check=collect-all,...` parses into one.

use papilio_pagecache::CacheInsert;
use std::fmt;
use std::str::FromStr;

/// How it is asked whether a range has checksums (row 000 of the tuning switches).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NocowCheck {
    /// Stops at the first one that is there.
    #[default]
    FirstMatch,
    /// Collects all of them and looks whether there are any, as the kernel did before.
    CollectAll,
}

/// How an fsync's items enter the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogItems {
    /// They are complete before the log tree's lock is taken, and enter it in one pass.
    #[default]
    Prepared,
    /// They are read and put one after the other while it is held.
    InPlace,
}

/// When the checksums of a write are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteChecksum {
    /// By other threads while the device writes; a write ends when both have. By the writer, before, where that
    /// costs less: for small writes, and by an algorithm that keeps up with memory on this processor.
    #[default]
    Overlapped,
    /// By the writer, before the device gets the data.
    BeforeSubmit,
    /// By another thread, which then hands the data to the device.
    Offloaded,
}

/// How the checksums of what was read are looked up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CsumLookup {
    /// By a cursor on the stack, without allocation; an open file keeps those around what was read, so that the
    /// tree is asked once for many.
    #[default]
    Stack,
    /// In the tree for each request, by a cursor that is allocated, and copied to memory that is allocated too.
    Heap,
}

/// Which of several ways things are done.
///
/// ```
/// use papilio::{NocowCheck, Tuning};
///
/// let tuning: Tuning = "nocow_check=collect-all".parse()?;
/// assert_eq!(tuning.nocow_check, NocowCheck::CollectAll);
/// assert!(Tuning::default().to_string().starts_with("nocow_check=first-match,"));
/// assert!("nocow_check=perhaps".parse::<Tuning>().is_err());
/// # Ok::<(), papilio::TuningError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tuning {
    /// How it is asked whether a range has checksums before it is overwritten in place.
    pub nocow_check: NocowCheck,
    /// How an fsync's items enter the log.
    pub log_items: LogItems,
    /// When the checksums of a write are computed.
    pub write_checksum: WriteChecksum,
    /// How the checksums of what was read are looked up.
    pub csum_lookup: CsumLookup,
    /// How pages enter the page cache.
    pub cache_insert: CacheInsert,
}

/// A switch that cannot be set so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TuningError {
    /// No such row.
    #[error("{0:?} is no tuning switch; there are: {rows}", rows = ROWS.map(|row| row.name).join(", "))]
    UnknownSwitch(String),
    /// The row has other ways.
    #[error("{switch}={value:?}: it is one of {ways}")]
    UnknownWay {
        /// The row.
        switch: &'static str,
        /// What was asked for.
        value: String,
        /// What there is.
        ways: String,
    },
}

/// A row: its name, its ways (the default first), and how to get and set it by the way's place.
struct Row {
    name: &'static str,
    ways: &'static [&'static str],
    get: fn(&Tuning) -> usize,
    set: fn(&mut Tuning, usize),
}

/// All rows that are there.
const ROWS: [Row; 5] = [
    Row {
        name: "nocow_check",
        ways: &["first-match", "collect-all"],
        get: |tuning| tuning.nocow_check as usize,
        set: |tuning, way| tuning.nocow_check = [NocowCheck::FirstMatch, NocowCheck::CollectAll][way],
    },
    Row {
        name: "log_items",
        ways: &["prepared", "in-place"],
        get: |tuning| tuning.log_items as usize,
        set: |tuning, way| tuning.log_items = [LogItems::Prepared, LogItems::InPlace][way],
    },
    Row {
        name: "write_checksum",
        ways: &["overlapped", "before-submit", "offloaded"],
        get: |tuning| tuning.write_checksum as usize,
        set: |tuning, way| {
            let ways = [WriteChecksum::Overlapped, WriteChecksum::BeforeSubmit, WriteChecksum::Offloaded];
            tuning.write_checksum = ways[way];
        },
    },
    Row {
        name: "csum_lookup",
        ways: &["stack", "heap"],
        get: |tuning| tuning.csum_lookup as usize,
        set: |tuning, way| tuning.csum_lookup = [CsumLookup::Stack, CsumLookup::Heap][way],
    },
    Row {
        name: "cache_insert",
        ways: &["one-walk", "many-walks"],
        get: |tuning| tuning.cache_insert as usize,
        set: |tuning, way| tuning.cache_insert = [CacheInsert::OneWalk, CacheInsert::ManyWalks][way],
    },
];

impl FromStr for Tuning {
    type Err = TuningError;

    fn from_str(text: &str) -> Result<Self, TuningError> {
        let mut tuning = Self::default();
        for setting in text.split(',').map(str::trim).filter(|setting| !setting.is_empty()) {
            let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
            let row = ROWS.iter().find(|row| row.name == name);
            let row = row.ok_or_else(|| TuningError::UnknownSwitch(name.to_owned()))?;
            let way =
                row.ways.iter().position(|way| *way == value).ok_or_else(|| TuningError::UnknownWay {
                    switch: row.name,
                    value: value.to_owned(),
                    ways: row.ways.join(", "),
                })?;
            (row.set)(&mut tuning, way);
        }
        Ok(tuning)
    }
}

impl fmt::Display for Tuning {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, row) in ROWS.iter().enumerate() {
            let comma = if number > 0 { "," } else { "" };
            write!(formatter, "{comma}{}={}", row.name, row.ways[(row.get)(self)])?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_of_every_row_survives_text() {
        for row in &ROWS {
            for way in row.ways {
                let text = format!("{}={way}", row.name);
                let tuning: Tuning = text.parse().unwrap();
                assert!(tuning.to_string().split(',').any(|setting| setting == text), "{text}");
            }
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert_eq!("fast".parse::<Tuning>(), Err(TuningError::UnknownSwitch("fast".to_owned())));
        let error = "nocow_check=".parse::<Tuning>().unwrap_err();
        assert_eq!(error.to_string(), "nocow_check=\"\": it is one of first-match, collect-all");
    }
}
