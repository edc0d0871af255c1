//! The words of a line.
//!
//! Owns [`split`] and [`unfinished`]. Quoting is that of sh(1): single quotes, double quotes and
//! backslashes. `#` at the start of a word begins a comment. There are no variables and patterns.

/// Why a line has no words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unclosed(pub char);

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
pub fn split(line: &str) -> Result<Vec<String>, Unclosed> {
    let (mut words, last, open) = scan(line);
    if let Some(quote) = open {
        return Err(Unclosed(quote));
    }
    words.extend(last.map(|(_, text)| text));
    Ok(words)
}

/// Returns the word that the line ends in; it is empty behind a space.
pub fn unfinished(line: &str) -> Unfinished {
    let (before, last, _) = scan(line);
    let (start, text) = last.unwrap_or((line.len(), String::new()));
    Unfinished { before, start, text }
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

type Scanned = (Vec<String>, Option<(usize, String)>, Option<char>);

fn scan(line: &str) -> Scanned {
    let mut words = Vec::new();
    let mut word: Option<(usize, String)> = None;
    let mut quote = None;
    let mut letters = line.char_indices();
    while let Some((at, letter)) = letters.next() {
        if quote.is_none() && letter.is_whitespace() {
            words.extend(word.take().map(|(_, text)| text));
            continue;
        }
        if quote.is_none() && letter == '#' && word.is_none() {
            break;
        }
        let text = &mut word.get_or_insert_with(|| (at, String::new())).1;
        match (quote, letter) {
            (Some(open), letter) if letter == open => quote = None,
            (None, '\'' | '"') => quote = Some(letter),
            (None | Some('"'), '\\') => match letters.next() {
                Some((_, next)) => text.push(next),
                None => quote = Some('\\'),
            },
            (_, letter) => text.push(letter),
        }
    }
    (words, word, quote)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoting_is_that_of_sh() {
        let words = |line: &str| split(line).unwrap();
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
            assert_eq!(split(&quoted(word)).unwrap(), [word], "{word}");
        }
    }
}
