//! The commands of a shell, and how a line becomes the arguments of a `papilio` command.
//!
//! Owns [`VERBS`] and [`arguments`]. Paths of a line are those of the file system, from the
//! directory that the shell is in. Everything else, options with their values above all, passes
//! unchanged: the definition of the command line tells which options take a value.

use super::words::Word;
use crate::usage_error::UsageError;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// The words of a line that name files of the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paths {
    /// All but the options and this many at the start.
    After(usize),
    /// As `After(0)`; without any it is the directory that the shell is in.
    OrHere,
    /// As `OrHere`, after the name of a subcommand.
    OfSubcommand,
    /// The last is on the host, or missing for the host's current directory.
    ToHost,
    /// Only the last, or none for the directory that the shell is in; the others are on the host.
    FromHost,
    /// None: the shell itself runs the command.
    Own,
}

/// A command of the shell.
#[derive(Clone, Copy, Debug)]
pub struct Verb {
    /// Its name.
    pub name: &'static str,
    /// The `papilio` command, with options.
    pub command: &'static [&'static str],
    /// The words that name files.
    pub paths: Paths,
    /// One line of help.
    pub help: &'static str,
}

const fn verb(
    name: &'static str,
    command: &'static [&'static str],
    paths: Paths,
    help: &'static str,
) -> Verb {
    Verb { name, command, paths, help }
}

/// The commands.
pub const VERBS: [Verb; 29] = [
    verb("cat", &["cat"], Paths::After(0), "show the content of files"),
    verb("cd", &[], Paths::Own, "go to a directory, or to the top level"),
    verb("chmod", &["chmod"], Paths::After(1), "change modes"),
    verb("chown", &["chown"], Paths::After(1), "change owners"),
    verb("compsize", &["compsize"], Paths::OrHere, "show how well files are compressed"),
    verb("cp", &["cp", "-a"], Paths::After(0), "copy files inside the file system; the copies share data"),
    verb("df", &["filesystem", "usage"], Paths::OrHere, "show used and free space"),
    verb("du", &["du"], Paths::OrHere, "show sizes of directories"),
    verb("exit", &[], Paths::Own, "leave the shell; changes are committed"),
    verb("find", &["find"], Paths::OrHere, "find files by their properties"),
    verb("get", &["cp", "-a"], Paths::ToHost, "copy files to the host: get PATH... [DIRECTORY]"),
    verb("getfattr", &["getfattr"], Paths::After(0), "show extended attributes"),
    verb("help", &[], Paths::Own, "list the commands; COMMAND --help shows options"),
    verb("lcd", &[], Paths::Own, "change the directory of the host"),
    verb("ln", &["ln"], Paths::After(0), "make links"),
    verb("ls", &["ls"], Paths::OrHere, "list directories"),
    verb("mkdir", &["mkdir"], Paths::After(0), "make directories"),
    verb("mv", &["mv"], Paths::After(0), "move or rename files"),
    verb("put", &["cp", "-a"], Paths::FromHost, "copy files from the host: put FILE... [PATH]"),
    verb("pwd", &[], Paths::Own, "show the directory that the shell is in"),
    verb("quit", &[], Paths::Own, "leave the shell, as exit does"),
    verb("rm", &["rm"], Paths::After(0), "remove files"),
    verb("setfattr", &["setfattr"], Paths::After(0), "set extended attributes"),
    verb(
        "snapshot",
        &["subvolume", "snapshot"],
        Paths::After(0),
        "snapshot a subvolume: snapshot [-r] PATH NEW",
    ),
    verb("stat", &["stat"], Paths::OrHere, "show inodes"),
    verb("subvolume", &["subvolume"], Paths::OfSubcommand, "list, show, create, delete subvolumes"),
    verb("sync", &[], Paths::Own, "commit all changes"),
    verb("touch", &["touch"], Paths::After(0), "create files, set times"),
    verb("truncate", &["truncate"], Paths::After(0), "set sizes of files"),
];

/// Returns the command with a name.
pub fn find(name: &str) -> Option<&'static Verb> {
    VERBS.iter().find(|verb| verb.name == name)
}

/// Returns an absolute path: `word` from the directory `here`.
pub fn absolute(here: &[u8], word: &[u8]) -> Vec<u8> {
    match word.starts_with(b"/") {
        true => word.to_vec(),
        false if here == b"/" => [b"/", word].concat(),
        false => [here, b"/", word].concat(),
    }
}

