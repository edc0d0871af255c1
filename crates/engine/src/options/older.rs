//! The older states that readers show where they cannot show the newest content.
//!
//! Owns [`OlderState`] and [`OlderCause`], which tell why, and [`OlderFile`], which names a file
//! that is affected. Opening a file system for reading makes them; front ends print them.
//!
//! **Invariant**: a reader that shows anything but the newest content has at least one
//! [`OlderState`].
//!
//! Locks: none.
//!
//! Kernel counterpart: none. A mount of the kernel fails where it cannot replay the log.

use papilio_format::{Generation, InodeNumber, LogicalAddress, TreeId};
use std::fmt;

/// Why a reader shows an older state than the newest one on the devices.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OlderCause {
    /// The options forbid the replay of the log of fsyncs.
    LogForbidden,
    /// The log of fsyncs cannot be replayed.
    LogUnusable {
        /// The fault, and its place.
        reason: String,
    },
    /// The log of fsyncs was replayed without its bad items.
    LogPartial {
        /// The items that were left out or changed.
        faults: Vec<String>,
    },
    /// The superblock that names the log of fsyncs is lost, but blocks of a log are left.
    LogLost,
    /// The options choose other roots than the newest.
    Chosen {
        /// The newest generation that a superblock names.
        newest: Generation,
    },
    /// The options choose a superblock copy, and another one is newer or names a log of fsyncs.
    ChosenSuperblock {
        /// The newest generation that a superblock names.
        newest: Generation,
    },
    /// The options choose a superblock copy that never names a log of fsyncs, and the first copy,
    /// which may have named one, is bad.
    LogUnknown {
        /// The chosen copy.
        copy: usize,
    },
    /// The options choose the root block of a subvolume, and there is a log of fsyncs.
    ChosenRootOfFiles {
        /// The address of that block.
        address: LogicalAddress,
    },
    /// The roots of the last commit cannot be read.
    Fallback {
        /// The generation of the last commit, or of the newest block that is left.
        newest: Generation,
        /// The fault of those roots; empty if it was reported already.
        reason: String,
    },
    /// Several root trees of one generation were found, and nothing tells which one is the last.
    Doubtful {
        /// The addresses of the others.
        others: Vec<LogicalAddress>,
    },
    /// The root tree that was found is incomplete: subvolumes may be missing.
    IncompleteRoots {
        /// The blocks that it lacks.
        missing: u64,
    },
    /// Another superblock copy is newer than the one in use.
    NewerSuperblock {
        /// The device.
        device: String,
        /// The copy, 0 to 2.
        copy: usize,
        /// The generation that it names.
        newest: Generation,
    },
}

impl OlderCause {
    /// Returns a short name, which stays the same between versions.
    pub fn name(&self) -> &'static str {
        match self {
            Self::LogForbidden => "log-forbidden",
            Self::LogUnusable { .. } => "log-unusable",
            Self::LogPartial { .. } => "log-partial",
            Self::LogLost => "log-lost",
            Self::Chosen { .. } => "chosen-root",
            Self::ChosenSuperblock { .. } => "chosen-superblock",
            Self::LogUnknown { .. } => "log-unknown",
            Self::ChosenRootOfFiles { .. } => "chosen-root-of-files",
            Self::Fallback { .. } => "fallback",
            Self::Doubtful { .. } => "doubtful-roots",
            Self::IncompleteRoots { .. } => "incomplete-roots",
            Self::NewerSuperblock { .. } => "newer-superblock",
        }
    }
}

/// An older state that a reader shows, and its cause.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OlderState {
    /// Why a newer one is not shown.
    pub cause: OlderCause,
    /// The generation that is shown.
    pub shown: Generation,
    /// The log of fsyncs that is not shown.
    pub log: Option<UnreplayedLog>,
}

/// A log of fsyncs that was not replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnreplayedLog {
    /// The address of its root block.
    pub address: LogicalAddress,
    /// The level of its root block.
    pub level: u8,
    /// The generation of the commit before it.
    pub committed: Generation,
}

impl OlderState {
    /// Describes the state `shown`.
    #[doc(hidden)]
    pub fn new(cause: OlderCause, shown: Generation, log: Option<UnreplayedLog>) -> Self {
        Self { cause, shown, log }
    }

    /// Returns whether the options ask for exactly this state.
    pub fn is_asked(&self) -> bool {
        match self.cause {
            OlderCause::LogForbidden
            | OlderCause::LogUnknown { .. }
            | OlderCause::Chosen { .. }
            | OlderCause::ChosenSuperblock { .. }
            | OlderCause::ChosenRootOfFiles { .. } => true,
            OlderCause::LogUnusable { .. }
            | OlderCause::LogLost
            | OlderCause::LogPartial { .. }
            | OlderCause::Fallback { .. }
            | OlderCause::Doubtful { .. }
            | OlderCause::IncompleteRoots { .. }
            | OlderCause::NewerSuperblock { .. } => false,
        }
    }

