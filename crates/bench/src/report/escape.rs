//! Escaping of text for HTML and Markdown.

/// Escapes text for HTML and SVG, in elements and in attributes.
pub(super) fn html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // HTML does not allow control characters.
            other if other.is_control() && other != '\n' => out.push('\u{fffd}'),
            other => out.push(other),
        }
    }
    out
}

/// Escapes text for Markdown, so that no character has a special meaning.
pub(super) fn markdown(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        if matches!(letter, '\\' | '`' | '*' | '_' | '<' | '>' | '|' | '[' | ']') {
            out.push('\\');
        }
        out.push(if letter.is_control() { ' ' } else { letter });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_characters_are_escaped() {
        assert_eq!(html("<a b=\"c\">&'\u{7}\n"), "&lt;a b=&quot;c&quot;&gt;&amp;&#39;\u{fffd}\n");
        assert_eq!(markdown("<a_b>|\n"), r"\<a\_b\>\| ");
    }
}
