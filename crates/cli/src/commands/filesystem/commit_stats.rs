//! `papilio filesystem commit-stats`, in the format of `btrfs filesystem commit-stats`.

use crate::context::Context;
use crate::mounted::Target;
use crate::output::Output;
use anyhow::{Context as _, bail};
use papilio::Uuid;
use serde_json::{Map, Value};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Show how many commits a mount has made, and how long they took
///
/// The kernel counts them for its own mounts since the mount. The server of a mount of Papilio does
/// not, and an image that is not mounted has no commits to count.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A directory in a mount of the kernel's Btrfs
    #[arg(value_hint = clap::ValueHint::AnyPath)]
    path: OsString,
    /// Set the longest commit to zero after printing it
    #[arg(short = 'z', long)]
    reset: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The counters: name in the file of sysfs, title.
const COUNTERS: [(&str, &str); 4] = [
    ("commits", "Total commits"),
    ("last_commit_ms", "Last commit duration"),
    ("max_commit_ms", "Max commit duration"),
    ("total_commit_ms", "Total time spent in commit"),
];

impl Args {
    /// Prints the counters.
    pub fn run(self, _context: &Context) -> anyhow::Result<()> {
        let mounted = match Target::parse(&self.path)? {
            Target::Mounted(mounted) if !mounted.mount.is_papilio() => mounted,
            Target::Mounted(mounted) => bail!("{mounted}: Papilio's server does not count commits"),
            Target::Image(path) => {
                bail!("{}: not mounted; there are no commits to count", path.image.display())
            }
        };
        let info = mounted.open()?.fs_info().map_err(|error| mounted.at(&error))?;
        let fsid = Uuid::from_bytes(info.fsid);
        let file = PathBuf::from(format!("/sys/fs/btrfs/{fsid}/commit_stats"));
        let counters = parse(&read(&file)?);
        let mut output = Output::new()?;
        if self.json {
            let mut object = Map::from_iter([("fsid".to_owned(), Value::from(fsid.to_string()))]);
            object.extend(counters.iter().map(|(name, value)| (name.clone(), (*value).into())));
            output.text(format_args!("{:#}\n", Value::Object(object)))?;
        } else {
            output.text(format_args!("UUID: {fsid}\nCommit stats since mount:\n"))?;
            for (name, title) in COUNTERS {
                let Some((_, value)) = counters.iter().find(|(known, _)| known == name) else { continue };
                let unit = if name == "commits" { "" } else { "ms" };
                let title = format!("{title}:");
                output.text(format_args!("  {title:<28}{value:>8}{unit}\n"))?;
            }
        }
        output.finish()?;
        if self.reset {
            std::fs::write(&file, "0").with_context(|| file.display().to_string())?;
        }
        Ok(())
    }
}

fn read(file: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(file).with_context(|| file.display().to_string())
}

/// Parses lines of a name and a number.
fn parse(text: &str) -> Vec<(String, u64)> {
    let of_line = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        Some((name.to_owned(), value.trim().parse().ok()?))
    };
    text.lines().filter_map(of_line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_parsed() {
        let counters = parse("commits 3\nlast_commit_ms 5\nodd\n");
        assert_eq!(counters, [("commits".to_owned(), 3), ("last_commit_ms".to_owned(), 5)]);
    }
}
