//! Patterns for names of files: `*`, `?`, `[...]` and `**`.
//!
//! Owns [`expand`]. As in sh(1), patterns match the parts of a path between slashes. A leading dot
//! is matched only by a dot. `**` stands for a directory and all directories below it, or at the
//! end of a pattern for everything there; it follows no symbolic link. A backslash takes the
//! meaning of the character behind it.

/// The kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Directory,
    Symlink,
    Other,
}

/// Names and kinds of the entries of a directory. It is empty for anything but a directory.
pub type Listing = Vec<(Vec<u8>, Kind)>;

/// The characters that make a word a pattern.
pub fn is_special(letter: char) -> bool {
    matches!(letter, '*' | '?' | '[')
}

/// Returns the paths that a pattern matches, sorted. `list` returns the entries of a directory,
/// whose path is empty or ends with a slash.
pub fn expand(pattern: &str, list: &dyn Fn(&[u8]) -> Listing) -> Vec<Vec<u8>> {
    let parts = split(pattern);
    let mut paths = vec![(Vec::new(), Kind::Directory)];
    let mut searched = false;
    for (number, part) in parts.iter().enumerate() {
        let last = number + 1 == parts.len();
        if part.is_empty() {
            // Slashes at the start, in a row, or at the end, where only directories are meant.
            if last {
                paths.retain(|(_, kind)| *kind != Kind::Other);
            }
            if number == 0 || last {
                paths.iter_mut().for_each(|(path, _)| path.push(b'/'));
            }
            continue;
        }
        let mut found = Vec::new();
        for (path, kind) in paths {
            if kind == Kind::Other {
                continue;
            }
            let mut directory = path;
            if !directory.is_empty() && !directory.ends_with(b"/") {
                directory.push(b'/');
            }
            if part == "**" {
                below(directory, last, list, &mut found);
                continue;
            }
            let matcher = Matcher::new(part);
            match matcher.literal() {
                Some(name) if !searched => found.push(([directory, name].concat(), Kind::Directory)),
                _ => {
                    let matching = list(&directory).into_iter().filter(|(name, _)| matcher.matches(name));
                    found.extend(matching.map(|(name, kind)| ([&directory[..], &name].concat(), kind)));
                }
            }
        }
        searched |= Matcher::new(part).literal().is_none();
        paths = found;
    }
    let mut paths: Vec<_> = paths.into_iter().map(|(path, _)| path).collect();
    paths.sort();
    paths.dedup();
    paths
}

/// Adds a directory, unless `all` is set, and the directories below it to `found`; with `all`, the
/// files below it as well.
fn below(directory: Vec<u8>, all: bool, list: &dyn Fn(&[u8]) -> Listing, found: &mut Vec<(Vec<u8>, Kind)>) {
    let mut pending = vec![directory.clone()];
    if !all {
        found.push((directory, Kind::Directory));
    }
    while let Some(directory) = pending.pop() {
        for (name, kind) in list(&directory) {
            if name.starts_with(b".") {
                continue;
            }
            let path = [&directory[..], &name].concat();
            if kind == Kind::Directory {
                pending.push([&path[..], b"/"].concat());
            }
            if all || kind == Kind::Directory {
                found.push((path, kind));
            }
        }
    }
}

/// Splits a pattern at the slashes.
fn split(pattern: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut letters = pattern.chars();
    while let Some(letter) = letters.next() {
        let part = parts.last_mut().expect("there is at least one part");
        match letter {
            '/' => parts.push(String::new()),
            '\\' => {
                part.push('\\');
                part.extend(letters.next());
            }
            letter => part.push(letter),
        }
    }
    parts
}

/// One character of a name. Bytes that are no UTF-8 are characters of their own.
type Letter = u32;

/// A piece of a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Letter(Letter),
    Any,
    Star,
    Set { negated: bool, ranges: Vec<(Letter, Letter)> },
}

/// The pattern of one name.
struct Matcher(Vec<Piece>);

impl Matcher {
    fn new(pattern: &str) -> Self {
        let letters: Vec<char> = pattern.chars().collect();
        let (mut pieces, mut at) = (Vec::new(), 0);
        while let Some(&letter) = letters.get(at) {
            at += 1;
            pieces.push(match letter {
                '*' => Piece::Star,
                '?' => Piece::Any,
                '[' => match set(&letters[at..]) {
                    Some((piece, length)) => {
                        at += length;
                        piece
                    }
                    // A bracket that is not closed is a letter.
                    None => Piece::Letter('['.into()),
                },
                '\\' if at < letters.len() => {
                    at += 1;
                    Piece::Letter(letters[at - 1].into())
                }
                letter => Piece::Letter(letter.into()),
            });
        }
        Self(pieces)
    }

    /// Returns the only name that matches, if there is one.
    fn literal(&self) -> Option<Vec<u8>> {
        let letter = |piece: &Piece| match piece {
            Piece::Letter(letter) => char::from_u32(*letter),
            _ => None,
        };
        self.0.iter().map(letter).collect::<Option<String>>().map(String::into_bytes)
    }

    fn matches(&self, name: &[u8]) -> bool {
        let name = letters_of(name);
        let dot = Letter::from('.');
        if name.first() == Some(&dot) && self.0.first() != Some(&Piece::Letter(dot)) {
            return false;
        }
        // Where to go on if the rest does not match: the last star takes one more letter.
        let (mut piece, mut at, mut retry) = (0, 0, None);
        loop {
            match self.0.get(piece) {
                Some(Piece::Star) => {
                    piece += 1;
                    retry = Some((piece, at));
                    continue;
                }
                Some(one) if at < name.len() && one.has(name[at]) => {
                    (piece, at) = (piece + 1, at + 1);
                    continue;
                }
                None if at == name.len() => return true,
                _ => {}
            }
            match retry {
                Some((star, from)) if from < name.len() => {
                    (piece, at) = (star, from + 1);
                    retry = Some((star, from + 1));
                }
                _ => return false,
            }
        }
    }
}

