//! The words of a line.
//!
//! Owns [`split`] and [`unfinished`]. Quoting is that of sh(1): single quotes, double quotes and
//! backslashes. `#` at the start of a word begins a comment. There are no variables.

use super::pattern::is_special;

/// Why a line has no words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unclosed(pub char);

/// A word of a line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Word {
    /// Its text without quoting.
    pub text: String,
    /// The text with a backslash before each quoted character, if it is a pattern: if it has a
    /// special character that is not quoted.
    pub pattern: Option<String>,
}

/// The last word of a line that is being typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// The words before it.
    pub before: Vec<String>,
    /// Where it begins, in bytes.
    pub start: usize,
    /// Its text without quoting.
    pub text: String,
}

/// Returns the words of a line.
///
/// # Errors
/// A quote that is not closed.
pub fn split(line: &str) -> Result<Vec<Word>, Unclosed> {
    let (mut words, last, open) = scan(line);
    if let Some(quote) = open {
        return Err(Unclosed(quote));
    }
    words.extend(last.map(|(_, word)| word.finish()));
    Ok(words)
}

/// Returns the word that the line ends in; it is empty behind a space.
pub fn unfinished(line: &str) -> Unfinished {
    let (before, last, _) = scan(line);
    let (start, text) = last.map_or((line.len(), String::new()), |(start, word)| (start, word.text));
    Unfinished { before: before.into_iter().map(|word| word.text).collect(), start, text }
}

/// Returns a word in a form that is one word of a line.
pub fn quoted(word: &str) -> String {
    let mut quoted = String::with_capacity(word.len());
    for (at, letter) in word.char_indices() {
        let plain = letter.is_alphanumeric() || "/._-+,:@%=~^".contains(letter);
        if !plain || at == 0 && letter == '#' {
            quoted.push('\\');
        }
        quoted.push(letter);
    }
    quoted
}

/// A word that is being read.
#[derive(Default)]
struct Draft {
    text: String,
    pattern: String,
    is_pattern: bool,
}

impl Draft {
    fn push(&mut self, letter: char, quoted: bool) {
        self.text.push(letter);
        if quoted {
            self.pattern.push('\\');
        }
        self.pattern.push(letter);
        self.is_pattern |= !quoted && is_special(letter);
    }

    fn finish(self) -> Word {
        Word { text: self.text, pattern: self.is_pattern.then_some(self.pattern) }
    }
}

type Scanned = (Vec<Word>, Option<(usize, Draft)>, Option<char>);

fn scan(line: &str) -> Scanned {
    let mut words = Vec::new();
    let mut word: Option<(usize, Draft)> = None;
    let mut quote = None;
    let mut letters = line.char_indices();
    while let Some((at, letter)) = letters.next() {
        if quote.is_none() && letter.is_whitespace() {
            words.extend(word.take().map(|(_, word)| word.finish()));
            continue;
        }
        if quote.is_none() && letter == '#' && word.is_none() {
            break;
        }
        let text = &mut word.get_or_insert_with(|| (at, Draft::default())).1;
        match (quote, letter) {
            (Some(open), letter) if letter == open => quote = None,
            (None, '\'' | '"') => quote = Some(letter),
            (None | Some('"'), '\\') => match letters.next() {
                Some((_, next)) => text.push(next, true),
                None => quote = Some('\\'),
            },
            (quote, letter) => text.push(letter, quote.is_some()),
        }
    }
    (words, word, quote)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoting_is_that_of_sh() {
        let words = |line: &str| split(line).unwrap().into_iter().map(|word| word.text).collect::<Vec<_>>();
        assert_eq!(words("  ls  -l\ta "), ["ls", "-l", "a"]);
        assert_eq!(words(r#"rm 'a b' "c d" e\ f"#), ["rm", "a b", "c d", "e f"]);
        assert_eq!(words(r#"x "a\"b" 'c\d'"#), ["x", "a\"b", r"c\d"]);
        assert_eq!(words("a ''"), ["a", ""]);
        assert_eq!(words("a # b"), ["a"]);
        assert_eq!(words("a#b"), ["a#b"]);
        assert!(words("").is_empty() && words("# nothing").is_empty());
        assert_eq!(split("a 'b"), Err(Unclosed('\'')));
        assert_eq!(split(r"a\"), Err(Unclosed('\\')));
    }

    #[test]
    fn quoting_takes_the_meaning_of_patterns() {
        let patterns = |line: &str| {
            let words = split(line).unwrap().into_iter();
            words.map(|word| word.pattern.unwrap_or_else(|| "-".to_owned())).collect::<Vec<_>>()
        };
        assert_eq!(patterns(r#"a* '*' "?" \[x] b"#), ["a*", "-", "-", "-", "-"]);
        assert_eq!(patterns(r#"'a b'* "?"? [a\]]"#), [r"\a\ \b*", r"\??", r"[a\]]"]);
    }

    #[test]
    fn the_last_word_is_found() {
        let last = |line: &str| {
            let found = unfinished(line);
            (found.before.len(), found.start, found.text)
        };
        assert_eq!(last("ls a"), (1, 3, "a".to_owned()));
        assert_eq!(last("ls "), (1, 3, String::new()));
        assert_eq!(last(r"ls a\ b"), (1, 3, "a b".to_owned()));
        assert_eq!(last("ls 'a b"), (1, 3, "a b".to_owned()));
        for word in ["a b", "it's", "#x", "grün", r"a\b", "x*?"] {
            let plain = Word { text: word.to_owned(), pattern: None };
            assert_eq!(split(&quoted(word)).unwrap(), [plain], "{word}");
        }
    }
}
