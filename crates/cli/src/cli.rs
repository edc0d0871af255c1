//! The command line as typed.
//!
//! Owns [`Cli`], from whose definition the parser, the manual pages and the shell completions come,
//! and the one deviation from clap's grammar: `find` accepts its tests with one dash, as find(1)
//! does.

use crate::args::{GlobalArgs, HEADING};
use crate::command_table::help_template;
use crate::commands::{Command, definition_of};
use crate::numbers;
use clap::{CommandFactory, FromArgMatches, Parser};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Read and change Btrfs file systems in images and on devices, without a kernel driver
///
/// IMAGE:/PATH names a file inside a file system, where IMAGE is a regular file or a block device.
/// IMAGE@N:/PATH names one in partition N of a disk image, which may be raw, qcow2, VMDK or VHDX.
/// Commands that only read never write to IMAGE. A file system on several devices needs one
/// --device for each further device.
#[derive(Debug, Parser)]
#[command(name = "papilio", version, propagate_version = true, max_term_width = 100)]
#[command(infer_subcommands = true)]
#[command(after_help = "Exit status: 0 on success, 1 if something failed, 2 for wrong usage.")]
pub struct Cli {
    /// The options that every command takes.
    #[command(flatten)]
    pub global: GlobalArgs,
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// The command line without its commands.
#[derive(Debug, Parser)]
#[command(name = "papilio", version, propagate_version = true, infer_subcommands = true)]
#[command(subcommand_required = true)]
struct Head {
    #[command(flatten)]
    _global: GlobalArgs,
}

impl Cli {
    /// Parses `arguments`, the first of which is the program's own name.
    ///
    /// # Errors
    /// Wrong usage, or a request for the help or the version: clap makes errors of these too.
    pub fn parse_arguments(arguments: Vec<OsString>) -> Result<Self, clap::Error> {
        if let [_, only] = &arguments[..]
            && (only == "--version" || only == "-V")
        {
            let version = Head::command().try_get_matches_from(arguments);
            return Err(version.expect_err("clap makes an error of the version"));
        }
        // Errors and helps come from the whole definition.
        match Self::parse_one_command(&arguments) {
            Some(parsed) => Ok(parsed),
            None => Self::parse_any_command(arguments),
        }
    }

    /// Parses the arguments by the definition of the command that they name, which takes a part of
    /// the time. Returns `None` where the whole definition has to decide.
    fn parse_one_command(arguments: &[OsString]) -> Option<Self> {
        let head = Head::command();
        let at = command_position(&head, arguments)?;
        let command = definition_of(arguments[at].to_str()?)?;
        let mut definition = with_short_help(head.subcommand(command));
        let arguments = translated(&mut definition, arguments.to_vec());
        let mut matches = definition.try_get_matches_from_mut(arguments).ok()?;
        Self::from_arg_matches_mut(&mut matches).ok()
    }

    fn parse_any_command(arguments: Vec<OsString>) -> Result<Self, clap::Error> {
        let mut definition = with_short_help(Self::command());
        let asks = |word: &str| arguments.iter().any(|argument| argument == word);
        if arguments.len() < 2 || asks("-h") || asks("--help") || asks("help") {
            let template = help_template(&definition, asks("--help") || asks("help"));
            definition = definition.help_template(template);
        }
        let arguments = translated(&mut definition, arguments);
        let mut matches = definition.try_get_matches_from_mut(arguments)?;
        Self::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut definition))
    }
}

/// Spells arguments as clap expects them, and sets how `definition` reads them.
fn translated(definition: &mut clap::Command, arguments: Vec<OsString>) -> Vec<OsString> {
    let is_drop_in = arguments.get(1).is_some_and(|first| first == "--drop-in");
    if is_drop_in {
        // As getopt_long(3) does.
        *definition = std::mem::take(definition).infer_long_args(true);
    }
    let arguments = with_long_dashes(definition, with_long_filters(arguments));
    match is_drop_in {
        true => numbers::without_blanks(definition, arguments),
        false => arguments,
    }
}

