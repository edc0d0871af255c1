//! The tests of `papilio find`, such as `-name`.
//!
//! Owns [`TestArgs`], the tests as typed, and [`Tests`], the resolved ones. A file must pass all.

use crate::output::find_letter;
use crate::path::ImagePath;
use crate::time;
use crate::usage_error::UsageError;
use globset::{GlobBuilder, GlobMatcher};
use papilio::{FileKind, Inode};
use std::cmp::Ordering;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

const HEADING: &str = "Tests";

/// The tests as typed.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = HEADING)]
pub struct TestArgs {
    /// The last component matches a shell pattern
    #[arg(long, value_name = "PATTERN", allow_hyphen_values = true)]
    name: Vec<OsString>,
    /// Like --name, ignoring case
    #[arg(long, value_name = "PATTERN", allow_hyphen_values = true)]
    iname: Vec<OsString>,
    /// The whole path inside the file system matches a shell pattern; * matches slashes too
    #[arg(long, value_name = "PATTERN", allow_hyphen_values = true, visible_alias = "wholename")]
    path: Vec<OsString>,
    /// Like --path, ignoring case
    #[arg(long, value_name = "PATTERN", allow_hyphen_values = true)]
    ipath: Vec<OsString>,
    /// The file type is one of a comma-separated list of f, d, l, p, s, b and c
    #[arg(long = "type", value_name = "KINDS")]
    kinds: Option<String>,
    /// The size, rounded up, in units of c (bytes), w (2 bytes), b (512 bytes, default), k, M or G
    #[arg(long, value_name = "N[cwbkMG]", allow_hyphen_values = true)]
    size: Vec<String>,
    /// An empty regular file or directory
    #[arg(long)]
    empty: bool,
    /// Modified N days of 24 hours ago
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    mtime: Vec<String>,
    /// Modified N minutes ago
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    mmin: Vec<String>,
    /// Modified after a time: @SECONDS, YYYY-MM-DD or "YYYY-MM-DD HH:MM:SS"
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    newermt: Vec<String>,
    /// The user id of the owner
    #[arg(long, value_name = "N", visible_alias = "uid", allow_hyphen_values = true)]
    user: Vec<String>,
    /// The group id
    #[arg(long, value_name = "N", visible_alias = "gid", allow_hyphen_values = true)]
    group: Vec<String>,
    /// The permissions are exactly MODE (octal), include all bits of -MODE, or any bit of /MODE
    #[arg(long, value_name = "[-/]MODE", allow_hyphen_values = true)]
    perm: Vec<String>,
    /// The number of hard links
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    links: Vec<String>,
    /// The inode number
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    inum: Vec<String>,
    /// Has an extended attribute whose name matches a shell pattern
    #[arg(long, value_name = "PATTERN", allow_hyphen_values = true)]
    xattr: Vec<OsString>,
}

/// `N`, `+N` or `-N`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Count {
    order: Ordering,
    number: u64,
}

impl Count {
    fn parse(test: &str, text: &str) -> Result<Self, UsageError> {
        let (order, digits) = match text.as_bytes() {
            [b'+', ..] => (Ordering::Greater, &text[1..]),
            [b'-', ..] => (Ordering::Less, &text[1..]),
            _ => (Ordering::Equal, text),
        };
        let digits_only = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        match digits.parse() {
            Ok(number) if digits_only => Ok(Self { order, number }),
            _ => Err(UsageError::new(format_args!("-{test} {text}: not a number"))),
        }
    }

    fn holds(self, number: impl Into<i128>) -> bool {
        number.into().cmp(&i128::from(self.number)) == self.order
    }
}

/// A test of permission bits.
#[derive(Clone, Copy, Debug)]
enum Permission {
    Exact(u32),
    All(u32),
    Any(u32),
}

impl Permission {
    fn parse(text: &str) -> Result<Self, UsageError> {
        let (make, digits): (fn(u32) -> Self, _) = match text.as_bytes() {
            [b'-', ..] => (Self::All, &text[1..]),
            [b'/', ..] => (Self::Any, &text[1..]),
            _ => (Self::Exact, text),
        };
        match u32::from_str_radix(digits, 8) {
            Ok(bits) if bits <= 0o7777 && !digits.starts_with('+') => Ok(make(bits)),
            _ => Err(UsageError::new(format_args!("-perm {text}: not an octal mode"))),
        }
    }

