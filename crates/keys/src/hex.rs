//! Bytes as hexadecimal text.

/// Returns the bytes in lower case.
pub fn text(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}

/// Returns the bytes of text in lower case.
pub fn bytes(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let pairs = text.as_bytes().chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return None;
    }
    pairs.map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
}

/// Returns an array of the bytes of text.
pub fn array<const N: usize>(text: &str) -> Option<[u8; N]> {
    bytes(text)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_gives_its_bytes_back() {
        assert_eq!(text(&[0, 0xa5, 0xff]), "00a5ff");
        assert_eq!(bytes("00a5ff"), Some(vec![0, 0xa5, 0xff]));
        for wrong in ["0", "0g", "A0", "é"] {
            assert_eq!(bytes(wrong), None, "{wrong}");
        }
    }
}