impl Piece {
    fn has(&self, letter: Letter) -> bool {
        match self {
            Piece::Letter(own) => *own == letter,
            Piece::Any => true,
            Piece::Star => false,
            Piece::Set { negated, ranges } => {
                ranges.iter().any(|(first, last)| (*first..=*last).contains(&letter)) != *negated
            }
        }
    }
}

/// Parses what follows an opening bracket. Returns the set, and the letters up to its end.
fn set(letters: &[char]) -> Option<(Piece, usize)> {
    let negated = matches!(letters.first(), Some('!' | '^'));
    let mut at = usize::from(negated);
    let first = at;
    let mut ranges: Vec<(Letter, Letter)> = Vec::new();
    // Takes the next letter, which may be behind a backslash.
    let take = |at: &mut usize| {
        let mut letter = *letters.get(*at)?;
        if letter == '\\' {
            *at += 1;
            letter = *letters.get(*at)?;
        }
        *at += 1;
        Some(Letter::from(letter))
    };
    loop {
        match letters.get(at)? {
            // At the start it is a member.
            ']' if at > first => return Some((Piece::Set { negated, ranges }, at + 1)),
            _ => {}
        }
        let start = take(&mut at)?;
        let mut end = start;
        if letters.get(at) == Some(&'-') && letters.get(at + 1).is_some_and(|letter| *letter != ']') {
            at += 1;
            end = take(&mut at)?;
        }
        ranges.push((start, end));
    }
}

fn letters_of(name: &[u8]) -> Vec<Letter> {
    let mut letters = Vec::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        letters.extend(chunk.valid().chars().map(Letter::from));
        letters.extend(chunk.invalid().iter().map(|byte| Letter::from(char::MAX) + 1 + Letter::from(*byte)));
    }
    letters
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_match(pattern: &str, name: &str) -> bool {
        Matcher::new(pattern).matches(name.as_bytes())
    }

    #[test]
    fn names_match_as_in_sh() {
        for (pattern, name) in [
            ("*", "a"),
            ("a*b*c", "aXbYbZc"),
            ("*.txt", "a.b.txt"),
            ("?rün", "grün"),
            ("gr?n", "grün"),
            ("[abc]x", "bx"),
            ("[a-c]x", "bx"),
            ("[!a-c]x", "dx"),
            ("[^a-c]x", "dx"),
            ("[]x]", "]"),
            ("[a-]", "-"),
            (r"\*", "*"),
            (r"[\]]", "]"),
            ("[a", "[a"),
            (".*", ".hidden"),
            ("**", "ab"),
        ] {
            assert!(is_match(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("*", ".hidden"),
            ("?hidden", ".hidden"),
            ("[.]hidden", ".hidden"),
            ("?", ""),
            ("?", "ab"),
            ("[!a]", "a"),
            (r"\*", "a"),
            ("a*b", "ab.c"),
            ("", "a"),
        ] {
            assert!(!is_match(pattern, name), "{pattern} {name}");
        }
        assert!(Matcher::new("a?").matches(b"a\xff"));
        // Many stars take no exponential time.
        assert!(!is_match(&"a*".repeat(30), &("a".repeat(200) + "b" + &"c".repeat(200)).replace('a', "x")));
    }

    fn list(directory: &[u8]) -> Listing {
        use Kind::{Directory, Other, Symlink};
        let entries: &[(&str, Kind)] = match directory {
            b"" | b"/" | b"./" => {
                &[("a", Directory), ("b1", Directory), ("b2", Other), (".git", Directory), ("to", Symlink)]
            }
            b"a/" | b"/a/" | b"./a/" => &[("x.c", Other), ("deep", Directory), (".h", Other)],
            b"a/deep/" | b"/a/deep/" => &[("y.c", Other)],
            b"b1/" | b"to/" => &[("x.c", Other)],
            b".git/" => &[("z.c", Other)],
            _ => &[],
        };
        entries.iter().map(|(name, kind)| (name.as_bytes().to_vec(), *kind)).collect()
    }

    #[test]
    fn paths_are_expanded_part_by_part() {
        let found = |pattern: &str| {
            let paths = expand(pattern, &list).into_iter();
            paths.map(|path| String::from_utf8(path).unwrap()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(found("*"), "a b1 b2 to");
        assert_eq!(found("/b?"), "/b1 /b2");
        assert_eq!(found("*/x.c"), "a/x.c b1/x.c to/x.c");
        assert_eq!(found("a/*.c"), "a/x.c");
        assert_eq!(found("./a/*.c"), "./a/x.c");
        assert_eq!(found("*/"), "a/ b1/ to/");
        assert_eq!(found(".*"), ".git");
        assert_eq!(found("**/*.c"), "a/deep/y.c a/x.c b1/x.c");
        assert_eq!(found("a/**"), "a/deep a/deep/y.c a/x.c");
        assert_eq!(found("/a/**/y.c"), "/a/deep/y.c");
        assert_eq!(found("*/missing"), "");
        assert_eq!(found("b2/*"), "");
        assert_eq!(found("[z]"), "");
    }
}
