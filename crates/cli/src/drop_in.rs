//! The names of btrfs-progs' programs, under which the command takes their place.
//!
//! Owns [`translate`]. A link `btrfs`, `mkfs.btrfs`, `btrfstune`, `btrfsck`, `fsck.btrfs`,
//! `btrfs-convert`, `btrfs-find-root`, `btrfs-image`, `btrfs-map-logical` or `btrfs-select-super`
//! to this program takes the arguments of that program, and prints its messages on success. The
//! options of single commands are those of `papilio`'s, which are named after btrfs-progs' wherever
//! both have one; docs/commands.md lists the differences.

use crate::btrfs_json::FORMATTED;
use crate::usage_error::UsageError;
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// The option that makes commands print the messages of btrfs-progs.
const DROP_IN: &str = "--drop-in";

/// The commands and groups of `btrfs`, by which a word is completed. `papilio` has more.
const GROUPS: [&str; 16] = [
    "balance",
    "check",
    "device",
    "filesystem",
    "help",
    "inspect-internal",
    "property",
    "qgroup",
    "quota",
    "receive",
    "replace",
    "rescue",
    "restore",
    "scrub",
    "send",
    "subvolume",
];

/// Returns the arguments of `papilio` if the program was run under a name of btrfs-progs.
///
/// # Errors
/// A program that has no counterpart.
pub fn translate(arguments: Vec<OsString>) -> Result<Vec<OsString>, UsageError> {
    of_program(arguments).map(with_algorithm)
}

/// Writes the algorithm of `filesystem defragment -czstd` behind an equal sign: a value that may be
/// absent needs one. An algorithm that does not exist is refused as such.
fn with_algorithm(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let defragments = |word: &OsString| word.to_str().is_some_and(|word| word.starts_with("def"));
    if !arguments.iter().take(5).any(defragments) {
        return arguments;
    }
    for argument in &mut arguments {
        let Some(text) = argument.to_str() else { continue };
        let is_flag = |letter: char| "rfvqc".contains(letter);
        if let Some((letters, algorithm)) = text.strip_prefix('-').and_then(|text| text.split_once('c'))
            && letters.chars().all(is_flag)
            && !algorithm.starts_with('=')
            && !algorithm.chars().all(is_flag)
        {
            *argument = format!("-{letters}c={algorithm}").into();
        }
    }
    arguments
}

/// Returns the exit code for wrong usage of the program that the command takes the place of, or
/// `None` under a name of its own. For btrfs-progs' programs it is that of any failure; 2 has other
/// meanings there, as in `btrfs scrub`. fsck(8) reserves a code.
pub fn usage_code(arguments: &[OsString]) -> Option<u8> {
    match program_name(arguments).as_str() {
        "fsck.btrfs" => Some(16),
        "btrfs" | "mkfs.btrfs" | "btrfstune" | "btrfsck" | "btrfs-image" | "btrfs-map-logical"
        | "btrfs-find-root" | "btrfs-select-super" | "btrfs-convert" => Some(1),
        _ => None,
    }
}

fn program_name(arguments: &[OsString]) -> String {
    let name = arguments.first().and_then(|name| Path::new(name).file_name());
    name.and_then(OsStr::to_str).unwrap_or_default().to_owned()
}

fn of_program(arguments: Vec<OsString>) -> Result<Vec<OsString>, UsageError> {
    let name = program_name(&arguments);
    let name = name.as_str();
    let rest = || arguments.iter().skip(1).cloned();
    let prefixed = |command: &[&str], rest: &mut dyn Iterator<Item = OsString>| {
        let start = ["papilio"].iter().chain(command).map(OsString::from);
        Ok(start.chain(rest).collect())
    };
    match name {
        "btrfs" => prefixed(&[DROP_IN], &mut of_btrfs(rest().collect())?.into_iter()),
        "mkfs.btrfs" => prefixed(&[DROP_IN, "mkfs"], &mut rest()),
        "btrfstune" => prefixed(&[DROP_IN, "tune"], &mut rest()),
        "btrfs-image" => prefixed(&[DROP_IN, "btrfs-image"], &mut rest()),
        "btrfs-find-root" => prefixed(&[DROP_IN, "rescue", "find-root"], &mut rest()),
        "btrfs-select-super" => prefixed(&[DROP_IN, "rescue", "select-super"], &mut rest()),
        "btrfs-map-logical" => prefixed(&[DROP_IN, "inspect", "map-logical"], &mut rest()),
        "btrfsck" => prefixed(&[DROP_IN, "check"], &mut rest()),
        // As the original, it checks nothing: a boot must not wait for a check of everything.
        "fsck.btrfs" => prefixed(&[DROP_IN, "fsck-at-boot"], &mut rest()),
        "btrfs-convert" => prefixed(&[DROP_IN, "convert"], &mut rest()),
        _ => Ok(arguments),
    }
}

