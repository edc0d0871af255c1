//! The treemap as a page: one file that needs nothing else, and that reads nothing else.
//!
//! Owns [`page`]. Its policy allows the one script that it contains, by its hash, and no
//! connection. Without scripts the picture is there, but cannot be zoomed.

use super::drawing::{Drawing, escaped_markup};
use papilio::format::ChecksumType;

const SCRIPT: &str = include_str!("page.js");
const STYLE: &str = include_str!("page.css");

/// Returns the page.
pub fn page(drawing: &Drawing<'_>) -> String {
    let title = escaped_markup(drawing.title);
    let words = drawing.legend.iter().map(|(colour, words)| {
        let swatch =
            format!("<svg class=\"c{colour}\" viewBox=\"0 0 1 1\"><rect width=\"1\" height=\"1\"/></svg>");
        format!("<li>{swatch}{}</li>", escaped_markup(words))
    });
    let hash = base64(ChecksumType::Sha256.compute(SCRIPT.as_bytes()).as_bytes());
    let policy = format!(
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{hash}'; \
         base-uri 'none'; form-action 'none'"
    );
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{title}</title>\n<style>{}\n{STYLE}</style>\n</head>\n<body>\n<header>\n\
         <h1>{title}</h1>\n<p id=\"where\" aria-live=\"polite\">&nbsp;</p>\n\
         <ul>{}</ul>\n</header>\n<main>\n{}</main>\n\
         <footer>Click or Enter: zoom in. Escape: zoom out. Arrows: walk. Home: everything.\
         <noscript> Zooming needs scripts.</noscript></footer>\n\
         <script>{SCRIPT}</script>\n</body>\n</html>\n",
        drawing.style(),
        words.collect::<String>(),
        drawing.svg()
    )
}

/// Returns bytes in Base64, RFC 4648.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let at = |index: usize| u32::from(three.get(index).copied().unwrap_or_default());
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for digit in 0..4 {
            match digit <= three.len() {
                true => text.push(char::from(DIGITS[(bits >> (18 - 6 * digit) & 63) as usize])),
                false => text.push('='),
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_standard() {
        for (bytes, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }

    #[test]
    fn the_script_ends_where_the_page_ends_it() {
        assert!(!SCRIPT.contains("</") && !SCRIPT.contains("<!--") && !STYLE.contains('<'));
    }
}
