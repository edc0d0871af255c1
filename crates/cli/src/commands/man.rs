//! `papilio man`: the manual pages, from the definition of the command line.
//!
//! There is one page for `papilio` itself and one for each of its commands; the subcommands of a
//! command are sections of its page. Commands that mirror a user command of the host are in section
//! 1, all others in section 8, where btrfs-progs has its pages. Options that every command takes
//! are on the page of `papilio` alone.

use crate::command_table::{GROUPS, manual_of};
use crate::commands::man_markdown;
use crate::output::Output;
use anyhow::Context as _;
use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use std::path::{Path, PathBuf};

/// Write the manual pages
///
/// The pages go to the directories man1 and man8 inside DIR, which are created if necessary.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The directory that receives the pages, such as /usr/local/share/man; without it, the main
    /// page goes to standard output
    #[arg(value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    directory: Option<PathBuf>,

    /// Write Markdown instead, one page for each command, and index.md, which lists them in groups
    #[arg(long, requires = "directory")]
    markdown: bool,
}

impl Args {
    /// Writes the pages of the command line that `definition` describes.
    pub fn run(self, definition: Command) -> anyhow::Result<()> {
        if let (true, Some(directory)) = (self.markdown, &self.directory) {
            for (name, text) in man_markdown::pages(definition) {
                write(&directory.join(name), &text)?;
            }
            return Ok(());
        }
        let pages = pages(definition);
        let Some(directory) = self.directory else {
            let mut output = Output::new()?;
            output.bytes(pages[0].text.as_bytes())?;
            return Ok(output.finish()?);
        };
        for page in pages {
            let directory = directory.join(format!("man{}", page.section));
            write(&directory.join(format!("{}.{}", page.name, page.section)), &page.text)?;
        }
        Ok(())
    }
}

/// Writes a page, and makes its directory.
fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(directory)
        .and_then(|()| std::fs::write(path, text))
        .with_context(|| format!("{}: cannot write the manual page", path.display()))
}

fn section_of(command: &str) -> u8 {
    manual_of(command).0
}

/// A manual page.
struct Page {
    /// `papilio`, or `papilio-COMMAND`.
    name: String,
    section: u8,
    /// The page in roff.
    text: String,
}

/// Returns the pages: first that of `papilio`, then those of its commands.
fn pages(definition: Command) -> Vec<Page> {
    let mut definition = definition.disable_help_subcommand(true);
    definition.build();
    let commands: Vec<Command> =
        definition.get_subcommands().filter(|command| !command.is_hide_set()).cloned().collect();
    let mut pages = vec![main_page(&definition, &commands)];
    pages.extend(commands.into_iter().map(command_page));
    pages
}

fn main_page(definition: &Command, commands: &[Command]) -> Page {
    let reference =
        |command: &Command| format!("papilio-{0}({1})", command.get_name(), section_of(command.get_name()));
    let mut page = Writer::begin("papilio", 8, definition);
    page.roff(|roff| {
        roff.control("SH", ["COMMANDS"]);
        for group in GROUPS {
            roff.control("SS", [group.title]);
            for command in group.of(definition) {
                roff.control("TP", []);
                roff.text([bold(reference(command))]);
                roff.text([roman(about(command))]);
            }
        }
    });
    page.exit_status();
    let mut related: Vec<String> = commands.iter().map(reference).collect();
    related.extend(["btrfs(5)", "btrfs(8)"].map(str::to_owned));
    page.see_also(&related);
    page.end()
}

fn command_page(command: Command) -> Page {
    let command = without_global_options(command);
    let name = command.get_name();
    let (section, related) = manual_of(name);
    let mut page = Writer::begin(&format!("papilio-{name}"), section, &command);
    if command.get_subcommands().any(|sub| !sub.is_hide_set()) {
        page.roff(|roff| {
            roff.control("SH", ["SUBCOMMANDS"]);
        });
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            page.subcommand(sub);
        }
    }
    page.after_help(&command);
    page.exit_status();
    let mut see_also = vec!["papilio(8)".to_owned()];
    see_also.extend(related.iter().map(|&page| page.to_owned()));
    page.see_also(&see_also);
    page.end()
}

/// Hides the options of `command` and its subcommands that the page of `papilio` describes.
fn without_global_options(command: Command) -> Command {
    let is_common = |option: &clap::Arg| {
        option.is_global_set() || ["help", "version"].contains(&option.get_id().as_str())
    };
    command
        .mut_args(|option| if is_common(&option) { option.hide(true) } else { option })
        .mut_subcommands(without_global_options)
}

fn about(command: &Command) -> String {
    command.get_about().map(ToString::to_string).unwrap_or_default()
}

/// A page that is being written.
struct Writer {
    page: Page,
}

impl Writer {
    /// Begins a page with the sections NAME, SYNOPSIS, DESCRIPTION and those of the options.
    fn begin(name: &str, section: u8, command: &Command) -> Self {
        // The definition of the apostrophe, which the text refers to.
        let text = Roff::new().render();
        let mut writer = Self { page: Page { name: name.to_owned(), section, text } };
        let version = format!("papilio {}", command.get_version().unwrap_or_default());
        let man = Man::new(command.clone())
            .title(name)
            .section(section.to_string())
            .source(version)
            .manual("Papilio Manual");
        writer.append(&rendered(|out| man.render_title(out)));
        writer.roff(|roff| {
            roff.control("SH", ["NAME"]);
            roff.text([roman(format!("{name} - {}", lower_case_first(&about(command))))]);
        });
        writer.roff(|roff| synopsis(roff.control("SH", ["SYNOPSIS"]), command));
        writer.roff(|roff| description(roff.control("SH", ["DESCRIPTION"]), command));
        writer.options(&man, command);
        writer
    }

