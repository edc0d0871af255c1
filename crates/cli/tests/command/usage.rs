//! Wrong usage, help, completions and manual pages.

use crate::common::{fail, papilio, succeed, text};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

#[test]
fn wrong_usage_is_exit_code_2() {
    for arguments in [
        &[][..],
        &["nonsense"],
        &["ls"],
        &["ls", "--nonsense", "a:/"],
        &["ls", "--superblock", "3", "a:/"],
        &["ls", "--subvol", "a", "--subvolid", "5", "a:/"],
        &["completions", "tcsh"],
    ] {
        let output = papilio(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(!output.stderr.is_empty() && output.stdout.is_empty(), "{arguments:?}");
    }
    fail(2, "not a number", ["find", "a:/", "-size", "x"]);
    fail(2, "not an octal mode", ["find", "a:/", "-perm", "u+x"]);
    fail(2, "not a list of", ["find", "a:/", "-type", "x"]);
    fail(2, "not a time", ["find", "a:/", "-newermt", "teatime"]);
    fail(2, "unknown job \"9\"", ["bench", "--jobs", "9"]);
    fail(2, "unknown side \"ext4\"", ["bench", "--sides", "ext4"]);
    fail(2, "--rounds 0", ["bench", "sweep", "--over", "threads", "--rounds", "0"]);
}

#[test]
fn missing_bench_report_is_named() {
    fail(1, "/nowhere/report.json", ["bench", "--report", "/nowhere/report.json"]);
}

#[test]
fn bench_compares_images_of_a_directory() {
    let table = text(&succeed(["--quiet", "bench", "image", "--files", "150", "--rounds", "1"]));
    assert!(table.contains("papilio mkfs --rootdir") && table.contains("1.00 times papilio"), "{table}");
    assert_eq!(table.lines().count(), 3, "{table}");
}

#[test]
fn help_is_on_standard_output() {
    for command in ["ls", "cat", "stat", "cp", "find", "du", "mkfs", "bench", "completions", "man"] {
        let help = text(&succeed([command, "--help"]));
        assert!(help.contains("Usage: papilio"), "{help}");
    }
    assert!(text(&succeed(["--version"])).starts_with("papilio "));
}

#[test]
fn completions_include_commands_and_options() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = text(&succeed(["completions", shell]));
        assert!(script.contains("subvolid") && script.contains("maxdepth"), "{shell}");
    }
}

/// Returns the commands that `papilio ARGUMENTS --help` lists, without `help` itself.
fn commands_of(arguments: &[&str]) -> Vec<String> {
    let help = text(&succeed(arguments.iter().chain(&["--help"])));
    let list = help.split("Commands:\n").nth(1).unwrap_or_default();
    let lines = list.lines().take_while(|line| !line.is_empty());
    let names = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    names.filter(|name| !["", "help"].contains(name)).map(str::to_owned).collect()
}

/// Returns the pages that `papilio man` writes, by their names, such as `papilio-ls.1`.
fn manual_pages() -> (tempfile::TempDir, BTreeMap<String, PathBuf>) {
    let folder = tempfile::tempdir().unwrap();
    succeed(["man".as_ref(), folder.path().as_os_str()]);
    let mut pages = BTreeMap::new();
    for section in ["1", "8"] {
        for page in std::fs::read_dir(folder.path().join(format!("man{section}"))).unwrap() {
            let path = page.unwrap().path();
            assert_eq!(path.extension().unwrap(), section, "{path:?}");
            pages.insert(path.file_name().unwrap().to_str().unwrap().to_owned(), path);
        }
    }
    (folder, pages)
}

#[test]
fn every_command_has_one_manual_page() {
    let (_folder, pages) = manual_pages();
    let commands = commands_of(&[]);
    assert!(commands.len() > 20, "{commands:?}");
    assert_eq!(pages.len(), commands.len() + 1, "{pages:?}");
    let main = std::fs::read_to_string(&pages["papilio.8"]).unwrap();
    assert_eq!(main, text(&succeed(["man"])));
    for command in &commands {
        let [user, system] = ["1", "8"].map(|section| pages.get(&format!("papilio-{command}.{section}")));
        let page = std::fs::read_to_string(user.xor(system).expect(command)).unwrap();
        // Roff escapes dashes.
        for subcommand in commands_of(&[command]) {
            let heading = format!("\n.SS {subcommand}\n");
            assert!(page.replace("\\-", "-").contains(&heading), "{command} {subcommand}");
        }
        assert!(!page.contains(".SS help"), "{command}");
        assert!(main.contains(&format!("papilio\\-{command}(")), "{command}");
    }
    for page in ["papilio-ls.1", "papilio-find.1", "papilio-mount.8", "papilio-subvolume.8"] {
        assert!(pages.contains_key(page), "{page}");
    }
}

#[test]
fn manual_pages_have_the_usual_sections() {
    let (_folder, pages) = manual_pages();
    for (name, path) in pages {
        let page = std::fs::read_to_string(path).unwrap();
        let sections: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix(".SH ")).collect();
        let usual = ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "\"EXIT STATUS\"", "\"SEE ALSO\""];
        let found: Vec<&str> = sections.iter().copied().filter(|section| usual.contains(section)).collect();
        assert_eq!(found, usual, "{name}");
        let about_devices = page.contains("\\-\\-backup\\-root");
        assert_eq!(about_devices, name == "papilio.8", "{name}");
    }
}

#[test]
fn man_renders_the_pages_without_warnings() {
    let (_folder, pages) = manual_pages();
    for (name, path) in pages {
        let mut man = Command::new("man");
        man.args(["--warnings", "-E", "UTF-8", "-P", "cat", "-l"]).arg(path);
        let output = match man.env("MANWIDTH", "80").output() {
            Ok(output) if output.stdout.starts_with(b"papilio") => output,
            // Some minimal systems have a script of this name that only prints a notice.
            other => return eprintln!("skipped: no usable man(1): {other:?}"),
        };
        assert_eq!(text(&output.stderr), "", "{name}");
        assert!(text(&output.stdout).contains("SEE ALSO"), "{name}");
    }
}
