//! Switches between implementations of one mechanism.
//!
//! Owns [`Tuning`], with one switch for each mechanism whose gain is measured. Its fastest
//! implementation comes first and is the default. All implementations give the same results and the
//! same disk format, and differ in speed only. A [`Tuning`] is parsed from text like
//! `nocow_check=collect-all,...`.
//!
//! The slow positions exist for measurements: a build has them with the Cargo feature `ablation`.

use papilio_pagecache::CacheInsert;
use std::fmt;
use std::str::FromStr;

/// How a range is checked for checksums before it is overwritten in place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum NocowCheck {
    /// Stops at the first checksum.
    #[default]
    FirstMatch,
    /// Collects all checksums and then checks whether there are any, as the kernel used to.
    #[cfg(feature = "ablation")]
    CollectAll,
}

impl NocowCheck {
    /// The implementations that this build has, the fastest first.
    pub const ALL: &[Self] = &[
        Self::FirstMatch,
        #[cfg(feature = "ablation")]
        Self::CollectAll,
    ];
}

/// How the items of an fsync enter the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogItems {
    /// All items are complete before the log tree's lock is taken, and enter it in one pass.
    #[default]
    Prepared,
    /// Each item is read and inserted while the lock is held.
    #[cfg(feature = "ablation")]
    InPlace,
}

impl LogItems {
    /// The implementations that this build has, the fastest first.
    pub const ALL: &[Self] = &[
        Self::Prepared,
        #[cfg(feature = "ablation")]
        Self::InPlace,
    ];
}

/// When the checksums of written data are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WriteChecksum {
    /// By other threads while the device writes; a write ends when both are done. Small writes, and
    /// algorithms as fast as memory on this processor, are computed by the writer beforehand.
    #[default]
    Overlapped,
    /// By the writer, before it submits the data to the device.
    #[cfg(feature = "ablation")]
    BeforeSubmit,
    /// By another thread, which then submits the data to the device.
    #[cfg(feature = "ablation")]
    Offloaded,
}

impl WriteChecksum {
    /// The implementations that this build has, the fastest first.
    pub const ALL: &[Self] = &[
        Self::Overlapped,
        #[cfg(feature = "ablation")]
        Self::BeforeSubmit,
        #[cfg(feature = "ablation")]
        Self::Offloaded,
    ];

    /// Returns whether the writer computes the checksums before it submits the data.
    pub(crate) fn is_before_submit(self) -> bool {
        match self {
            #[cfg(feature = "ablation")]
            Self::BeforeSubmit => true,
            _ => false,
        }
    }
}

/// How the checksums of data that was read are looked up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CsumLookup {
    /// By a cursor on the stack, without allocation. An open file keeps nearby checksums, so that
    /// one look-up in the tree serves many reads.
    #[default]
    Stack,
    /// By a heap-allocated cursor, in the tree for each request, into a heap-allocated buffer.
    #[cfg(feature = "ablation")]
    Heap,
}

impl CsumLookup {
    /// The implementations that this build has, the fastest first.
    pub const ALL: &[Self] = &[
        Self::Stack,
        #[cfg(feature = "ablation")]
        Self::Heap,
    ];

    /// Returns whether an open file keeps checksums nearby.
    pub(crate) fn is_cached(self) -> bool {
        matches!(self, Self::Stack)
    }
}

/// Which results of a compressor are decoded and compared with the data before they are written. A
/// result that differs is never written, and the data is stored uncompressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum VerifyCompression {
    /// Those of levels at which decoding costs less than a tenth of the compression: zlib from 7
    /// on, and zstd from 5 on. In debug builds all.
    #[default]
    Cheap,
    /// All.
    Always,
}

impl VerifyCompression {
    /// The implementations that this build has, the fastest first.
    pub const ALL: &[Self] = &[Self::Cheap, Self::Always];
}

/// A choice of implementations.
///
/// ```
/// use papilio::{Tuning, VerifyCompression};
///
/// let tuning: Tuning = "verify_compression=always".parse()?;
/// assert_eq!(tuning.verify_compression, VerifyCompression::Always);
/// assert!(Tuning::default().to_string().starts_with("nocow_check=first-match,"));
/// assert!("nocow_check=perhaps".parse::<Tuning>().is_err());
/// # Ok::<(), papilio::TuningError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tuning {
    /// How a range is checked for checksums before it is overwritten in place.
    pub nocow_check: NocowCheck,
    /// How the items of an fsync enter the log.
    pub log_items: LogItems,
    /// When the checksums of written data are computed.
    pub write_checksum: WriteChecksum,
    /// How the checksums of data that was read are looked up.
    pub csum_lookup: CsumLookup,
    /// How pages are inserted into the page cache.
    pub cache_insert: CacheInsert,
    /// Which results of a compressor are verified.
    pub verify_compression: VerifyCompression,
}

