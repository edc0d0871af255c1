//! Options of a check, and reports of its progress.

use std::fmt;
use std::sync::Arc;

type Callback = Arc<dyn Fn(CheckProgress) + Send + Sync>;

/// Options of a check.
#[derive(Clone)]
pub struct CheckOptions {
    pub(super) data_csum: bool,
    pub(super) decode: bool,
    pub(super) max_findings: usize,
    pub(super) progress: Option<Callback>,
}

impl Default for CheckOptions {
    fn default() -> Self {
        Self { data_csum: false, decode: true, max_findings: 10_000, progress: None }
    }
}

impl CheckOptions {
    /// Returns the defaults: checks metadata only, and keeps at most 10,000 findings.
    pub fn new() -> Self {
        Self::default()
    }

    /// Also reads every copy of all data that has checksums, and verifies it.
    pub fn data_csum(mut self, data_csum: bool) -> Self {
        self.data_csum = data_csum;
        self
    }

    /// Whether compressed data whose checksums match is decoded as well, which is the default. It
    /// takes the processor several times as long as the checksums.
    pub fn decode(mut self, decode: bool) -> Self {
        self.decode = decode;
        self
    }

    /// Keeps at most this many findings, and the first of each kind; the rest are only counted.
    pub fn max_findings(mut self, max_findings: usize) -> Self {
        self.max_findings = max_findings;
        self
    }

    /// Calls `callback` repeatedly, from the thread that checks.
    pub fn progress(mut self, callback: impl Fn(CheckProgress) + Send + Sync + 'static) -> Self {
        self.progress = Some(Arc::new(callback));
        self
    }

    pub(super) fn report(&self, stage: CheckStage, done: u64, total: Option<u64>) {
        if let Some(callback) = &self.progress {
            callback(CheckProgress { stage, done, total });
        }
    }
}

impl fmt::Debug for CheckOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckOptions")
            .field("data_csum", &self.data_csum)
            .field("decode", &self.decode)
            .field("max_findings", &self.max_findings)
            .finish_non_exhaustive()
    }
}

/// The stage of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(not(feature = "unstable"), non_exhaustive)]
pub enum CheckStage {
    /// Walking the trees; progress counts tree blocks.
    Trees,
    /// Comparing references, extents and free space; without counts.
    Space,
    /// Reading data; progress counts bytes.
    Data,
}

/// The progress of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckProgress {
    /// The current stage, which sets the unit of the counts.
    pub stage: CheckStage,
    /// How much of the stage is done.
    pub done: u64,
    /// The total of the stage, if it is known.
    pub total: Option<u64>,
}
