//! The arguments as typed: the definitions that the parser, the man pages and the shell completions
//! share.
//!
//! Owns [`Cli`], the options that every command takes, and the one liberty taken with clap's
//! grammar: `find` also knows its tests by one dash, as find(1) does.

use crate::commands::Command;
use clap::{ArgAction, Args, CommandFactory, Parser};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// Looks into Btrfs file systems, in images and on devices, and copies out of them, without a
/// kernel driver and without root.
///
/// IMAGE:/path names a file inside a file system, where IMAGE is a regular file or a block device.
/// Commands that only look write nothing to IMAGE. A file system of several devices wants one --device for each
/// further one.
#[derive(Debug, Parser)]
#[command(name = "papilio", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = "Exit status: 0 if all went well, 1 if something failed, 2 for wrong usage.")]
pub struct Cli {
    /// Options of every command.
    #[command(flatten)]
    pub global: GlobalArgs,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const HEADING: &str = "File system options";

/// Options of every command: how file systems are opened, and how much is said.
#[derive(Clone, Debug, Default, Args)]
pub struct GlobalArgs {
    /// A further device of the file system (once for each)
    #[arg(long, value_name = "PATH", global = true, help_heading = HEADING)]
    #[arg(value_hint = clap::ValueHint::FilePath)]
    pub device: Vec<PathBuf>,
    /// Read although devices are missing, as far as each chunk's profile allows
    #[arg(long, global = true, help_heading = HEADING)]
    pub degraded: bool,
    /// Fall back to the superblock's older roots where the newest cannot be read
    #[arg(long, global = true, help_heading = HEADING)]
    pub backup_root: bool,
    /// Use superblock copy N (0 at 64 KiB, 1 at 64 MiB, 2 at 256 GiB)
    #[arg(long, value_name = "N", global = true, help_heading = HEADING)]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=2))]
    pub superblock: Option<u8>,
    /// Paths start in this subvolume, named by its path from the top level
    ///
    /// Without --subvol, --subvolid and --default-subvol they start in the top level (id 5), from
    /// which all others can be reached.
    #[arg(long, value_name = "PATH", global = true, help_heading = HEADING)]
    #[arg(conflicts_with_all = ["subvolid", "default_subvol"])]
    pub subvol: Option<OsString>,
    /// Paths start in the subvolume with this id
    #[arg(long, value_name = "ID", global = true, help_heading = HEADING)]
    #[arg(conflicts_with = "default_subvol")]
    pub subvolid: Option<u64>,
    /// Paths start in the subvolume that a mount without options would show
    #[arg(long, global = true, help_heading = HEADING)]
    pub default_subvol: bool,
    /// Say less: no warnings
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub quiet: u8,
    /// Say more
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,
}

/// Gives `find`'s options their second dash (`-name` becomes `--name`), so that what find(1) users
/// type works. Arguments of other commands, short options and values stay as they are.
pub fn with_long_dashes(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = arguments.into_iter().collect();
    let root = Cli::command();
    let Some(at) = command_position(&root, &arguments) else { return arguments };
    if arguments[at] != "find" {
        return arguments;
    }
    let Some(find) = root.find_subcommand("find") else { return arguments };
    let mut next = at + 1;
    while next < arguments.len() {
        let bytes = arguments[next].as_bytes();
        if bytes == b"--" {
            break;
        }
        let name = bytes.strip_prefix(b"--").or(bytes.strip_prefix(b"-")).unwrap_or_default();
        let long = option_named(find, name).or(option_named(&root, name));
        if let (Some(option), [b'-', second, ..]) = (long, bytes) {
            if *second != b'-' {
                arguments[next] = OsString::from_vec([b"--", name].concat());
            }
            next += usize::from(takes_value(option));
        }
        next += 1;
    }
    arguments
}

/// Where the subcommand's name stands.
fn command_position(root: &clap::Command, arguments: &[OsString]) -> Option<usize> {
    let mut at = 1;
    while let Some(argument) = arguments.get(at) {
        let Some(name) = argument.as_bytes().strip_prefix(b"--") else {
            if argument.as_bytes().starts_with(b"-") {
                at += 1;
                continue;
            }
            return Some(at);
        };
        at += 1 + usize::from(option_named(root, name).is_some_and(takes_value));
    }
    None
}

fn option_named<'a>(command: &'a clap::Command, name: &[u8]) -> Option<&'a clap::Arg> {
    command
        .get_arguments()
        .find(|option| option.get_long().is_some_and(|long| OsStr::new(long).as_bytes() == name))
}

fn takes_value(option: &clap::Arg) -> bool {
    option.get_action().takes_values()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dashed(line: &str) -> String {
        let arguments = line.split(' ').map(OsString::from);
        let out = with_long_dashes(arguments);
        out.join(OsStr::new(" ")).into_string().unwrap()
    }

    #[test]
    fn definitions_hold() {
        Cli::command().debug_assert();
    }

    #[test]
    fn find_takes_one_dash() {
        assert_eq!(
            dashed("papilio --device b find a:/ -name *.c -mtime -3 -print0 -v"),
            "papilio --device b find a:/ --name *.c --mtime -3 --print0 -v"
        );
    }

    #[test]
    fn values_and_other_commands_stay() {
        assert_eq!(dashed("papilio find a:/ --name -size"), "papilio find a:/ --name -size");
        assert_eq!(dashed("papilio ls -name a:/"), "papilio ls -name a:/");
        assert_eq!(dashed("papilio find a:/ -- -name"), "papilio find a:/ -- -name");
        assert_eq!(dashed("papilio --device find"), "papilio --device find");
    }
}
