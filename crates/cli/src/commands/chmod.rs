//! `papilio chmod`.
//!
//! Owns [`Mode`]: a mode in octal, or symbolic as in POSIX (`u+rwx,go-w,a=rX,g=u,+t`).

use crate::context::Context;
use crate::tree::{Recursion, for_each_inode};
use papilio::{FileKind, SetAttributes};
use std::ffi::OsString;
use std::str::FromStr;

/// Change permissions
///
/// Symbolic links given as operands are followed; those that -R finds are ignored.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The mode, octal (0644) or symbolic (u+x,go=rX)
    #[arg(allow_hyphen_values = true)]
    mode: Mode,
    /// The files and directories
    #[arg(value_name = "IMAGE:/PATH", required = true, value_hint = clap::ValueHint::AnyPath)]
    paths: Vec<OsString>,
    /// Change directories with everything below them
    #[arg(short = 'R', long)]
    recursive: bool,
}

impl Args {
    /// Changes the modes.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let umask = crate::filling::Caller::new().umask;
        let how = Recursion { one_subvolume: false, recursive: self.recursive, follow: true };
        for_each_inode(context, &self.paths, how, |inode| {
            if inode.file_type() == FileKind::Symlink {
                return Ok(());
            }
            let directory = inode.file_type() == FileKind::Directory;
            let mode = self.mode.apply(inode.metadata().permissions(), directory, umask);
            inode.set_attributes(&SetAttributes { mode: Some(mode), ..SetAttributes::default() })
        })
    }
}

/// A change of a mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mode(Vec<Clause>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Clause {
    /// The permission bits of the affected classes: user, group, others.
    classes: u32,
    /// Whether no class was given, so that the umask applies.
    masked: bool,
    operation: Operation,
    bits: Bits,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Add,
    Remove,
    Set,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bits {
    /// All twelve bits, from an octal number.
    Number(u32),
    Letters {
        /// The bits of `rwx`.
        bits: u32,
        /// `X`: execute permission for directories, and for files that have any already.
        search: bool,
        set_id: bool,
        sticky: bool,
    },
    /// The bits of another class, by its shift in the mode.
    Copy(u32),
}

const USER: u32 = 0o700;
const GROUP: u32 = 0o070;
const OTHERS: u32 = 0o007;

impl Mode {
    /// Returns the new twelve bits of an inode that had `old`. `umask` applies to clauses without a
    /// class.
    pub fn apply(&self, old: u32, directory: bool, umask: u32) -> u32 {
        self.0.iter().fold(old & 0o7777, |mode, clause| clause.apply(mode, directory, umask))
    }
}

impl Clause {
    fn apply(self, mode: u32, directory: bool, umask: u32) -> u32 {
        let (value, affected) = match self.bits {
            // Unlike in chmod(1), a short number clears the set-id bits of a directory too.
            Bits::Number(bits) => (bits, 0o7777),
            Bits::Letters { bits, search, set_id, sticky } => {
                let execute = search && (directory || mode & 0o111 != 0);
                let bits = bits | u32::from(execute);
                let mut value = (bits * 0o111) & self.classes;
                if self.masked {
                    value &= !umask;
                }
                let ids = (self.classes & USER != 0, self.classes & GROUP != 0);
                value |= if set_id { u32::from(ids.0) * 0o4000 + u32::from(ids.1) * 0o2000 } else { 0 };
                value |= if sticky && self.classes & OTHERS != 0 { 0o1000 } else { 0 };
                // Like in chmod(1), `=` keeps a directory's set-id bits.
                let ids = u32::from(ids.0) * 0o4000 + u32::from(ids.1) * 0o2000;
                let ids = if directory { 0 } else { ids };
                (value, self.classes | ids | if self.classes & OTHERS != 0 { 0o1000 } else { 0 })
            }
            Bits::Copy(shift) => ((((mode >> shift) & 7) * 0o111) & self.classes, self.classes),
        };
        match self.operation {
            Operation::Add => mode | value,
            Operation::Remove => mode & !value,
            Operation::Set => (mode & !affected) | value,
        }
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "not a mode; give one such as 0644 or u+x,go=rX".to_owned();
        if text.starts_with(|first: char| first.is_ascii_digit()) {
            let bits = u32::from_str_radix(text, 8).ok().filter(|bits| *bits <= 0o7777).ok_or_else(wrong)?;
            let (operation, bits) = (Operation::Set, Bits::Number(bits));
            return Ok(Self(vec![Clause { classes: 0o777, masked: false, operation, bits }]));
        }
        let mut clauses = Vec::new();
        for part in text.split(',') {
            let start = part.find(['+', '-', '=']).ok_or_else(wrong)?;
            let mut classes = 0;
            for letter in part[..start].chars() {
                classes |= match letter {
                    'u' => USER,
                    'g' => GROUP,
                    'o' => OTHERS,
                    'a' => 0o777,
                    _ => return Err(wrong()),
                };
            }
            let masked = classes == 0;
            let classes = if masked { 0o777 } else { classes };
            let mut rest = &part[start..];
            while let Some(sign) = rest.chars().next() {
                let operation = match sign {
                    '+' => Operation::Add,
                    '-' => Operation::Remove,
                    _ => Operation::Set,
                };
                rest = &rest[1..];
                let end = rest.find(['+', '-', '=']).unwrap_or(rest.len());
                let bits = parse_bits(&rest[..end]).ok_or_else(wrong)?;
                clauses.push(Clause { classes, masked, operation, bits });
                rest = &rest[end..];
            }
        }
        Ok(Self(clauses))
    }
}

fn parse_bits(letters: &str) -> Option<Bits> {
    match letters {
        "u" => return Some(Bits::Copy(6)),
        "g" => return Some(Bits::Copy(3)),
        "o" => return Some(Bits::Copy(0)),
        _ => {}
    }
    let (mut bits, mut search, mut set_id, mut sticky) = (0, false, false, false);
    for letter in letters.chars() {
        match letter {
            'r' => bits |= 4,
            'w' => bits |= 2,
            'x' => bits |= 1,
            'X' => search = true,
            's' => set_id = true,
            't' => sticky = true,
            _ => return None,
        }
    }
    Some(Bits::Letters { bits, search, set_id, sticky })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_match_chmod() {
        let cases = [
            (0o644, "0755", false, 0o755),
            (0o644, "u+x", false, 0o744),
            (0o644, "+x", false, 0o755),
            (0o666, "+w", false, 0o666),
            (0o444, "+w", false, 0o644),
            (0o755, "go-rx", false, 0o700),
            (0o640, "a=rX", false, 0o444),
            (0o640, "a=rX", true, 0o555),
            (0o740, "a+X", false, 0o751),
            (0o751, "g=u", false, 0o771),
            (0o755, "u+s,g+s,+t", false, 0o7755),
            (0o6755, "u=rwx,g=rx", false, 0o755),
            (0o2755, "g=rx", true, 0o2755),
            (0o2755, "g-s", true, 0o755),
            (0o000, "u=rw,g=r-w+x", false, 0o650),
            (0o777, "a=", false, 0),
        ];
        for (old, text, directory, new) in cases {
            let mode: Mode = text.parse().unwrap();
            assert_eq!(mode.apply(old, directory, 0o022), new, "{old:o} {text}");
        }
        for text in ["", "x", "8", "10000", "u", "u+q", "z+x", "u+x,", "0x1", "-8"] {
            assert!(text.parse::<Mode>().is_err(), "{text:?}");
        }
    }
}