/// Returns the path without `.` and `..`, and without a slash at its end.
pub fn normal(path: &[u8]) -> Vec<u8> {
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in path.split(|&byte| byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    [b"/", &parts.join(&b'/')[..]].concat()
}

/// Finds the paths that a pattern matches: in the file system if the flag is set, otherwise on the
/// host.
pub type Expand<'e> = &'e dyn Fn(&str, bool) -> Vec<Vec<u8>>;

/// Returns the arguments of `papilio` for a line.
///
/// # Errors
/// Too few words; a pattern that matches nothing.
pub fn arguments(
    definition: &clap::Command,
    verb: &Verb,
    words: &[Word],
    image: &Path,
    here: &[u8],
    expand: Expand<'_>,
) -> Result<Vec<OsString>, UsageError> {
    let inside = |word: &[u8]| {
        let mut operand = image.as_os_str().as_bytes().to_vec();
        operand.push(b':');
        operand.extend(absolute(here, word));
        OsString::from_vec(operand)
    };
    let mut made: Vec<OsString> = ["papilio"].iter().chain(verb.command).map(OsString::from).collect();
    let mut command = Vec::from_iter(verb.command.iter().copied().filter(|word| !word.starts_with('-')));
    let mut words = words;
    if verb.paths == Paths::OfSubcommand
        && let Some((first, rest)) = words.split_first()
    {
        made.push((&first.text).into());
        command.push(&first.text);
        words = rest;
    }
    let mut operands = Vec::new();
    let symbolic = sort_words(definition, &command, words, &mut made, &mut operands);
    let count = operands.len();
    let is_inside = |number: usize| match verb.paths {
        // The target of a symbolic link is any text.
        Paths::After(0) if symbolic => number > 0,
        Paths::After(raw) => number >= raw,
        // The id of a subvolume.
        Paths::OfSubcommand if command.last() == Some(&"set-default") => number + 1 == count,
        Paths::OrHere | Paths::OfSubcommand => true,
        Paths::ToHost => number + 1 < count || count == 1,
        Paths::FromHost => number > 0 && number + 1 == count,
        Paths::Own => false,
    };
    // Other operands are modes, owners and the like, or the target of a symbolic link.
    let is_host = matches!(verb.paths, Paths::ToHost | Paths::FromHost);
    for (number, word) in operands.iter().enumerate() {
        let is_inside = is_inside(number);
        let paths = match &word.pattern {
            Some(pattern) if is_inside || is_host => {
                let found = expand(pattern, is_inside);
                if found.is_empty() {
                    return Err(UsageError::new(format_args!("{}: nothing matches", word.text)));
                }
                found
            }
            _ => vec![word.text.clone().into_bytes()],
        };
        for path in paths {
            made.push(if is_inside { inside(&path) } else { OsString::from_vec(path) });
        }
    }
    let asks_help = words.iter().any(|word| word.text == "--help");
    match verb.paths {
        _ if asks_help => {}
        Paths::ToHost | Paths::FromHost if operands.is_empty() => {
            return Err(UsageError::new(format_args!("{}: what is to be copied?", verb.name)));
        }
        Paths::ToHost if count == 1 => made.push(".".into()),
        Paths::FromHost if count == 1 => made.push(inside(b".")),
        Paths::OrHere if count == 0 => made.push(inside(b"")),
        Paths::OfSubcommand if count == 0 && command.len() > 1 => made.push(inside(b"")),
        _ => {}
    }
    Ok(made)
}

/// Adds the options of a line, with their values, to `made`, and all other words to `operands`.
/// Returns whether a symbolic link is to be made.
fn sort_words(
    definition: &clap::Command,
    command: &[&str],
    words: &[Word],
    made: &mut Vec<OsString>,
    operands: &mut Vec<Word>,
) -> bool {
    let found = command.iter().try_fold(definition, |found, word| found.find_subcommand(word));
    let mut symbolic = false;
    let mut words = words.iter();
    while let Some(whole) = words.next() {
        let word = &whole.text;
        if word == "--" {
            operands.extend(words.by_ref().cloned());
            break;
        }
        if !word.starts_with('-') || word == "-" {
            operands.push(whole.clone());
            continue;
        }
        made.push(word.into());
        symbolic |= command == ["ln"] && (word == "--symbolic" || is_cluster(word) && word.contains('s'));
        let all = [found, Some(definition)];
        let takes = |is: &dyn Fn(&clap::Arg) -> bool| {
            let option = all.iter().flatten().find_map(|command| command.get_arguments().find(|one| is(one)));
            option.is_some_and(|option| option.get_action().takes_values() && !option.is_require_equals_set())
        };
        let long = |name: &str| takes(&|option| option.get_long() == Some(name));
        let has_value = if let Some(name) = word.strip_prefix("--") {
            !name.contains('=') && long(name)
        } else if command == ["find"] && long(&word[1..]) || command == ["setfattr"] && word == "-v" {
            true
        } else {
            // The value of a short option may follow in the same word.
            let mut letters = word[1..].chars();
            let taking = letters.find(|letter| takes(&|option| option.get_short() == Some(*letter)));
            taking.is_some() && letters.next().is_none()
        };
        if has_value && let Some(value) = words.next() {
            made.push((&value.text).into());
        }
    }
    symbolic
}

fn is_cluster(word: &str) -> bool {
    !word.starts_with("--")
}

/// Returns a name as text; bytes that are no UTF-8 cannot be typed.
pub fn typed(name: &[u8]) -> Option<&str> {
    OsStr::from_bytes(name).to_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition() -> clap::Command {
        use clap::{Arg, ArgAction, Command};
        let flag = |id: &'static str| Arg::new(id).short(id.chars().next()).action(ArgAction::SetTrue);
        let name = Arg::new("name").long("name").short('n').action(ArgAction::Set);
        let plain = |name: &'static str| Command::new(name).arg(flag("s")).arg(flag("r"));
        Command::new("papilio")
            .subcommands([plain("ls"), plain("ln"), plain("cp"), plain("chmod")])
            .subcommand(plain("find").arg(name.clone()))
            .subcommand(plain("setfattr").arg(name))
            .subcommand(plain("subvolume").subcommand(plain("list")).subcommand(plain("set-default")))
    }

    fn made(line: &str) -> String {
        let words = super::super::words::split(line).unwrap();
        let verb = find(&words[0].text).unwrap();
        // Every pattern matches two names.
        let expand = |pattern: &str, inside: bool| {
            let side = if inside { "in" } else { "out" };
            [1, 2].map(|number| format!("{side}{number}{pattern}").into_bytes()).to_vec()
        };
        let image = Path::new("i");
        let made = arguments(&definition(), verb, &words[1..], image, b"/a", &expand).unwrap();
        made.join(OsStr::new(" ")).into_string().unwrap()
    }

    #[test]
    fn paths_are_inside_the_image() {
        assert_eq!(made("ls"), "papilio ls i:/a/");
        assert_eq!(made("ls -r b /c"), "papilio ls -r i:/a/b i:/c");
        assert_eq!(made("chmod 755 b"), "papilio chmod 755 i:/a/b");
        assert_eq!(made("ln b c"), "papilio ln i:/a/b i:/a/c");
        assert_eq!(made("ln -s b c"), "papilio ln -s b i:/a/c");
        assert_eq!(made("find -name x"), "papilio find -name x i:/a/");
        assert_eq!(made("setfattr -n user.a -v b c"), "papilio setfattr -n user.a -v b i:/a/c");
        assert_eq!(made("setfattr -nuser.a -v b c"), "papilio setfattr -nuser.a -v b i:/a/c");
        assert_eq!(made("subvolume list"), "papilio subvolume list i:/a/");
        assert_eq!(made("subvolume set-default 256 ."), "papilio subvolume set-default 256 i:/a/.");
        assert_eq!(made("get b"), "papilio cp -a i:/a/b .");
        assert_eq!(made("get b c /host"), "papilio cp -a i:/a/b i:/a/c /host");
        assert_eq!(made("put /host"), "papilio cp -a /host i:/a/.");
        assert_eq!(made("put x y z"), "papilio cp -a x y i:/a/z");
        assert_eq!(made("ls -- -x"), "papilio ls i:/a/-x");
        assert_eq!(made("ls x*"), "papilio ls i:/a/in1x* i:/a/in2x*");
        assert_eq!(made("ls 'x*'"), "papilio ls i:/a/x*");
        // A mode, a name to find and the target of a link are no paths.
        assert_eq!(made("chmod u=* b"), "papilio chmod u=* i:/a/b");
        assert_eq!(made("find . -name *"), "papilio find -name * i:/a/.");
        assert_eq!(made("ln -s * c"), "papilio ln -s * i:/a/c");
        assert_eq!(made("get x*"), "papilio cp -a i:/a/in1x* i:/a/in2x* .");
        assert_eq!(made("put x* b"), "papilio cp -a out1x* out2x* i:/a/b");
    }

    #[test]
    fn directories_are_normal() {
        assert_eq!(normal(b"/a/./b//../c/"), b"/a/c");
        assert_eq!(normal(b"/../.."), b"/");
        assert_eq!(absolute(b"/", b"x"), b"/x");
    }

    #[test]
    fn commands_are_sorted() {
        assert!(VERBS.is_sorted_by_key(|verb| verb.name));
    }
}
