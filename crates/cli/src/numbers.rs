//! Blanks before numbers, which strtoull(3) skips and the programs of btrfs-progs therefore accept.
//!
//! Owns [`without_blanks`]. The definition of the command line says which values are numbers, so
//! that a label or a path keeps its blanks.

use clap::{Arg, Command};
use std::any::TypeId;
use std::ffi::{OsStr, OsString};

/// Removes the blanks before values that are numbers: `--byte-count ' 1G'`, `-S ' 1'`, `'-S 1'`.
pub fn without_blanks(root: &Command, arguments: Vec<OsString>) -> Vec<OsString> {
    let mut place = Place { root, command: root, operands: 0 };
    let mut value_is_number: Option<bool> = None;
    let mut only_operands = false;
    let mut result = Vec::with_capacity(arguments.len());
    for (index, word) in arguments.into_iter().enumerate() {
        let text = word.to_str();
        let trimmed = match (index, value_is_number.take(), text) {
            (0, ..) | (_, _, None) | (_, Some(false), _) => None,
            (_, Some(true), Some(text)) => trimmed(text),
            (_, None, Some("--")) if !only_operands => {
                only_operands = true;
                None
            }
            (_, None, Some(text)) if !only_operands && text.starts_with("--") => {
                let found = place.long(text);
                value_is_number = found.next;
                found.trimmed
            }
            (_, None, Some(text)) if !only_operands && text.len() > 1 && text.starts_with('-') => {
                let found = place.short(text);
                value_is_number = found.next;
                found.trimmed
            }
            (_, None, Some(text)) => place.operand(text),
        };
        result.push(trimmed.unwrap_or(word));
    }
    result
}

/// The place in the command line.
struct Place<'a> {
    root: &'a Command,
    /// The innermost command so far.
    command: &'a Command,
    /// The operands of that command so far.
    operands: usize,
}

/// The outcome of an option.
#[derive(Default)]
struct OptionOutcome {
    /// The word without the blanks, if it has some.
    trimmed: Option<OsString>,
    /// Whether the next word is a value, and then whether it is a number.
    next: Option<bool>,
}

impl<'a> Place<'a> {
    fn options(&self) -> impl Iterator<Item = &'a Arg> + use<'a> {
        let global = self.root.get_arguments().filter(|option| option.is_global_set());
        self.command.get_arguments().chain(global)
    }

    fn long(&self, text: &str) -> OptionOutcome {
        let (name, value) = text[2..].split_once('=').map_or((&text[2..], None), |(n, v)| (n, Some(v)));
        let exact = self.options().find(|option| longs(option).any(|long| long == name));
        let mut starts = self.options().filter(|option| longs(option).any(|long| long.starts_with(name)));
        let Some(option) = exact.or_else(|| starts.next()) else { return OptionOutcome::default() };
        match value {
            Some(value) if is_number(option) => {
                let value = trimmed(value).and_then(|value| value.into_string().ok());
                OptionOutcome { trimmed: value.map(|value| format!("--{name}={value}").into()), next: None }
            }
            Some(_) => OptionOutcome::default(),
            None => OptionOutcome { trimmed: None, next: takes_next(option).then(|| is_number(option)) },
        }
    }

    fn short(&self, text: &str) -> OptionOutcome {
        for (at, letter) in text.char_indices().skip(1) {
            let Some(option) = self.options().find(|option| shorts(option).any(|short| short == letter))
            else {
                return OptionOutcome::default();
            };
            if !option.get_action().takes_values() {
                continue;
            }
            let (letters, value) = text.split_at(at + letter.len_utf8());
            return match value {
                "" => OptionOutcome { trimmed: None, next: takes_next(option).then(|| is_number(option)) },
                value if is_number(option) => {
                    let value = trimmed(value).and_then(|value| value.into_string().ok());
                    OptionOutcome {
                        trimmed: value.map(|value| format!("{letters}{value}").into()),
                        next: None,
                    }
                }
                _ => OptionOutcome::default(),
            };
        }
        OptionOutcome::default()
    }

