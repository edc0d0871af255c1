//! `papilio man --markdown`: the pages of the handbook's reference, from the definition of the
//! command line.
//!
//! There is a page for `papilio` itself, one for each command with its subcommands, and `index.md`,
//! which lists all by the groups of the command table. The words are those of the manual pages.

use crate::command_table::GROUPS;
use clap::{Arg, Command};
use std::fmt::Write;

/// Returns the pages, each with its file name.
pub(crate) fn pages(mut definition: Command) -> Vec<(String, String)> {
    definition = definition.disable_help_subcommand(true);
    definition.build();
    let mut index = "# Commands\n\nThe options that every command takes are on the page of ".to_owned();
    index += "[papilio](papilio.md).\n";
    let mut pages = Vec::new();
    let mut main = format!("# papilio\n\n{}\n", about(&definition));
    usage(&mut main, &definition);
    arguments(&mut main, &definition, |_| true);
    main += "\n## Exit status\n\n- `0`: everything that was requested was done\n- `1`: something failed; \
             standard error has one line for each failure\n- `2`: the command was used wrongly\n";
    pages.push(("papilio.md".to_owned(), main));
    for group in GROUPS {
        let _ = write!(index, "\n## {}\n\n", group.title);
        for command in group.of(&definition) {
            let name = command.get_name();
            let _ = writeln!(index, "- [papilio {name}](papilio-{name}.md): {}", prose(&summary(command)));
            let mut page = String::new();
            section(&mut page, command, 1);
            pages.push((format!("papilio-{name}.md"), page));
        }
    }
    pages.push(("index.md".to_owned(), index));
    pages
}

/// Appends a command and its subcommands, below a heading of `depth`.
fn section(page: &mut String, command: &Command, depth: usize) {
    let name = command.get_bin_name().unwrap_or(command.get_name());
    let _ = write!(page, "{} {name}\n\n{}\n", "#".repeat(depth), about(command));
    usage(page, command);
    // Options of all commands are on the main page.
    arguments(page, command, |argument| {
        !argument.is_global_set() && !["help", "version"].contains(&argument.get_id().as_str())
    });
    if let Some(text) = command.get_after_help().map(ToString::to_string) {
        let (heading, text) = text.split_once(":\n").unwrap_or(("Notes", &text));
        let _ = write!(page, "\n{heading}:\n\n```text\n{}\n```\n", text.trim_end());
    }
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        page.push('\n');
        section(page, sub, depth + 1);
    }
}

fn usage(page: &mut String, command: &Command) {
    let usage = command.clone().render_usage().to_string();
    let _ = write!(page, "\n```text\n{}\n```\n", usage.trim_start_matches("Usage:").trim());
}

/// Appends a list of the arguments that `shows` chooses.
fn arguments(page: &mut String, command: &Command, shows: impl Fn(&Arg) -> bool) {
    let shown = |argument: &&Arg| !argument.is_hide_set() && shows(argument);
    for (position, argument) in command.get_arguments().filter(shown).enumerate() {
        if position == 0 {
            page.push('\n');
        }
        let help = argument.get_long_help().or(argument.get_help()).map(ToString::to_string);
        let _ = write!(page, "- {}: {}", term(argument), indented(&prose(&help.unwrap_or_default())));
        let values = argument.get_possible_values();
        let values = values.iter().filter(|value| !value.is_hide_set());
        let takes_values = argument.get_action().takes_values() && !argument.is_hide_possible_values_set();
        let values: Vec<String> =
            values.filter(|_| takes_values).map(|value| format!("`{}`", value.get_name())).collect();
        if !values.is_empty() {
            let _ = write!(page, " (values: {})", values.join(", "));
        }
        let defaults = argument.get_default_values().iter().map(|value| value.to_string_lossy());
        let defaults: Vec<_> = defaults.filter(|_| takes_values).collect();
        if !defaults.is_empty() && !argument.is_hide_default_value_set() {
            let _ = write!(page, " (default: `{}`)", defaults.join(" "));
        }
        page.push('\n');
    }
}

/// Returns the spellings of an argument, each as code.
fn term(argument: &Arg) -> String {
    let names = argument.get_value_names().unwrap_or_default().join("> <");
    let value = if argument.get_action().takes_values() && !names.is_empty() {
        format!("<{names}>")
    } else {
        String::new()
    };
    if argument.is_positional() {
        return format!("`{}`", if value.is_empty() { argument.get_id().to_string() } else { value });
    }
    let short = argument.get_short().map(|short| format!("`-{short}`"));
    let long = argument.get_long().map(|long| format!("--{long}"));
    let last = long.map(|long| format!("`{long} {value}`").replace(" `", "`"));
    let all: Vec<String> = short.into_iter().chain(last).collect();
    if argument.get_long().is_none() && !value.is_empty() {
        return format!("{} `{value}`", all.join(", "));
    }
    all.join(", ")
}

fn about(command: &Command) -> String {
    let text = command.get_long_about().or(command.get_about()).map(ToString::to_string);
    prose(&text.unwrap_or_default())
}

fn summary(command: &Command) -> String {
    command.get_about().map(ToString::to_string).unwrap_or_default()
}

/// Returns text in which Markdown sees no marks besides code in backticks.
fn prose(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut is_code = false;
    for letter in text.chars() {
        is_code ^= letter == '`';
        if !is_code && "*_<>[]\\#|~".contains(letter) {
            out.push('\\');
        }
        out.push(letter);
    }
    out
}

/// Indents all lines but the first as the text of a list's entry.
fn indented(text: &str) -> String {
    text.trim_end().replace('\n', "\n  ").replace("\n  \n", "\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_escaped_outside_of_code() {
        assert_eq!(prose("a_b <c> `d_e`*"), "a\\_b \\<c\\> `d_e`\\*");
    }
}
