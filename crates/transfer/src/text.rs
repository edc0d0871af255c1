//! The words of messages: escaped names, kinds of files, errors of the host.

use papilio_format::items::inode::FileKind;
use std::borrow::Cow;

/// Escapes control characters, invalid UTF-8 and backslashes, as `\n`, `\ooo` and `\\`.
pub fn escaped(name: &[u8]) -> Cow<'_, [u8]> {
    let clean = |text: &str| !text.chars().any(|c| c.is_control() || c == '\\');
    if std::str::from_utf8(name).is_ok_and(clean) {
        return Cow::Borrowed(name);
    }
    let mut out = Vec::with_capacity(name.len() + 8);
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\n' => out.extend(b"\\n"),
                '\t' => out.extend(b"\\t"),
                '\r' => out.extend(b"\\r"),
                '\\' => out.extend(b"\\\\"),
                c if c.is_control() => octal(&mut out, c.encode_utf8(&mut [0; 4]).as_bytes()),
                c => out.extend(c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        octal(&mut out, chunk.invalid());
    }
    Cow::Owned(out)
}

fn octal(out: &mut Vec<u8>, bytes: &[u8]) {
    for byte in bytes {
        out.extend(format!("\\{byte:03o}").as_bytes());
    }
}

/// Returns the name that stat(1) has for a kind.
pub fn kind_words(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "regular file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symbolic link",
        FileKind::CharacterDevice => "character special file",
        FileKind::BlockDevice => "block special file",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
    }
}

/// Returns the system's message for `error`, without its number.
pub fn system_text(error: &std::io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}