/// Translates the global options of `btrfs`, and commands that are elsewhere in `papilio`.
fn of_btrfs(arguments: Vec<OsString>) -> Result<Vec<OsString>, UsageError> {
    let mut translated = Vec::new();
    let mut global = Global::default();
    let mut arguments = arguments.into_iter().peekable();
    while let Some(option) = arguments.next_if(|argument| argument.to_str().is_some_and(is_option)) {
        if !global.take(&option, &mut arguments)? {
            translated.push(option);
        }
    }
    // The format may also follow the command.
    let mut words: Vec<OsString> = Vec::new();
    while let Some(word) = arguments.next() {
        if !word.to_str().is_some_and(|text| text.starts_with("--format"))
            || !global.take(&word, &mut arguments)?
        {
            words.push(word);
        }
    }
    if let Some(first) = words.first_mut()
        && let Some(text) = first.to_str()
    {
        let mut groups = GROUPS.into_iter().filter(|group| group.starts_with(text));
        if let (Some(group), None) = (groups.next(), groups.next()) {
            *first = group.into();
        }
    }
    let is = |word: Option<&OsString>, whole: &str, least: usize| {
        word.and_then(|word| word.to_str()).is_some_and(|word| word.len() >= least && whole.starts_with(word))
    };
    let bare = words.iter().skip(1).all(|word| word == "--");
    if is(words.first(), "version", 1) && bare {
        words = vec!["--version".into()];
    }
    let full = words.iter().skip(1).all(|word| word == "--" || word == "--full");
    if words.first().is_some_and(|word| word == "help" || word == "--help") && full {
        words.truncate(1);
    }
    let grouped = [("filesystem", "balance", 1), ("device", "replace", 3)];
    if grouped
        .iter()
        .any(|(group, name, least)| is(words.first(), group, 1) && is(words.get(1), name, *least))
    {
        words.remove(0);
    }
    if is(words.first(), "subvolume", 1) && is(words.get(1), "delete", 1) {
        // The name of one of our global options.
        for word in words.iter_mut().filter(|word| *word == "--subvolid") {
            *word = "--rootid".into();
        }
    }
    let is_command = |words: &[OsString], (group, name): &(&str, &str)| {
        is(words.first(), group, 2) && is(words.get(1), name, 2)
    };
    let is_verbose = |word: &OsString| ["-v", "--verbose", "-q", "--quiet"].iter().any(|one| word == one);
    if is_command(&words, &("filesystem", "df")) && words.iter().any(is_verbose) {
        return Err(UsageError::new("filesystem df: has no options -v and -q"));
    }
    if is_command(&words, &("filesystem", "resize")) && !words.iter().any(|word| word == "--help") {
        let operands = words.iter().skip(2).filter(|word| !word.as_encoded_bytes().starts_with(b"--"));
        let count = operands.count();
        if count != 2 {
            let text = format!("btrfs filesystem resize: exactly 2 arguments expected, {count} given");
            return Err(UsageError::new(text));
        }
    }
    if global.dry_run {
        if !is_command(&words, &("subvolume", "delete")) {
            return Err(UsageError::new("--dry-run: only subvolume delete has it"));
        }
        words.push("--dry-run".into());
    }
    if global.json {
        if !FORMATTED.iter().any(|command| is_command(&words, command)) {
            return Err(UsageError::new("--format json: this command has no such output"));
        }
        words.push("--json".into());
    }
    translated.extend(words);
    Ok(translated)
}

/// The global options of `btrfs` that are translated.
#[derive(Default)]
struct Global {
    json: bool,
    dry_run: bool,
}

