//! The commands in the order and groups in which people look for them.
//!
//! Owns [`GROUPS`], from which `papilio --help` and the manual page of `papilio` list the commands.
//! It also has each command's section of the manual. The words come from the commands themselves.

use clap::Command;

/// A command: its name, its section of the manual, and related pages of other programs.
type Entry = (&'static str, u8, &'static [&'static str]);

/// Commands for one kind of work.
pub(crate) struct Group {
    pub(crate) title: &'static str,
    pub(crate) commands: &'static [Entry],
}

/// All commands that are not hidden.
pub(crate) const GROUPS: &[Group] = &[
    Group {
        title: "Files",
        commands: &[
            ("ls", 1, &["ls(1)"]),
            ("cat", 1, &["cat(1)"]),
            ("stat", 1, &["stat(1)"]),
            ("cp", 1, &["cp(1)", "tar(1)"]),
            ("mkdir", 1, &["mkdir(1)"]),
            ("mv", 1, &["mv(1)"]),
            ("rm", 1, &["rm(1)"]),
            ("ln", 1, &["ln(1)"]),
            ("touch", 1, &["touch(1)"]),
            ("truncate", 1, &["truncate(1)"]),
            ("chmod", 1, &["chmod(1)"]),
            ("chown", 1, &["chown(1)"]),
            ("getfattr", 1, &["papilio-setfattr(1)", "getfattr(1)", "xattr(7)"]),
            ("setfattr", 1, &["papilio-getfattr(1)", "setfattr(1)", "xattr(7)"]),
            ("verity", 8, &["papilio-check(8)", "fsverity(1)"]),
            ("find", 1, &["find(1)"]),
            ("du", 1, &["du(1)", "papilio-filesystem(8)"]),
            ("shell", 8, &["papilio-cp(1)", "papilio-subvolume(8)"]),
        ],
    },
    Group {
        title: "Subvolumes and snapshots",
        commands: &[
            ("subvolume", 8, &["papilio-property(8)", "btrfs-subvolume(8)"]),
            ("property", 8, &["papilio-subvolume(8)", "btrfs-property(8)"]),
            ("diff", 8, &["papilio-send(8)", "papilio-subvolume(8)", "diff(1)"]),
            ("versions", 1, &["papilio-history(1)", "papilio-diff(8)", "papilio-subvolume(8)"]),
            ("history", 1, &["papilio-versions(1)", "papilio-diff(8)", "papilio-subvolume(8)"]),
            ("quota", 8, &["papilio-qgroup(8)", "btrfs-quota(8)"]),
            ("qgroup", 8, &["papilio-quota(8)", "btrfs-qgroup(8)"]),
        ],
    },
    Group {
        title: "Devices and space",
        commands: &[
            ("mkfs", 8, &["papilio-check(8)", "mkfs.btrfs(8)"]),
            ("filesystem", 8, &["papilio-du(1)", "btrfs-filesystem(8)"]),
            ("usage", 8, &["papilio-filesystem(8)", "papilio-du(1)"]),
            ("compsize", 8, &["papilio-filesystem(8)"]),
            ("dedupe", 8, &["papilio-filesystem(8)", "papilio-compsize(8)"]),
            ("balance", 8, &[]),
            ("device", 8, &["papilio-filesystem(8)", "btrfs-device(8)"]),
            ("replace", 8, &["papilio-scrub(8)", "papilio-device(8)", "btrfs-replace(8)"]),
            ("scrub", 8, &["papilio-check(8)", "papilio-device(8)", "btrfs-scrub(8)"]),
            ("trim", 8, &["papilio-filesystem(8)", "fstrim(8)"]),
            ("tune", 8, &[]),
            ("convert", 8, &["papilio-mkfs(8)", "papilio-check(8)", "btrfs-convert(8)"]),
            ("image", 8, &["papilio-inspect(8)", "btrfs-image(8)"]),
        ],
    },
    Group {
        title: "Backup",
        commands: &[
            ("backup", 8, &["papilio-send(8)", "papilio-stream(8)", "papilio-subvolume(8)"]),
            ("send", 8, &["papilio-receive(8)", "papilio-subvolume(8)", "btrfs-send(8)"]),
            ("receive", 8, &["papilio-send(8)", "papilio-subvolume(8)", "btrfs-receive(8)"]),
            ("stream", 8, &["papilio-send(8)", "papilio-receive(8)", "tar(1)"]),
        ],
    },
    Group {
        title: "Repair",
        commands: &[
            ("check", 8, &["papilio-inspect(8)", "btrfs-check(8)"]),
            ("rescue", 8, &["papilio-check(8)", "papilio-restore(8)", "btrfs-rescue(8)"]),
            ("restore", 8, &["papilio-rescue(8)", "papilio-cp(1)", "btrfs-restore(8)"]),
        ],
    },
    Group {
        title: "Mounts and servers",
        commands: &[
            ("mount", 8, &["papilio-umount(8)", "mount(8)", "btrfs(5)", "fuse(4)"]),
            ("umount", 8, &["papilio-mount(8)", "umount(8)"]),
            ("run", 1, &["papilio-mount(8)", "env(1)", "seccomp(2)"]),
            ("serve", 8, &["papilio-mount(8)", "nbd-client(8)", "nbdinfo(1)", "qemu-nbd(8)"]),
            ("store", 8, &["papilio-mkfs(8)", "papilio-mount(8)"]),
        ],
    },
    Group {
        title: "Inspection",
        commands: &[
            ("inspect", 8, &["papilio-check(8)", "btrfs-inspect-internal(8)"]),
            ("heatmap", 8, &["papilio-treemap(8)", "papilio-filesystem(8)", "papilio-inspect(8)"]),
            ("treemap", 8, &["papilio-usage(8)", "papilio-heatmap(8)", "papilio-du(1)"]),
            ("bench", 8, &["fio(1)"]),
        ],
    },
    Group {
        title: "This program",
        commands: &[
            ("doctor", 1, &["papilio-mount(8)"]),
            ("completions", 1, &["bash(1)"]),
            ("man", 1, &["man(1)"]),
        ],
    },
];

impl Group {
    /// Returns the commands of the group that a definition has, in their order.
    pub(crate) fn of<'a>(&self, definition: &'a Command) -> impl Iterator<Item = &'a Command> {
        self.commands.iter().filter_map(|(name, ..)| definition.find_subcommand(name))
    }
}

