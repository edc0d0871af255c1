//! What a check shall do, and how it tells of its progress.

use std::fmt;
use std::sync::Arc;

type Callback = Arc<dyn Fn(CheckProgress) + Send + Sync>;

/// Options of a check.
#[derive(Clone)]
pub struct CheckOptions {
    pub(super) data_csum: bool,
    pub(super) max_findings: usize,
    pub(super) progress: Option<Callback>,
}

impl Default for CheckOptions {
    fn default() -> Self {
        Self { data_csum: false, max_findings: 10_000, progress: None }
    }
}

impl CheckOptions {
    /// Metadata only, at most 10,000 findings kept.
    pub fn new() -> Self {
        Self::default()
    }

    /// Also reads all data that has checksums, every copy of it.
    pub fn data_csum(mut self, data_csum: bool) -> Self {
        self.data_csum = data_csum;
        self
    }

    /// Keeps at most so many findings, and the first of each kind; the others are counted.
    pub fn max_findings(mut self, max_findings: usize) -> Self {
        self.max_findings = max_findings;
        self
    }

    /// Calls `callback` now and then, from the thread that checks.
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
            .field("max_findings", &self.max_findings)
            .finish_non_exhaustive()
    }
}

/// What a check is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CheckStage {
    /// Walking the trees; counted in tree blocks.
    Trees,
    /// Comparing references, extents and free space; not counted.
    Space,
    /// Reading data; counted in bytes.
    Data,
}

/// How far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckProgress {
    /// What it is doing.
    pub stage: CheckStage,
    /// How much is done.
    pub done: u64,
    /// How much there is, where that is known.
    pub total: Option<u64>,
}
