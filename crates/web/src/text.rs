//! Names and texts in links, headers, HTML and XML.
//!
//! A name in a file system is any bytes without `/` and NUL. It is percent-encoded byte for byte
//! where it identifies something, and decoded with replacement characters where people read it.
//!
//! **Invariant**: no function here returns control characters, whatever it is given, so that no
//! name can end a header, a tag or an attribute.

use std::fmt::Write;

/// Returns a text for the content or an attribute of HTML and XML.
pub(crate) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            letter if is_hidden(letter) => escaped.push('\u{fffd}'),
            letter => escaped.push(letter),
        }
    }
    escaped
}

/// Returns a name as people read it, for HTML and XML.
pub(crate) fn shown(name: &[u8]) -> String {
    escaped(&String::from_utf8_lossy(name))
}

/// Whether a letter has no shape of its own: it could hide or reorder those around it, or is not
/// allowed in XML.
fn is_hidden(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        || matches!(letter, '\u{fffe}' | '\u{ffff}')
}

/// Percent-encodes a name for a path or a query: all bytes but the unreserved ones of RFC 3986.
pub(crate) fn percent(name: &[u8]) -> String {
    let mut encoded = String::with_capacity(name.len());
    for &byte in name {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

/// Decodes `%XX`. `None` if an escape is incomplete or not of hexadecimal digits.
pub(crate) fn percent_decoded(text: &[u8]) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        if byte == b'%' {
            let digits = after.first_chunk::<2>()?;
            let value = |digit: u8| char::from(digit).to_digit(16);
            decoded.push((value(digits[0])? * 16 + value(digits[1])?) as u8);
            rest = &after[2..];
        } else {
            decoded.push(byte);
            rest = after;
        }
    }
    Some(decoded)
}

/// Returns the path of a resource from the root of the server.
pub(crate) fn href(names: &[Vec<u8>], is_directory: bool) -> String {
    let mut path = String::new();
    for name in names {
        path.push('/');
        path.push_str(&percent(name));
    }
    if is_directory || names.is_empty() {
        path.push('/');
    }
    path
}

/// Returns the value of `Content-Disposition`. The plain name is for old clients, the extended one
/// (RFC 5987, RFC 6266) for all others.
pub(crate) fn disposition(kind: &str, name: &[u8]) -> String {
    let lossy = String::from_utf8_lossy(name);
    let is_plain = |letter: char| letter.is_ascii_graphic() && !"\"\\%".contains(letter) || letter == ' ';
    let plain: String = lossy.chars().map(|letter| if is_plain(letter) { letter } else { '_' }).collect();
    let visible: String =
        lossy.chars().map(|letter| if is_hidden(letter) { '\u{fffd}' } else { letter }).collect();
    format!("{kind}; filename=\"{plain}\"; filename*=UTF-8''{}", percent(visible.as_bytes()))
}

/// Returns the media type that the end of a name tells.
pub(crate) fn media_type(name: &[u8]) -> &'static str {
    let end = name.rsplit(|byte| *byte == b'.').next().unwrap_or_default().to_ascii_lowercase();
    let has_end = name.iter().skip(1).any(|byte| *byte == b'.');
    let Some(end) = std::str::from_utf8(&end).ok().filter(|_| has_end) else {
        return "application/octet-stream";
    };
    match end {
        "txt" | "text" | "log" | "md" | "rs" | "c" | "h" | "cpp" | "py" | "sh" | "toml" | "yml" | "yaml"
        | "ini" | "conf" | "cfg" | "diff" | "patch" => "text/plain; charset=utf-8",
        "html" | "htm" => "text/html; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "csv" => "text/csv; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "xml" => "application/xml",
        "json" => "application/json",
        "pdf" => "application/pdf",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "avif" => "image/avif",
        "ico" => "image/x-icon",
        "bmp" => "image/bmp",
        "mp3" => "audio/mpeg",
        "ogg" | "oga" => "audio/ogg",
        "flac" => "audio/flac",
        "wav" => "audio/wav",
        "mp4" | "m4v" => "video/mp4",
        "webm" => "video/webm",
        "mkv" => "video/x-matroska",
        "mov" => "video/quicktime",
        "zip" => "application/zip",
        "gz" | "tgz" => "application/gzip",
        "xz" => "application/x-xz",
        "zst" => "application/zstd",
        "bz2" => "application/x-bzip2",
        "tar" => "application/x-tar",
        "7z" => "application/x-7z-compressed",
        "doc" => "application/msword",
        "docx" => "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        "xlsx" => "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        "pptx" => "application/vnd.openxmlformats-officedocument.presentationml.presentation",
        "odt" => "application/vnd.oasis.opendocument.text",
        "ods" => "application/vnd.oasis.opendocument.spreadsheet",
        "epub" => "application/epub+zip",
        "wasm" => "application/wasm",
        "woff2" => "font/woff2",
        _ => "application/octet-stream",
    }
}

/// Returns a number of bytes in words.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// Compares two secrets in a time that tells nothing about where they differ.
pub(crate) fn is_same_secret(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    std::hint::black_box(one.iter().zip(other).fold(0, |differs, (one, other)| differs | (one ^ other))) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_their_place() {
        assert_eq!(shown(b"<b>\"'&\r\n\xff"), "&lt;b&gt;&quot;&#39;&amp;\u{fffd}\u{fffd}\u{fffd}");
        assert_eq!(escaped("a\u{202e}b\u{0}"), "a\u{fffd}b\u{fffd}");
        assert_eq!(percent("ä /?#%\n".as_bytes()), "%C3%A4%20%2F%3F%23%25%0A");
        assert_eq!(href(&[b"a b".to_vec(), b"c".to_vec()], true), "/a%20b/c/");
        assert_eq!(href(&[], false), "/");
        let header = disposition("attachment", b"a\"\r\nSet-Cookie: x\xff\x80.txt");
        assert!(header.bytes().all(|byte| (b' '..0x7f).contains(&byte)), "{header}");
        assert_eq!(disposition("inline", "ä.txt".as_bytes()).split("''").nth(1), Some("%C3%A4.txt"));
    }

    #[test]
    fn escapes_are_decoded_or_refused() {
        let mut all: Vec<u8> = (0..=255).collect();
        assert_eq!(percent_decoded(percent(&all).as_bytes()), Some(all.clone()));
        all.retain(|byte| *byte != b'%');
        assert_eq!(percent_decoded(&all), Some(all));
        for bad in ["%", "%1", "%zz", "a%2", "%+1", "%1g"] {
            assert_eq!(percent_decoded(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn types_and_sizes_are_told() {
        assert_eq!(media_type(b"a.TXT"), "text/plain; charset=utf-8");
        assert_eq!(media_type(b"archive.tar.gz"), "application/gzip");
        for plain in [&b"txt"[..], b".txt", b"", b"x.", b"x.\xff"] {
            assert_eq!(media_type(plain), "application/octet-stream");
        }
        assert_eq!(
            [0, 1023, 1024, 1 << 30, u64::MAX].map(size),
            ["0 B", "1023 B", "1.0 KiB", "1.0 GiB", "16.0 EiB"]
        );
        assert!(is_same_secret(b"abc", b"abc"));
        assert!(!is_same_secret(b"abc", b"abd") && !is_same_secret(b"abc", b"ab"));
    }
}