/// Returns a command's section of the manual, and related pages.
pub(crate) fn manual_of(command: &str) -> (u8, &'static [&'static str]) {
    let mut entries = GROUPS.iter().flat_map(|group| group.commands);
    entries.find(|(name, ..)| *name == command).map_or((8, &[]), |(_, section, related)| (*section, *related))
}

/// Returns the template of the main help, with the commands in groups. `long` asks for the full
/// text of each option.
///
/// clap can list all commands, or options without their headings. So the options are rendered here,
/// from a copy of the definition whose commands are hidden.
pub(crate) fn help_template(definition: &Command, long: bool) -> String {
    let mut hidden =
        definition.clone().mut_subcommands(|command| command.hide(true)).help_template("{all-args}");
    let options = if long { hidden.render_long_help() } else { hidden.render_help() };
    let mut text = "{about-with-newline}\n{usage-heading} {usage}\n".to_owned();
    for group in GROUPS {
        text.push_str(&format!("\n{}:\n", group.title));
        for command in group.of(definition) {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            push_entry(&mut text, command.get_name(), &about);
        }
    }
    text + "\n" + options.to_string().trim_end() + "{after-help}"
}

/// Appends a name and its explanation, in lines of at most 100 columns.
fn push_entry(text: &mut String, name: &str, about: &str) {
    const INDENT: usize = 15;
    const WIDTH: usize = 100;
    text.push_str(&format!("  {name:<13}"));
    let mut column = INDENT;
    for word in about.split(' ') {
        if column > INDENT && column + 1 + word.len() > WIDTH {
            text.push_str(&format!("\n{:INDENT$}", ""));
            column = INDENT;
        }
        if column > INDENT {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += word.len();
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory;

    #[test]
    fn each_command_is_in_one_group() {
        let definition = Cli::command();
        let shown = definition.get_subcommands().filter(|command| !command.is_hide_set());
        let mut shown: Vec<_> = shown.map(|command| command.get_name().to_owned()).collect();
        let mut listed: Vec<_> =
            GROUPS.iter().flat_map(|group| group.commands).map(|entry| entry.0.to_owned()).collect();
        shown.sort();
        listed.sort();
        assert_eq!(shown, listed);
    }

    #[test]
    fn entries_are_wrapped() {
        let mut text = String::new();
        push_entry(&mut text, "name", &"word ".repeat(40));
        assert!(text.lines().count() == 3 && text.lines().all(|line| line.len() <= 100), "{text}");
    }
}
