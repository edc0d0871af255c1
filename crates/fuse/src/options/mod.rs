//! The options of a mount, in the syntax of `-o`.
//!
//! Owns [`MountOptions`]; the files of this directory own its parser and the names. The names are
//! those of the kernel's Btrfs (btrfs(5)), of mounts in general (mount(8)) and of FUSE (fuse(8)).
//! The last of several conflicting options wins.
//!
//! **Invariants**
//! - An accepted option takes effect, or asks for something that no user of the mount can observe.
//!
//! Kernel counterpart: `btrfs_parse_param` (`fs/btrfs/super.c`).

mod names;
mod parser;
#[cfg(test)]
mod tests;
mod types;
mod values;

use parser::Parser;
pub use types::{Atime, MountOptionError, MountOptions, Opens, Transport};

impl Default for MountOptions {
    fn default() -> Self {
        Parser::new().finish().expect("no options contradict one another")
    }
}

impl MountOptions {
    /// Parses a list of options such as `ro,subvol=/home,compress=zstd:3`. Without `subvol` and
    /// `subvolid` the mount shows the default subvolume. A comma in a value is written `\,`.
    ///
    /// # Errors
    /// An option is unknown, lacks a value, has an invalid value, or contradicts another one.
    pub fn parse(comma_separated: &str) -> Result<Self, MountOptionError> {
        let mut parser = Parser::new();
        for option in split(comma_separated) {
            if !option.is_empty() {
                parser.take(&option)?;
            }
        }
        parser.finish()
    }

    /// Like [`MountOptions::parse`], for options that are already split. Commas in values are not
    /// escaped.
    ///
    /// # Errors
    /// As for [`MountOptions::parse`].
    pub fn parse_each<S: AsRef<str>>(options: impl IntoIterator<Item = S>) -> Result<Self, MountOptionError> {
        let mut parser = Parser::new();
        for option in options {
            parser.take(option.as_ref())?;
        }
        parser.finish()
    }
}

/// Splits options at commas that are not escaped.
fn split(options: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    let mut characters = options.chars();
    while let Some(character) = characters.next() {
        let last = found.last_mut().expect("the list is never empty");
        match character {
            ',' => found.push(String::new()),
            '\\' => match characters.next() {
                Some(',') => last.push(','),
                Some(other) => last.extend(['\\', other]),
                None => last.push('\\'),
            },
            other => last.push(other),
        }
    }
    found
}
