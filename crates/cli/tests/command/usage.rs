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