    fn holds(self, mode: u32) -> bool {
        let mode = mode & 0o7777;
        match self {
            Self::Exact(bits) => mode == bits,
            Self::All(bits) => mode & bits == bits,
            Self::Any(bits) => bits == 0 || mode & bits != 0,
        }
    }
}

/// The resolved tests.
pub struct Tests {
    now: i64,
    names: Vec<GlobMatcher>,
    paths: Vec<GlobMatcher>,
    kinds: Option<String>,
    sizes: Vec<(Count, u64)>,
    empty: bool,
    ages: Vec<(Count, i64)>,
    after: Vec<(i64, u32)>,
    users: Vec<Count>,
    groups: Vec<Count>,
    permissions: Vec<Permission>,
    links: Vec<Count>,
    numbers: Vec<Count>,
    xattrs: Vec<GlobMatcher>,
}

/// A file that may be shown.
pub struct Candidate<'a> {
    /// Its operand.
    pub path: &'a ImagePath,
    /// Its inode.
    pub inode: &'a Inode,
}

impl Tests {
    /// Resolves the tests. `now` is in seconds since 1970.
    pub fn resolve(arguments: &TestArgs, now: i64) -> Result<Self, UsageError> {
        let mut names = patterns(&arguments.name, false)?;
        names.extend(patterns(&arguments.iname, true)?);
        let mut paths = patterns(&arguments.path, false)?;
        paths.extend(patterns(&arguments.ipath, true)?);
        let mut ages =
            counts("mtime", &arguments.mtime)?.into_iter().map(|count| (count, 86_400)).collect::<Vec<_>>();
        ages.extend(counts("mmin", &arguments.mmin)?.into_iter().map(|count| (count, 60)));
        let after = arguments.newermt.iter().map(|text| time::parse(text));
        Ok(Self {
            now,
            names,
            paths,
            kinds: arguments.kinds.as_deref().map(kinds).transpose()?,
            sizes: arguments.size.iter().map(|text| size(text)).collect::<Result<_, _>>()?,
            empty: arguments.empty,
            ages,
            after: after.collect::<Result<_, _>>().map_err(UsageError::new)?,
            users: counts("user", &arguments.user)?,
            groups: counts("group", &arguments.group)?,
            permissions: arguments
                .perm
                .iter()
                .map(|text| Permission::parse(text))
                .collect::<Result<_, _>>()?,
            links: counts("links", &arguments.links)?,
            numbers: counts("inum", &arguments.inum)?,
            xattrs: patterns(&arguments.xattr, false)?,
        })
    }

    /// Returns whether a name passes the tests of names.
    pub fn name_passes(&self, name: &[u8]) -> bool {
        self.names.iter().all(|pattern| pattern.is_match(OsStr::from_bytes(name)))
    }

    /// Returns whether a file passes all tests. Runs the cheap ones first.
    pub fn pass(&self, file: &Candidate<'_>) -> papilio::Result<bool> {
        let metadata = file.inode.metadata();
        let mtime = metadata.mtime();
        let age = i128::from(self.now) - i128::from(mtime.seconds);
        let all = |counts: &[Count], number: u64| counts.iter().all(|count| count.holds(number));
        let path = OsStr::from_bytes(&file.path.path);
        let cheap = self.name_passes(file.path.base_name().unwrap_or(b"/"))
            && self.paths.iter().all(|pattern| pattern.is_match(path))
            && self.kinds.as_ref().is_none_or(|k| k.contains(find_letter(metadata.file_type())))
            && self.sizes.iter().all(|(size, unit)| size.holds(metadata.size().div_ceil(*unit)))
            && self.ages.iter().all(|(count, unit)| count.holds(age.div_euclid((*unit).into())))
            && self.after.iter().all(|after| (mtime.seconds, mtime.nanoseconds) > *after)
            && all(&self.users, metadata.uid().into())
            && all(&self.groups, metadata.gid().into())
            && self.permissions.iter().all(|permission| permission.holds(metadata.mode()))
            && all(&self.links, metadata.nlink().into())
            && all(&self.numbers, file.inode.number().0);
        if !cheap || (self.empty && !is_empty(file.inode)?) {
            return Ok(false);
        }
        if self.xattrs.is_empty() {
            return Ok(true);
        }
        let xattrs = file.inode.xattrs()?;
        Ok(self
            .xattrs
            .iter()
            .all(|pattern| xattrs.iter().any(|xattr| pattern.is_match(OsStr::from_bytes(&xattr.name)))))
    }
}