/// An invalid setting of a switch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TuningError {
    /// There is no such switch.
    #[error(
        "there is no tuning switch {0:?}; the switches are {switches}",
        switches = SWITCHES.map(|switch| switch.name).join(", ")
    )]
    UnknownSwitch(String),
    /// The implementation is for measurements, and this build lacks it.
    #[error("tuning switch {switch}={value}: this build lacks it; build with the feature `ablation`")]
    LeftOut {
        /// The name of the switch.
        switch: &'static str,
        /// The value that was given.
        value: &'static str,
    },
    /// The switch has no such implementation.
    #[error("tuning switch {switch}={value:?}: expected one of {ways}")]
    UnknownWay {
        /// The name of the switch.
        switch: &'static str,
        /// The value that was given.
        value: String,
        /// The valid values.
        ways: String,
    },
}

/// A switch: its name, its values (the default first), and access to it by the index of a value.
struct Switch {
    name: &'static str,
    values: &'static [&'static str],
    /// How many of the values this build has.
    built: usize,
    get: fn(&Tuning) -> usize,
    set: fn(&mut Tuning, usize),
}

/// All switches.
const SWITCHES: [Switch; 6] = [
    Switch {
        name: "nocow_check",
        values: &["first-match", "collect-all"],
        built: NocowCheck::ALL.len(),
        get: |tuning| tuning.nocow_check as usize,
        set: |tuning, index| tuning.nocow_check = NocowCheck::ALL[index],
    },
    Switch {
        name: "log_items",
        values: &["prepared", "in-place"],
        built: LogItems::ALL.len(),
        get: |tuning| tuning.log_items as usize,
        set: |tuning, index| tuning.log_items = LogItems::ALL[index],
    },
    Switch {
        name: "write_checksum",
        values: &["overlapped", "before-submit", "offloaded"],
        built: WriteChecksum::ALL.len(),
        get: |tuning| tuning.write_checksum as usize,
        set: |tuning, index| tuning.write_checksum = WriteChecksum::ALL[index],
    },
    Switch {
        name: "csum_lookup",
        values: &["stack", "heap"],
        built: CsumLookup::ALL.len(),
        get: |tuning| tuning.csum_lookup as usize,
        set: |tuning, index| tuning.csum_lookup = CsumLookup::ALL[index],
    },
    Switch {
        name: "cache_insert",
        values: &["one-walk", "many-walks"],
        built: CacheInsert::ALL.len(),
        get: |tuning| tuning.cache_insert as usize,
        set: |tuning, index| tuning.cache_insert = CacheInsert::ALL[index],
    },
    Switch {
        name: "verify_compression",
        values: &["cheap", "always"],
        built: VerifyCompression::ALL.len(),
        get: |tuning| tuning.verify_compression as usize,
        set: |tuning, index| tuning.verify_compression = VerifyCompression::ALL[index],
    },
];

impl FromStr for Tuning {
    type Err = TuningError;

    fn from_str(text: &str) -> Result<Self, TuningError> {
        let mut tuning = Self::default();
        for setting in text.split(',').map(str::trim).filter(|setting| !setting.is_empty()) {
            let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
            let switch = SWITCHES.iter().find(|switch| switch.name == name);
            let switch = switch.ok_or_else(|| TuningError::UnknownSwitch(name.to_owned()))?;
            let index = switch.values.iter().position(|known| *known == value).ok_or_else(|| {
                TuningError::UnknownWay {
                    switch: switch.name,
                    value: value.to_owned(),
                    ways: switch.values.join(", "),
                }
            })?;
            if index >= switch.built {
                return Err(TuningError::LeftOut { switch: switch.name, value: switch.values[index] });
            }
            (switch.set)(&mut tuning, index);
        }
        Ok(tuning)
    }
}

impl fmt::Display for Tuning {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, switch) in SWITCHES.iter().enumerate() {
            let comma = if number > 0 { "," } else { "" };
            write!(formatter, "{comma}{}={}", switch.name, switch.values[(switch.get)(self)])?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_of_every_switch_round_trips() {
        for switch in &SWITCHES {
            for value in switch.values {
                let text = format!("{}={value}", switch.name);
                if !switch.values[..switch.built].contains(value) {
                    let error = text.parse::<Tuning>().unwrap_err();
                    assert!(error.to_string().contains("ablation"), "{error}");
                    continue;
                }
                let tuning: Tuning = text.parse().unwrap();
                assert!(tuning.to_string().split(',').any(|setting| setting == text), "{text}");
            }
        }
    }

    #[test]
    fn errors_name_the_wrong_setting() {
        assert_eq!("fast".parse::<Tuning>(), Err(TuningError::UnknownSwitch("fast".to_owned())));
        let error = "nocow_check=".parse::<Tuning>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "tuning switch nocow_check=\"\": expected one of first-match, collect-all"
        );
    }
}
