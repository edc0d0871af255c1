//! Wrong usage, help, completions and manual pages.

use crate::common::{binary, check_failure, command, fail, papilio, succeed, text};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
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
}

/// Writes a shell script that prints the name it was called by and its arguments, and ends with 7.
fn script(folder: &Path) -> PathBuf {
    let program = folder.join("program");
    std::fs::write(&program, "#!/bin/sh\nprintf '%s\\n' \"$@\"\nexit 7\n").unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    program
}

#[test]
fn bench_and_urls_run_programs_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let program = script(folder.path());
    for (variable, arguments, passed) in [
        ("PAPILIO_BENCH_PROGRAM", &["-q", "bench", "image", "--help"][..], "image\n--help\n--quiet\n"),
        ("PAPILIO_STORE_PROGRAM", &["ls", "-l", "s3://bucket/a"], "ls\n-l\ns3://bucket/a\n"),
        ("PAPILIO_STORE_PROGRAM", &["store", "list", "x"], "store\nlist\nx\n"),
    ] {
        let output = command().env(variable, &program).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(7), "{arguments:?}: {}", text(&output.stderr));
        assert_eq!(text(&output.stdout), passed, "{arguments:?}");
    }
}

#[test]
fn a_command_without_its_other_programs_names_them() {
    let folder = tempfile::tempdir().unwrap();
    let alone = folder.path().join("papilio");
    papilio_oracle::program::copy_program(binary(), &alone).unwrap();
    // Links to the command itself are none of them.
    for name in ["papilio-store", "papilio-bench", "papilio-web"] {
        std::os::unix::fs::symlink(&alone, folder.path().join(name)).unwrap();
    }
    for (arguments, part) in [
        (&["bench"][..], "papilio-bench is not installed"),
        (&["serve", "--http", "disk.img"], "papilio-web is not installed"),
        (&["ls", "https://host/disk.img"], "https://host/disk.img: this program opens no URLs"),
        (&["store", "list", "slatedb+file:///d"], "papilio-store"),
        (&["mkfs", "--size", "256M", "slatedb+file:///d"], "papilio-store"),
    ] {
        let output = Command::new(&alone).args(arguments).output().unwrap();
        check_failure(&output, 1, part);
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn help_is_on_standard_output() {
    for command in ["ls", "cat", "stat", "cp", "find", "du", "mkfs", "completions", "man"] {
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
    // The main help has commands in groups, up to the options.
    let list = match arguments {
        [] => {
            help.split("Usage:").nth(1).unwrap_or_default().split("\nOptions:\n").next().unwrap_or_default()
        }
        _ => help.split("Commands:\n").nth(1).unwrap_or_default().split("\n\n").next().unwrap_or_default(),
    };
    let lines = list.lines();
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
        // The help of bench is that of papilio-bench.
        let subcommands = if command == "bench" { Vec::new() } else { commands_of(&[command]) };
        for subcommand in subcommands {
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