fn is_empty(inode: &Inode) -> papilio::Result<bool> {
    match inode.metadata().file_type() {
        FileKind::Regular => Ok(inode.metadata().size() == 0),
        FileKind::Directory => inode.read_dir()?.next().transpose().map(|first| first.is_none()),
        _ => Ok(false),
    }
}

fn counts(test: &str, texts: &[String]) -> Result<Vec<Count>, UsageError> {
    texts.iter().map(|text| Count::parse(test, text)).collect()
}

fn kinds(text: &str) -> Result<String, UsageError> {
    let known = text.split(',').all(|kind| matches!(kind, "f" | "d" | "l" | "p" | "s" | "b" | "c"));
    match known {
        true => Ok(text.replace(',', "")),
        false => Err(UsageError::new(format_args!("-type {text}: not a list of f, d, l, p, s, b and c"))),
    }
}

fn size(text: &str) -> Result<(Count, u64), UsageError> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'c') => (&text[..text.len() - 1], 1),
        Some(b'w') => (&text[..text.len() - 1], 2),
        Some(b'b') => (&text[..text.len() - 1], 512),
        Some(b'k') => (&text[..text.len() - 1], 1 << 10),
        Some(b'M') => (&text[..text.len() - 1], 1 << 20),
        Some(b'G') => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 512),
    };
    Ok((Count::parse("size", digits)?, unit))
}

/// Compiles patterns of fnmatch(3): a backslash escapes, and braces and `**` are not special.
fn patterns(texts: &[OsString], any_case: bool) -> Result<Vec<GlobMatcher>, UsageError> {
    texts
        .iter()
        .map(|text| {
            let wrong =
                |reason: String| UsageError::new(format_args!("{}: {reason}", text.to_string_lossy()));
            let text = text.to_str().ok_or_else(|| wrong("pattern is not UTF-8".into()))?;
            GlobBuilder::new(&without_braces(text))
                .case_insensitive(any_case)
                .literal_separator(false)
                .backslash_escape(true)
                .build()
                .map(|glob| glob.compile_matcher())
                .map_err(|error| wrong(error.kind().to_string()))
        })
        .collect()
}

fn without_braces(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut escaped = false;
    let mut last = '\0';
    for c in text.chars() {
        match c {
            _ if escaped => out.push(c),
            '{' | '}' => out.extend(['\\', c]),
            '*' if last == '*' => {}
            _ => out.push(c),
        }
        escaped = c == '\\' && !escaped;
        last = if escaped { '\0' } else { c };
    }
    out
}

#[cfg(test)]
mod unit {
    use super::*;

    fn matches(pattern: &str, name: &[u8]) -> bool {
        patterns(&[pattern.into()], false).unwrap()[0].is_match(OsStr::from_bytes(name))
    }

    #[test]
    fn patterns_match_like_fnmatch() {
        assert!(matches("*.c", b".c"));
        assert!(matches("a**b", b"a/x/b"));
        assert!(matches("[!a]?", b"bc"));
        assert!(!matches("[!a]?", b"ac"));
        assert!(matches("{a,b}", b"{a,b}"));
        assert!(!matches("{a,b}", b"a"));
        assert!(matches("\\*", b"*"));
        assert!(!matches("\\*", b"x"));
        assert!(matches("*ä", "xä".as_bytes()));
        assert!(matches("a*", b"a\xff"));
        assert!(patterns(&["[a".into()], false).is_err());
    }

    #[test]
    fn counts_and_sizes_are_parsed() {
        let count = |text| Count::parse("links", text).ok();
        assert!(count("+3").unwrap().holds(4) && !count("+3").unwrap().holds(3));
        assert!(count("-3").unwrap().holds(2) && count("3").unwrap().holds(3));
        assert_eq!((count("--3"), count("x"), count(""), count("+")), (None, None, None, None));
        assert_eq!(size("+10k").unwrap().1, 1024);
        assert_eq!(size("3").unwrap().1, 512);
        assert!(size("k").is_err());
    }

    #[test]
    fn permissions_are_compared() {
        assert!(Permission::parse("-022").unwrap().holds(0o666));
        assert!(!Permission::parse("-022").unwrap().holds(0o646));
        assert!(Permission::parse("/022").unwrap().holds(0o646));
        assert!(Permission::parse("644").unwrap().holds(0o100_644));
        assert!(Permission::parse("9").is_err());
    }
}