    fn append(&mut self, text: &str) {
        self.page.text.push_str(text);
    }

    fn roff(&mut self, write: impl FnOnce(&mut Roff)) {
        let mut roff = Roff::new();
        write(&mut roff);
        self.append(without_preamble(&roff.render()));
    }

    /// Appends the options of `command`, whose page is `man`. Every page has the section OPTIONS.
    fn options(&mut self, man: &Man, command: &Command) {
        let is_main = self.page.name == "papilio";
        self.roff(|roff| {
            roff.control("SH", ["OPTIONS"]);
            if !is_main {
                let text = "for the options that every command takes.";
                roff.text([roman("See "), bold("papilio"), roman(format!("(8) {text}"))]);
            }
        });
        if command.get_arguments().any(|option| !option.is_hide_set()) {
            let options = rendered(|out| man.render_options_section(out));
            self.append(&in_paragraphs(options.strip_prefix(".SH OPTIONS\n").unwrap_or(&options)));
        }
    }

    /// Appends a subcommand: its synopsis, description and options below its name.
    fn subcommand(&mut self, command: &Command) {
        self.roff(|roff| {
            synopsis(roff.control("SS", [command.get_name()]), command);
            description(roff.control("PP", []), command);
        });
        if command.get_arguments().any(|option| !option.is_hide_set()) {
            let man = Man::new(command.clone());
            let options = rendered(|out| man.render_options_section(out));
            let options = options.strip_prefix(".SH OPTIONS\n").unwrap_or(&options);
            self.append(&in_paragraphs(options).replace(".SH ", ".PP\n"));
        }
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            self.subcommand(sub);
        }
    }

    /// Appends the text that the help of `command` ends with. Its first line is the heading and
    /// ends in a colon. Lines of the form `  TERM  MEANING` are a list, where a long term has a
    /// line of its own.
    fn after_help(&mut self, command: &Command) {
        let Some(text) = command.get_after_help().map(ToString::to_string) else { return };
        let (heading, text) = text.split_once(":\n").unwrap_or(("Notes", &text));
        let heading = heading.split(',').next().unwrap_or(heading).to_uppercase();
        self.roff(|roff| {
            roff.control("SH", [heading.as_str()]);
            for line in text.lines() {
                let term = line.strip_prefix("  ").filter(|line| !line.starts_with(' '));
                let (term, meaning) = match term {
                    Some(line) => line.split_once("  ").map_or((line, ""), |(term, rest)| (term, rest)),
                    None => ("", line),
                };
                if !term.is_empty() {
                    roff.control("TP", []);
                    roff.text([bold(term)]);
                }
                if !meaning.is_empty() {
                    roff.text([roman(meaning.trim())]);
                }
            }
        });
    }

    fn exit_status(&mut self) {
        let status = [
            ("0", "Everything that was requested was done."),
            ("1", "Something failed. Standard error has one line for each failure."),
            ("2", "The command was used wrongly."),
        ];
        self.roff(|roff| {
            roff.control("SH", ["EXIT STATUS"]);
            for (code, meaning) in status {
                roff.control("TP", []);
                roff.text([bold(code)]);
                roff.text([roman(meaning)]);
            }
        });
    }

    fn see_also(&mut self, pages: &[String]) {
        self.roff(|roff| {
            roff.control("SH", ["SEE ALSO"]);
            for (at, page) in pages.iter().enumerate() {
                let (name, section) = page.split_once('(').unwrap_or((page, ""));
                let comma = if at + 1 < pages.len() { "," } else { "" };
                roff.text([bold(name), roman(format!("({section}{comma}"))]);
            }
        });
    }

    fn end(self) -> Page {
        self.page
    }
}

fn synopsis(roff: &mut Roff, command: &Command) {
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").trim();
    let name = command.get_bin_name().unwrap_or_default();
    match usage.strip_prefix(name) {
        Some(arguments) => roff.text([bold(name), roman(arguments)]),
        None => roff.text([roman(usage)]),
    };
}

/// Writes the description of `command`, whose paragraphs become sentences where they are not.
fn description(roff: &mut Roff, command: &Command) {
    let text = command.get_long_about().or(command.get_about()).map(ToString::to_string);
    for (at, paragraph) in text.unwrap_or_default().split("\n\n").enumerate() {
        if at > 0 {
            roff.control("PP", []);
        }
        let end = if paragraph.ends_with(['.', ':', '>']) { "" } else { "." };
        roff.text([roman(format!("{}{end}", paragraph.replace('\n', " ")))]);
    }
}

/// Makes the blank lines in the description of an option paragraphs of its indentation.
fn in_paragraphs(options: &str) -> String {
    options.replace("\n\n", "\n.IP\n")
}

fn lower_case_first(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_lowercase().chain(letters).collect()).unwrap_or_default()
}

/// Returns the roff that `render` writes.
fn rendered(render: impl FnOnce(&mut dyn std::io::Write) -> std::io::Result<()>) -> String {
    let mut text = Vec::new();
    render(&mut text).expect("writing to memory cannot fail");
    without_preamble(&String::from_utf8_lossy(&text)).to_owned()
}

/// Returns `text` without the definition of the apostrophe that every piece of roff starts with.
fn without_preamble(text: &str) -> &str {
    text.strip_prefix(&Roff::new().render()).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_letters_become_lower_case() {
        assert_eq!(lower_case_first("List files"), "list files");
        assert_eq!(lower_case_first(""), "");
    }

    #[test]
    fn sections_follow_coreutils_and_btrfs_progs() {
        assert_eq!((section_of("ls"), section_of("subvolume"), section_of("unknown")), (1, 8, 8));
    }
}