    /// Returns whether a log of fsyncs belongs to this state.
    pub fn has_log(&self) -> bool {
        self.log.is_some()
    }
}

impl fmt::Display for OlderState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.shown;
        match &self.cause {
            OlderCause::LogForbidden => {
                write!(f, "the log of fsyncs is not replayed, as asked: ")?;
                write!(f, "the last commit, of generation {shown}, is shown")
            }
            OlderCause::LogUnusable { reason } => write!(
                f,
                "the log of fsyncs cannot be replayed: {reason}; the last commit, of generation {shown}, is \
                 shown"
            ),
            OlderCause::LogPartial { faults } => write!(
                f,
                "the log of fsyncs was replayed without what cannot be read, so files may be older: {}",
                faults.join("; ")
            ),
            OlderCause::LogLost => write!(
                f,
                "blocks of a log of fsyncs are left, but not the superblock that names it: the last \
                 commit, of generation {shown}, is shown"
            ),
            OlderCause::Chosen { newest } | OlderCause::ChosenSuperblock { newest } => {
                write!(f, "generation {shown} is shown, as asked; the last commit is of {newest}")?;
                let log = if self.has_log() { ", and a log of fsyncs follows it" } else { "" };
                f.write_str(log)
            }
            OlderCause::LogUnknown { copy } => write!(
                f,
                "superblock copy {copy} is read, as asked, and names no log of fsyncs; copy 0, which \
                 may have named one, is bad: --scan looks for it"
            ),
            OlderCause::ChosenRootOfFiles { address } => {
                write!(f, "the root of files {address} is shown, as asked, without the log of fsyncs")
            }
            OlderCause::Fallback { newest, reason } => {
                write!(f, "this is an older state than that of the last commit: ")?;
                write!(f, "generation {shown} is shown, and blocks of generation {newest} are left")?;
                if reason.is_empty() { Ok(()) } else { write!(f, " ({reason})") }
            }
            OlderCause::Doubtful { others } => {
                let others: Vec<String> = others.iter().map(LogicalAddress::to_string).collect();
                write!(
                    f,
                    "this may be an older state: nothing tells which root tree of generation {shown} is \
                     the last one; --tree-root {} shows another",
                    others.join(" or ")
                )
            }
            OlderCause::IncompleteRoots { missing } => write!(
                f,
                "the root tree of generation {shown} lacks {missing} blocks: subvolumes may be missing"
            ),
            OlderCause::NewerSuperblock { device, copy, newest } => write!(
                f,
                "superblock copy {copy} of {device} is newer: it names generation {newest}, and \
                 {shown} is shown; --superblock {copy} reads that copy"
            ),
        }
    }
}

/// How the log of fsyncs differs from a file that is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OlderPart {
    /// The log has newer content, attributes or names.
    Changed,
    /// Only the log has it.
    Missing,
    /// The log has removed this name.
    Removed,
    /// A part of the log cannot be read: more may be older.
    Unknown {
        /// The fault, and its place.
        reason: String,
    },
}

impl OlderPart {
    /// Returns a short name, which stays the same between versions.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Changed => "changed",
            Self::Missing => "missing",
            Self::Removed => "removed",
            Self::Unknown { .. } => "unknown",
        }
    }
}

/// A file or directory for which a log of fsyncs has something newer than the state that is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OlderFile {
    /// The subvolume; `None` for a fault that concerns all logs.
    pub subvolume: Option<TreeId>,
    /// The inode; `None` for a fault of the log.
    pub inode: Option<InodeNumber>,
    /// The path from the top level, without a leading slash, as far as it is known; that of the
    /// subvolume for a fault.
    pub path: Vec<u8>,
    /// The difference.
    pub part: OlderPart,
}

impl OlderFile {
    /// Returns the difference in words.
    pub fn reason(&self) -> String {
        match &self.part {
            OlderPart::Changed => "it is older: the log of fsyncs has newer content".to_owned(),
            OlderPart::Missing => "it is missing: only the log of fsyncs has it".to_owned(),
            OlderPart::Removed => "it is older: the log of fsyncs has removed this name".to_owned(),
            OlderPart::Unknown { reason } => {
                format!("a part of the log of fsyncs cannot be read, so more may be older: {reason}")
            }
        }
    }
}

impl fmt::Display for OlderFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}: {}", String::from_utf8_lossy(&self.path), self.reason())
    }
}