/// Spells the filters of `balance start` as options with an optional value: `-dusage=5` becomes
/// `--data=usage=5`. A short option with an optional value would take the next argument for it.
fn with_long_filters(arguments: Vec<OsString>) -> Vec<OsString> {
    let starts = |pair: &[OsString]| short_for(&pair[0], "balance", 2) && short_for(&pair[1], "start", 4);
    let Some(at) = arguments.windows(2).position(starts) else { return arguments };
    let spelled = |(index, argument): (usize, OsString)| {
        let text = argument.to_str().filter(|_| index > at + 1).unwrap_or_default();
        let long = [("-d", "--data"), ("-m", "--metadata"), ("-s", "--system")];
        let found = long.into_iter().find_map(|(short, long)| Some((long, text.strip_prefix(short)?)));
        match found {
            Some((long, "")) => long.into(),
            Some((long, filters)) => format!("{long}={}", filters.trim_start_matches('=')).into(),
            None => argument,
        }
    };
    arguments.into_iter().enumerate().map(spelled).collect()
}

/// Returns whether a word is the start of a command's name, of at least `least` letters.
fn short_for(word: &OsStr, name: &str, least: usize) -> bool {
    word.to_str().is_some_and(|word| word.len() >= least && name.starts_with(word))
}

/// Commands that open no file system, or open it by options of their own.
const WITHOUT_FILE_SYSTEM: [&str; 4] = ["bench", "completions", "man", "umount"];

/// Hides the file system options in the help of the subcommands, which refer to the main help
/// instead.
fn with_short_help(root: clap::Command) -> clap::Command {
    let hidden: Vec<clap::Arg> = root
        .get_arguments()
        .filter(|option| option.get_help_heading() == Some(HEADING))
        .map(|option| option.clone().hide(true))
        .collect();
    root.mut_subcommands(|command| {
        let refers = !WITHOUT_FILE_SYSTEM.contains(&command.get_name());
        // clap copies a global option only into subcommands that have none of that name.
        let own: Vec<_> = command.get_arguments().map(|option| option.get_id().clone()).collect();
        let command = command.args(hidden.iter().filter(|option| !own.contains(option.get_id())));
        if refers { with_reference(command) } else { command }
    })
}

/// Adds a reference to the file system options to the help of `command` and its subcommands.
fn with_reference(command: clap::Command) -> clap::Command {
    const REFERENCE: &str =
        "See papilio --help or papilio(8) for the file system options, such as --device and --subvol.";
    let text = match command.get_after_help() {
        Some(text) => format!("{text}\n\n{REFERENCE}"),
        None => REFERENCE.to_owned(),
    };
    command.after_help(text).mut_subcommands(with_reference)
}

