//! `papilio doctor`: the abilities of this machine that Papilio uses, and advice about the others.
//!
//! Owns the command and its output. The checks are in [`host`] and [`folder`]. They change nothing:
//! a check of a directory makes a file without a name there, which ends with the check.
//!
//! **Invariant**: a report holds no names, labels, UUIDs or paths of the machine or of an image.

mod finding;
mod folder;
mod host;

use crate::context::Context;
use crate::output::Output;
use crate::usage_error::UsageError;
use finding::{CheckState, Finding};
use papilio::{ChecksumState, SuperblockCopy};
use serde_json::json;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Show what this machine can do, and how to get what is missing
///
/// With IMAGE it also checks the directory that the image is in: direct I/O, holes, locks. It
/// changes nothing. The exit code is 0, or 1 if a check that --need names does not work.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// An image, a device, or a directory for images
    #[arg(value_name = "IMAGE", value_hint = clap::ValueHint::AnyPath)]
    image: Option<PathBuf>,
    /// Print a text for a bug report: versions, checks, and features of the image's file system. It
    /// has no names, labels or UUIDs
    #[arg(long, conflicts_with = "json")]
    report: bool,
    /// Fail unless this check works; may be repeated. The first column has the names
    #[arg(long, value_name = "CHECK")]
    need: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Runs the command.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let mut findings = host::findings();
        if let Some(image) = &self.image {
            findings.extend(folder::findings(image)?);
        }
        if let Some(unknown) = self.need.iter().find(|name| findings.iter().all(|found| found.name != **name))
        {
            let names: Vec<_> = findings.iter().map(|found| found.name).collect();
            let text = format_args!("--need {unknown}: no such check; the checks are {}", names.join(", "));
            return Err(UsageError::new(text).into());
        }
        let mut output = Output::new()?;
        if self.report {
            output.text(format_args!("{}", report(&findings, self.image.as_deref())))?;
        } else if self.json {
            let facts: serde_json::Map<_, _> =
                host::facts().into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
            let checks: Vec<_> = findings.iter().map(Finding::json).collect();
            let object = json!({ "version": env!("CARGO_PKG_VERSION"), "host": facts, "checks": checks });
            output.text(format_args!("{object:#}\n"))?;
        } else {
            for found in &findings {
                output.text(format_args!(
                    "{:<12} {:<8} {}\n",
                    found.name,
                    found.state.word(),
                    found.found
                ))?;
                if let Some(advice) = found.advice {
                    output.text(format_args!("{:<12} {:<8} -> {advice}\n", "", ""))?;
                }
            }
        }
        output.finish()?;
        for name in &self.need {
            let found = findings.iter().find(|found| found.name == *name).expect("it was looked for");
            if found.state != CheckState::Works {
                context.error(format_args!("{name}: {}: {}", found.state.word(), found.found));
            }
        }
        Ok(())
    }
}

/// Returns the text for a bug report.
fn report(findings: &[Finding], image: Option<&Path>) -> String {
    let mut text = String::from("### Papilio\n\n");
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "- {name}: {value}");
    };
    line("version", env!("CARGO_PKG_VERSION"));
    for (name, value) in host::facts() {
        line(name, &value);
    }
    text.push_str("\n### Checks\n\n");
    for found in findings {
        let _ = writeln!(text, "- {}: {}: {}", found.name, found.state.word(), found.found);
    }
    if let Some(image) = image.filter(|image| !image.is_dir()) {
        text.push_str("\n### File system\n\n");
        text.push_str(&file_system(image));
    }
    text
}

/// Describes the file system of an image, as far as it can be read.
fn file_system(image: &Path) -> String {
    let mut text = String::new();
    match SuperblockCopy::read(image, 0) {
        Ok(Some(copy)) if copy.has_magic() => {
            let raw = &copy.raw;
            let incompat: Vec<_> = raw.incompat_flags.iter_names().map(|(name, _)| name).collect();
            let checksum = match copy.checksum() {
                ChecksumState::Match(_) => "right",
                ChecksumState::Mismatch { .. } => "wrong",
                ChecksumState::UnknownType => "of an unknown type",
            };
            let mut line = |value: std::fmt::Arguments<'_>| {
                let _ = writeln!(text, "- {value}");
            };
            line(format_args!("superblock: its checksum is {checksum}"));
            line(format_args!(
                "device {}, sector {}, node {} bytes",
                raw.total_bytes, raw.sector_size, raw.node_size
            ));
            line(format_args!(
                "generation {}, devices {}, used {} bytes",
                raw.generation, raw.num_devices, raw.bytes_used
            ));
            line(format_args!("incompat: {}", incompat.join(", ")));
            line(format_args!("compat_ro {:#x}, flags {:#x}", raw.compat_ro_flags.bits(), raw.flags.bits()));
            line(format_args!("log of fsyncs: {}", if raw.log_root.0 == 0 { "none" } else { "present" }));
        }
        Ok(_) => text.push_str("- no Btrfs superblock at its usual place\n"),
        // The message would name the path.
        Err(_) => text.push_str("- the superblock cannot be read\n"),
    }
    match papilio::FileSystem::open(image).and_then(|fs| fs.usage()) {
        Ok(usage) => {
            for space in &usage.spaces {
                let (kind, profile) = (space.kind_name(), space.profile);
                let _ = writeln!(text, "- {kind} {profile}: {} of {} bytes used", space.used, space.total);
            }
        }
        Err(error) => {
            let _ = writeln!(text, "- it cannot be opened: {:?}", error.kind());
        }
    }
    text
}