impl Global {
    /// Takes an option, and its value from the arguments behind it. Returns whether it is one of
    /// these.
    fn take(
        &mut self,
        option: &OsStr,
        behind: &mut impl Iterator<Item = OsString>,
    ) -> Result<bool, UsageError> {
        let text = option.to_str().unwrap_or_default();
        let (name, given) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
        let mut value = || match given {
            Some(value) => value.to_owned(),
            None => behind.next().map(|value| value.to_string_lossy().into_owned()).unwrap_or_default(),
        };
        match name {
            "--format" => match &*value() {
                "json" => self.json = true,
                "text" => self.json = false,
                other => {
                    return Err(UsageError::new(format_args!("--format: {other:?} is not text or json")));
                }
            },
            "--log" => match &*value() {
                "default" | "info" | "verbose" | "debug" | "quiet" => {}
                other => return Err(UsageError::new(format_args!("--log: {other:?} is no level"))),
            },
            "--dry-run" => self.dry_run = true,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn is_option(text: &str) -> bool {
    text.starts_with('-') && text != "--help" && text != "-h"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(line: &str) -> String {
        let arguments = line.split(' ').map(OsString::from).collect();
        let words = translate(arguments).unwrap();
        words.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn names_and_global_options_are_translated() {
        assert_eq!(translated("/x/btrfs su li /m"), "papilio --drop-in subvolume li /m");
        assert_eq!(translated("btrfs -q fi df /m"), "papilio --drop-in -q filesystem df /m");
        assert_eq!(translated("btrfs --format json dev st /m"), "papilio --drop-in device st /m --json");
        assert_eq!(translated("btrfs qgr show --format=json /m"), "papilio --drop-in qgroup show /m --json");
        assert_eq!(translated("btrfs version --"), "papilio --drop-in --version");
        assert_eq!(translated("btrfs help --full"), "papilio --drop-in help");
        assert_eq!(translated("btrfs --help --full"), "papilio --drop-in --help");
        assert_eq!(translated("btrfs --log=info help"), "papilio --drop-in help");
        let dry = translated("btrfs --dry-run sub del /m/a /m/b");
        assert_eq!(dry, "papilio --drop-in subvolume del /m/a /m/b --dry-run");
        assert_eq!(translated("btrfs fi df --format text /m"), "papilio --drop-in filesystem df /m");
        let mapped = translated("btrfs-map-logical -l 5 /dev/a");
        assert_eq!(mapped, "papilio --drop-in inspect map-logical -l 5 /dev/a");
        assert_eq!(translated("btrfs filesystem balance start /m"), "papilio --drop-in balance start /m");
        assert_eq!(translated("btrfs device replace status /m"), "papilio --drop-in replace status /m");
        let deleted = translated("btrfs subvol delete --subvolid 257 /m");
        assert_eq!(deleted, "papilio --drop-in subvolume delete --rootid 257 /m");
        let defragmented = translated("btrfs fi defrag -rczstd -v /m");
        assert_eq!(defragmented, "papilio --drop-in filesystem defrag -rc=zstd -v /m");
        for (given, meant) in [("-czstd:15", "-c=zstd:15"), ("-rcfoo", "-rc=foo"), ("-cr", "-cr")] {
            let defragmented = translated(&format!("papilio filesystem defragment {given} /m"));
            assert_eq!(defragmented, format!("papilio filesystem defragment {meant} /m"));
        }
        assert_eq!(translated("papilio find /m -czstd"), "papilio find /m -czstd");
        assert_eq!(translated("btrfs version"), "papilio --drop-in --version");
        assert_eq!(translated("mkfs.btrfs -f -L x img"), "papilio --drop-in mkfs -f -L x img");
        assert_eq!(translated("btrfs-find-root -a i"), "papilio --drop-in rescue find-root -a i");
        assert_eq!(translated("btrfs-image -r a b"), "papilio --drop-in btrfs-image -r a b");
        assert_eq!(translated("btrfsck img"), "papilio --drop-in check img");
        assert_eq!(translated("btrfs-convert -r i"), "papilio --drop-in convert -r i");
        assert_eq!(translated("papilio check img"), "papilio check img");
        for refused in [
            "btrfs --log=loud help",
            "btrfs --format xml fi df /m",
            "btrfs --format json filesystem usage /m",
            "btrfs --dry-run subvolume create /m/a",
            "btrfs filesystem df -v /m",
            "btrfs filesystem resize /m",
        ] {
            let words = refused.split(' ').map(OsString::from).collect();
            assert!(translate(words).is_err(), "{refused}");
        }
    }
}