    /// Enters a subcommand, or trims an operand that is a number.
    fn operand(&mut self, text: &str) -> Option<OsString> {
        if self.command.has_subcommands() && self.operands == 0 {
            let names = |command: &Command| {
                let own = [command.get_name().to_owned()];
                own.into_iter().chain(command.get_all_aliases().map(str::to_owned)).collect::<Vec<_>>()
            };
            let mut all = self.command.get_subcommands();
            let exact = all.find(|command| names(command).iter().any(|name| name == text));
            let mut all = self.command.get_subcommands();
            let start = all.find(|command| names(command).iter().any(|name| name.starts_with(text)));
            if let Some(command) = exact.or(start) {
                self.command = command;
                return None;
            }
        }
        let operand = self.command.get_positionals().nth(self.operands);
        let last = self.command.get_positionals().last();
        self.operands += 1;
        operand.or(last).filter(|operand| is_number(operand)).and_then(|_| trimmed(text))
    }
}

fn longs(option: &Arg) -> impl Iterator<Item = &str> {
    option.get_long().into_iter().chain(option.get_all_aliases().unwrap_or_default())
}

fn shorts(option: &Arg) -> impl Iterator<Item = char> {
    option.get_short().into_iter().chain(option.get_all_short_aliases().unwrap_or_default())
}

/// Returns whether a value may be the word behind the option.
fn takes_next(option: &Arg) -> bool {
    option.get_action().takes_values() && !option.is_require_equals_set()
}

/// Returns whether the values of an option or operand become numbers.
fn is_number(option: &Arg) -> bool {
    let of = option.get_value_parser().type_id();
    let numbers = [
        TypeId::of::<u8>(),
        TypeId::of::<u16>(),
        TypeId::of::<u32>(),
        TypeId::of::<u64>(),
        TypeId::of::<usize>(),
        TypeId::of::<i32>(),
        TypeId::of::<i64>(),
    ];
    numbers.iter().any(|number| of == *number)
}

/// Returns the text without the blanks at its start, if it has some.
fn trimmed(text: &str) -> Option<OsString> {
    let number = text.trim_start();
    (number.len() < text.len()).then(|| OsStr::new(number).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory;

    fn words(words: &[&str]) -> Vec<String> {
        let words = words.iter().map(OsString::from).collect();
        let result = without_blanks(&Cli::command(), words);
        result.into_iter().map(|word| word.into_string().unwrap()).collect()
    }

    #[test]
    fn numbers_lose_blanks_and_other_values_keep_them() {
        let given =
            ["papilio", "--drop-in", "mkfs", "-b", " 1G", "-L", " 5", "--label= 5", "--size= 5", " 7"];
        let kept = ["papilio", "--drop-in", "mkfs", "-b", "1G", "-L", " 5", "--label= 5", "--size=5", " 7"];
        assert_eq!(words(&given), kept);
        assert_eq!(words(&["papilio", "tune", "-S 1", "i"]), ["papilio", "tune", "-S1", "i"]);
        assert_eq!(words(&["papilio", "mkfs", "-fb", " 1", "i"]), ["papilio", "mkfs", "-fb", "1", "i"]);
        assert_eq!(words(&["papilio", "mkfs", "--", " 1"]), ["papilio", "mkfs", "--", " 1"]);
        let resolved = ["papilio", "inspect-internal", "logical-resolve", " 5", " 6"];
        let kept = ["papilio", "inspect-internal", "logical-resolve", "5", " 6"];
        assert_eq!(words(&resolved), kept);
        let label = ["papilio", "filesystem", "label", " 5", " 5"];
        assert_eq!(words(&label), label);
        let named = ["papilio", "subvolume", "create", " 5", "-i", " 0/5"];
        assert_eq!(words(&named), named);
    }
}
