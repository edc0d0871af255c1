//! The test that docs/commands.md lists every command and option of the installed `btrfs`.
//!
//! A row has the command, whether Papilio has it, the options that are missing, and remarks that
//! are kept by hand. `PAPILIO_PRINT_TABLE=1` prints the rows as they should be.

use crate::cli::Cli;
use clap::CommandFactory;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::process::Command;

/// Options that are accepted before clap sees them. `--format` becomes `--json`, too.
const TRANSLATED: [(&str, &str, &str); 3] =
    [("balance", "start", "-d"), ("balance", "start", "-m"), ("balance", "start", "-s")];

fn help(words: &[&str]) -> Option<String> {
    let output = Command::new("btrfs").args(words).output().ok()?;
    Some(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

/// Returns the commands as one or two words.
fn commands(help: &str) -> BTreeSet<Vec<String>> {
    let lines = help.lines().filter_map(|line| line.strip_prefix("    btrfs "));
    let is_word = |word: &&str| word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
    let named = |line: &str| {
        let words = line.split(' ').take(2).take_while(|word| is_word(word) && !word.starts_with('-'));
        words.map(str::to_owned).collect::<Vec<_>>()
    };
    lines.map(named).filter(|words| words[0] != "help" && words[0] != "version").collect()
}

/// Returns the spellings of each option.
fn options(help: &str) -> Vec<Vec<String>> {
    let of_line = |line: &str| {
        let spec = line.strip_prefix("    ").filter(|spec| spec.starts_with('-'))?;
        let spec = spec.split(' ').next()?;
        let cut = |name: &str| name.split(['[', '=', '<']).next().unwrap_or_default().to_owned();
        let names: Vec<_> = spec.split('|').map(cut).filter(|name| name.starts_with('-')).collect();
        (!names.is_empty() && names[0] != "--").then_some(names)
    };
    help.lines().filter_map(of_line).collect()
}

fn accepts(command: &clap::Command, name: &str) -> bool {
    command.get_arguments().any(|option| match name.strip_prefix("--") {
        Some(long) => {
            option.get_long() == Some(long)
                || option.get_all_aliases().is_some_and(|aliases| aliases.contains(&long))
        }
        None => {
            let short = name.chars().nth(1);
            option.get_short() == short
                || option.get_all_short_aliases().is_some_and(|all| all.iter().any(|one| Some(*one) == short))
        }
    })
}

fn row(root: &clap::Command, words: &[String]) -> String {
    let mut found = Some(root);
    for word in words {
        found = found.and_then(|command| command.find_subcommand(word));
    }
    let name = words.join(" ");
    let elsewhere = matches!(words, [device, replace] if device == "device" && replace == "replace");
    let Some(command) = found else {
        let there = if elsewhere { "yes" } else { "no" };
        return format!("| `btrfs {name}` | {there} | |");
    };
    let mut arguments: Vec<&str> = words.iter().map(String::as_str).collect();
    arguments.push("--help");
    let text = help(&arguments).unwrap_or_default();
    let is_there = |name: &String| {
        let translated =
            |(one, other, option): &(&str, &str, &str)| words == [*one, *other] && name == option;
        let formats = name == "--format" && accepts(command, "--json");
        formats || accepts(command, name) || accepts(root, name) || TRANSLATED.iter().any(translated)
    };
    let missing = options(&text).into_iter().filter(|names| !names.iter().any(is_there));
    let mut list = String::new();
    for names in missing {
        let comma = if list.is_empty() { "" } else { ", " };
        write!(list, "{comma}`{}`", names[0]).expect("a String takes all");
    }
    let space = if list.is_empty() { "" } else { " " };
    format!("| `btrfs {name}` | yes |{space}{list} |")
}

#[test]
fn every_command_of_btrfs_progs_is_in_the_table() {
    let Some(text) = help(&["help"]) else {
        assert!(std::env::var_os("PAPILIO_REQUIRE_ALL").is_none(), "needs btrfs-progs");
        println!("skipped: needs btrfs-progs");
        return;
    };
    let mut root = Cli::command();
    root.build();
    let rows: Vec<_> = commands(&text).iter().map(|words| row(&root, words)).collect();
    assert!(rows.len() > 60, "{rows:#?}");
    assert_documented(&rows);
}

/// Fails unless docs/commands.md has lines that start with `rows`.
fn assert_documented(rows: &[String]) {
    if std::env::var_os("PAPILIO_PRINT_TABLE").is_some() {
        println!("{}", rows.join("\n"));
    }
    let document = include_str!("../../../docs/commands.md");
    let missing: Vec<_> =
        rows.iter().filter(|row| !document.lines().any(|line| line.starts_with(&***row))).collect();
    assert!(missing.is_empty(), "docs/commands.md lacks {missing:#?}");
}

/// A row has the spellings of an option, and whether `papilio mkfs` takes them all.
#[test]
fn every_option_of_mkfs_is_in_the_table() {
    let Some(program) = ["mkfs.btrfs", "/sbin/mkfs.btrfs", "/usr/sbin/mkfs.btrfs"]
        .into_iter()
        .find_map(|name| Command::new(name).arg("--help").output().ok())
    else {
        assert!(std::env::var_os("PAPILIO_REQUIRE_ALL").is_none(), "needs mkfs.btrfs");
        println!("skipped: needs mkfs.btrfs");
        return;
    };
    let text = String::from_utf8_lossy(&[program.stdout, program.stderr].concat()).into_owned();
    let mut root = Cli::command();
    root.build();
    let mkfs = root.find_subcommand("mkfs").expect("there is a command mkfs");
    let row = |names: &Vec<String>| {
        let taken = |name: &&String| accepts(mkfs, name) || accepts(&root, name);
        let missing: Vec<_> = names.iter().filter(|name| !taken(name)).collect();
        let there = match () {
            () if missing.is_empty() => "yes",
            () if missing.len() == names.len() => "no",
            () => panic!("{missing:?} of {names:?}: one spelling is taken and another is not"),
        };
        format!("| `mkfs.btrfs` `{}` | {there} |", names.join("`, `"))
    };
    let rows: Vec<_> = options(&text).iter().map(row).collect();
    assert!(rows.len() > 15, "{rows:#?}");
    assert_documented(&rows);
}

/// A row has an option of `btrfs-image`, and whether it is taken here.
#[test]
fn every_option_of_btrfs_image_is_in_the_table() {
    let Ok(program) = Command::new("btrfs-image").arg("--help").output() else {
        assert!(std::env::var_os("PAPILIO_REQUIRE_ALL").is_none(), "needs btrfs-image");
        println!("skipped: needs btrfs-image");
        return;
    };
    let text = String::from_utf8_lossy(&[program.stdout, program.stderr].concat()).into_owned();
    let mut root = Cli::command();
    root.build();
    let image = root.find_subcommand("btrfs-image").expect("there is a command btrfs-image");
    let row = |names: &Vec<String>| {
        let there = if accepts(image, &names[0]) { "yes" } else { "no" };
        format!("| `btrfs-image` `{}` | {there} |", names[0])
    };
    let rows: Vec<_> = options(&text).iter().map(row).collect();
    assert!(rows.len() > 6, "{rows:#?}");
    assert_documented(&rows);
}
