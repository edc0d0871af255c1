//! Wrong usage, help, completions and manual pages.

use crate::fixture::{fail, papilio, succeed, text};

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
    fail(2, "not kinds", ["find", "a:/", "-type", "x"]);
    fail(2, "not a time", ["find", "a:/", "-newermt", "teatime"]);
    fail(2, "no job \"9\"", ["bench", "--jobs", "9"]);
    fail(2, "no side \"ext4\"", ["bench", "--sides", "ext4"]);
    fail(2, "--rounds 0", ["bench", "sweep", "--over", "threads", "--rounds", "0"]);
}

#[test]
fn a_bench_report_that_is_none_is_named() {
    fail(1, "/nowhere/report.json", ["bench", "--report", "/nowhere/report.json"]);
}

#[test]
fn images_of_a_directory_are_compared() {
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
fn completions_know_the_commands() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = text(&succeed(["completions", shell]));
        assert!(script.contains("subvolid") && script.contains("maxdepth"), "{shell}");
    }
}

#[test]
fn every_command_has_a_page() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("man1");
    succeed(["man".as_ref(), to.as_os_str()]);
    for page in ["papilio", "papilio-ls", "papilio-cp", "papilio-find", "papilio-man"] {
        let page = std::fs::read_to_string(to.join(format!("{page}.1"))).unwrap();
        assert!(page.contains(".SH NAME") && page.contains(".SH OPTIONS"));
    }
    assert!(text(&succeed(["man"])).contains(".TH papilio 1"));
}
