//! Each command that a test needs is installed by `scripts/setup.sh`, or is part of every Debian.
//!
//! A test with a missing command is skipped, and fails in CI: a machine on which somebody once
//! installed the command by hand hides both.

use super::finding::Finding;
use super::sources::SourceFile;

/// The table of packages.
pub const SETUP: &str = "scripts/setup.sh";

/// Commands of essential packages, and of those that the table installs for another command.
const PRESENT: &[&str] = &[
    "btrfs",
    "btrfs-image",
    "btrfstune",
    "chattr",
    "dd",
    "findmnt",
    "flock",
    "fstrim",
    "gzip",
    "ionice",
    "lsattr",
    "mkswap",
    "mount.fuse",
    "nfs-cat",
    "prlimit",
    "qemu-io",
    "script",
    "setfacl",
    "setpriv",
    "sh",
    "sha256sum",
    "tar",
    "timeout",
    "unshare",
    "wipefs",
];

/// Checks one file against the text of [`SETUP`].
pub fn check(file: &SourceFile, setup: &str) -> Vec<Finding> {
    let installed = |command: &str| {
        setup.lines().any(|line| line.split_ascii_whitespace().next() == Some(command))
            || PRESENT.contains(&command)
            || command.starts_with("no-such-")
    };
    let mut findings = Vec::new();
    for (number, line) in file.text.lines().enumerate() {
        let single = line.split("Need::Command(\"").skip(1).filter_map(|rest| rest.split('"').next());
        // `["mkswap", "cryptsetup"].map(Need::Command)`
        let several = line.split_once("].map(Need::Command)").and_then(|(list, _)| list.rsplit_once('['));
        let several = several.into_iter().flat_map(|(_, list)| list.split('"').skip(1).step_by(2));
        for command in single.chain(several).filter(|command| !installed(command)) {
            let message = format!("a test needs the command {command}, which {SETUP} does not install");
            findings.push(Finding::new(&file.path, number + 1, message));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_is_not_installed_is_found() {
        let text = "fn needs() {\n    let _ = [Need::Command(\"cc\"), Need::Command(\"mkfs.ext9\")];\n}\n";
        let file = SourceFile::parse("a.rs", text).expect("parses");
        let findings = check(&file, "cc build-essential needed\n");
        assert_eq!(findings.len(), 1);
        assert!(findings[0].line == 2 && findings[0].message.contains("mkfs.ext9"));
        assert!(check(&file, "cc build-essential needed\nmkfs.ext9 e9progs tests\n").is_empty());
        let text = "fn needs() {\n    let _ = [\"cc\", \"mkfs.ext9\"].map(Need::Command);\n}\n";
        let file = SourceFile::parse("a.rs", text).expect("parses");
        assert_eq!(check(&file, "cc build-essential needed\n").len(), 1);
    }
}