/// Adds the second dash to `find`'s options (`-name` becomes `--name`), so that find(1)'s syntax
/// works. Leaves the arguments of other commands, short options and values unchanged.
fn with_long_dashes(root: &clap::Command, mut arguments: Vec<OsString>) -> Vec<OsString> {
    let Some(at) = command_position(root, &arguments) else { return arguments };
    if arguments[at] == "setfattr" {
        return with_long_value(at, arguments);
    }
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
        let long = option_named(find, name).or(option_named(root, name));
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

/// Replaces `setfattr`'s `-v VALUE` by `--value VALUE`, as setfattr(1) spells it: for all other
/// commands -v is --verbose.
fn with_long_value(at: usize, mut arguments: Vec<OsString>) -> Vec<OsString> {
    let options = arguments[at..].iter().take_while(|argument| *argument != "--").count();
    for next in at + 1..at + options {
        let bytes = arguments[next].as_bytes();
        // The value of the option before may itself look like an option.
        let is_value =
            ["-n", "--name", "--value", "-x", "--remove"].iter().any(|o| arguments[next - 1] == *o);
        if !is_value && let Some(value) = bytes.strip_prefix(b"-v") {
            arguments[next] = match value {
                b"" => OsString::from("--value"),
                value => OsString::from_vec([b"--value=", value].concat()),
            };
        }
    }
    arguments
}

/// Returns the index of the subcommand's name in `arguments`.
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
        let arguments = line.split(' ').map(OsString::from).collect();
        let out = with_long_dashes(&Cli::command(), arguments);
        out.join(OsStr::new(" ")).into_string().unwrap()
    }

    #[test]
    fn a_command_alone_is_defined_as_among_all() {
        let mut all = Cli::command();
        all.build();
        for command in all.get_subcommands().filter(|command| command.get_name() != "help") {
            let name = command.get_name();
            let mut alone = Head::command().subcommand(definition_of(name).expect(name));
            alone.build();
            let alone = alone.find_subcommand_mut(name).unwrap().render_long_help().to_string();
            assert_eq!(command.clone().render_long_help().to_string(), alone);
        }
    }

    #[test]
    fn one_command_is_parsed_as_all_are() {
        for line in [
            "papilio ls -l i:/",
            "papilio --device b -v check --readonly i",
            "papilio --drop-in --key-file k subvolume list -t i",
            "papilio find i:/ -name x -size +5k",
            "papilio setfattr -n user.a -v x i:/f",
            "papilio balance start -dusage=5 --full-balance i",
            "papilio inspect dump-tree -t 5 i",
            "papilio --drop-in inspect-internal dump-tree -t 5 i",
            "papilio mkfs -L x -O ^bgt i",
            "papilio --drop-in filesystem resize 1:-5M i",
        ] {
            let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let one = Cli::parse_one_command(&arguments).expect(line);
            let any = Cli::parse_any_command(arguments).expect(line);
            assert_eq!(format!("{one:?}"), format!("{any:?}"), "{line}");
        }
        for line in [
            "papilio",
            "papilio l i",
            "papilio ls --help",
            "papilio help ls",
            "papilio --version",
            "papilio ls",
        ] {
            let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert!(Cli::parse_one_command(&arguments).is_none(), "{line}");
        }
    }

    #[test]
    fn definition_passes_claps_checks() {
        Cli::command().debug_assert();
        with_short_help(Cli::command()).debug_assert();
    }

    #[test]
    fn find_accepts_one_dash() {
        assert_eq!(
            dashed("papilio --device b find a:/ -name *.c -mtime -3 -print0 -v"),
            "papilio --device b find a:/ --name *.c --mtime -3 --print0 -v"
        );
    }

    #[test]
    fn setfattr_takes_a_value_with_v() {
        assert_eq!(
            dashed("papilio setfattr -n user.a -v b a:/f"),
            "papilio setfattr -n user.a --value b a:/f"
        );
        assert_eq!(dashed("papilio setfattr -n -v -vb a:/f"), "papilio setfattr -n -v --value=b a:/f");
        assert_eq!(dashed("papilio -v setfattr -n a -- -v"), "papilio -v setfattr -n a -- -v");
    }

    #[test]
    fn option_values_and_other_commands_are_unchanged() {
        assert_eq!(dashed("papilio find a:/ --name -size"), "papilio find a:/ --name -size");
        assert_eq!(dashed("papilio ls -name a:/"), "papilio ls -name a:/");
        assert_eq!(dashed("papilio find a:/ -- -name"), "papilio find a:/ -- -name");
        assert_eq!(dashed("papilio --device find"), "papilio --device find");
    }

    #[test]
    fn file_system_options_work_before_and_after_the_command() {
        for line in [
            "papilio --device b --degraded subvolume list a",
            "papilio subvolume --device b list --degraded a",
            "papilio subvolume list --device b --degraded a",
        ] {
            let cli = Cli::parse_arguments(line.split(' ').map(OsString::from).collect()).unwrap();
            assert_eq!(cli.global.device, [std::path::Path::new("b")], "{line}");
            assert!(cli.global.degraded, "{line}");
        }
    }

    #[test]
    fn file_system_options_are_in_the_main_help_alone() {
        let help = |line: &str| {
            let arguments = line.split(' ').map(OsString::from).collect();
            Cli::parse_arguments(arguments).unwrap_err().to_string()
        };
        assert!(help("papilio --help").contains("--backup-root"));
        for line in ["papilio ls --help", "papilio subvolume list --help", "papilio umount --help"] {
            assert!(!help(line).contains("--backup-root"), "{line}");
        }
        assert!(help("papilio subvolume list --help").contains("papilio(8)"));
        assert!(!help("papilio umount --help").contains("papilio(8)"));
    }
}
