//! `papilio getfattr`.
//!
//! Owns the text formats of values in getfattr(1) and setfattr(1): quoted text, hexadecimal,
//! base64.

use crate::context::Context;
use crate::operands::for_each_operand;
use crate::output::{JsonArray, Output, json_bytes};
use papilio::{Inode, PathError, Xattr};
use serde_json::{Map, Value};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// Show extended attributes, in the format of getfattr(1)
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The files
    #[arg(value_name = "IMAGE:/PATH", required = true, value_hint = clap::ValueHint::AnyPath)]
    paths: Vec<OsString>,
    /// Show only this attribute
    #[arg(short, long)]
    name: Option<OsString>,
    /// Show values
    #[arg(short, long)]
    dump: bool,
    /// Show attributes of all namespaces, not only of user.
    #[arg(short, long)]
    all: bool,
    /// The format of values; without it, text for values that are text, and base64 for others
    #[arg(short, long)]
    encoding: Option<Encoding>,
    /// Print only the value, unchanged
    #[arg(long, requires = "name")]
    only_values: bool,
    /// Show the attributes of symbolic links themselves
    #[arg(long)]
    no_dereference: bool,
    /// Print one JSON array, with values in base64
    #[arg(long, conflicts_with_all = ["only_values", "encoding"])]
    json: bool,
}

/// The format of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Encoding {
    /// Quoted text, with \ooo for other bytes
    Text,
    /// 0x and hexadecimal digits
    Hex,
    /// 0s and base64 digits
    Base64,
}

impl Args {
    /// Shows the attributes.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        context.confine_to_operands(&self.paths);
        let mut output = Output::new()?;
        let mut array = self.json.then(|| JsonArray::begin(&mut output)).transpose()?;
        for_each_operand(context, &self.paths, |path| {
            let inode = context.inode(&path, !self.no_dereference)?;
            let xattrs = self.xattrs(&inode).map_err(|error| context.at(&path, &error))?;
            if xattrs.is_empty() && self.name.is_some() {
                anyhow::bail!("{path}: {}", PathError::NoAttribute);
            }
            if let Some(array) = &mut array {
                let mut object = Map::new();
                json_bytes(&mut object, "path", &path.to_bytes());
                let list = xattrs.iter().map(|xattr| {
                    let mut object = Map::new();
                    json_bytes(&mut object, "name", &xattr.name);
                    object.insert("base64".into(), base64(&xattr.value).into());
                    Value::Object(object)
                });
                object.insert("xattrs".into(), list.collect());
                return Ok(array.push(&mut output, &Value::Object(object))?);
            }
            if xattrs.is_empty() {
                return Ok(());
            }
            if self.only_values {
                return Ok(output.bytes(&xattrs[0].value)?);
            }
            output.bytes(b"# file: ")?;
            output.name(&path.to_bytes())?;
            output.bytes(b"\n")?;
            for xattr in &xattrs {
                output.name(&xattr.name)?;
                if self.dump || self.name.is_some() {
                    output.text(format_args!("={}", encode(&xattr.value, self.encoding)))?;
                }
                output.bytes(b"\n")?;
            }
            Ok(output.bytes(b"\n")?)
        })?;
        if let Some(array) = array {
            array.end(&mut output)?;
        }
        Ok(output.finish()?)
    }

    fn xattrs(&self, inode: &Inode) -> papilio::Result<Vec<Xattr>> {
        if let Some(name) = &self.name {
            let name = name.as_bytes().to_vec();
            return Ok(inode.xattr(&name)?.map(|value| Xattr { name, value }).into_iter().collect());
        }
        let mut xattrs = inode.xattrs()?;
        xattrs.retain(|xattr| self.all || xattr.name.starts_with(b"user."));
        xattrs.sort();
        Ok(xattrs)
    }
}

fn encode(value: &[u8], encoding: Option<Encoding>) -> String {
    let is_text = std::str::from_utf8(value).is_ok_and(|text| !text.chars().any(char::is_control));
    match encoding {
        Some(Encoding::Hex) => format!("0x{}", hex(value)),
        Some(Encoding::Text) => quoted(value),
        None if is_text => quoted(value),
        Some(Encoding::Base64) | None => format!("0s{}", base64(value)),
    }
}

fn quoted(value: &[u8]) -> String {
    let mut text = String::from("\"");
    for chunk in value.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '"' | '\\' => text.extend(['\\', c]),
                c if c.is_control() => {
                    let mut bytes = [0; 4];
                    octal(&mut text, c.encode_utf8(&mut bytes).as_bytes());
                }
                c => text.push(c),
            }
        }
        octal(&mut text, chunk.invalid());
    }
    text.push('"');
    text
}

fn octal(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        text.push_str(&format!("\\{byte:03o}"));
    }
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group =
            chunk.iter().fold(0u32, |group, &byte| group << 8 | u32::from(byte)) << (8 * (3 - chunk.len()));
        for index in 0..4 {
            let digit = (group >> (18 - 6 * index)) as usize & 63;
            text.push(if index <= chunk.len() { char::from(ALPHABET[digit]) } else { '=' });
        }
    }
    text
}

/// Returns bytes as hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the bytes that an even number of hexadecimal digits stand for.
pub(super) fn from_hex(digits: &[u8]) -> Option<Vec<u8>> {
    let digit = |digit: &u8| char::from(*digit).to_digit(16).map(|digit| digit as u8);
    let digits: Vec<u8> = digits.iter().map(digit).collect::<Option<_>>()?;
    let bytes = || digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect();
    digits.len().is_multiple_of(2).then(bytes)
}

/// Parses a value like setfattr(1).
///
/// # Errors
/// A message that says what is wrong.
pub fn decode(text: &[u8]) -> Result<Vec<u8>, String> {
    if let Some(digits) = text.strip_prefix(b"0x").or(text.strip_prefix(b"0X")) {
        let bytes = from_hex(digits);
        return bytes.ok_or_else(|| "0x must be followed by an even number of hexadecimal digits".to_owned());
    }
    if let Some(text) = text.strip_prefix(b"0s").or(text.strip_prefix(b"0S")) {
        return decode_base64(text).ok_or_else(|| "0s must be followed by base64".to_owned());
    }
    let quoted = text.strip_prefix(b"\"").and_then(|text| text.strip_suffix(b"\""));
    let Some(quoted) = quoted else { return Ok(text.to_vec()) };
    let mut out = Vec::new();
    let mut rest = quoted;
    while let Some((&byte, after)) = rest.split_first() {
        let (decoded, after) = match (byte, after) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..]) => {
                ((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'), after)
            }
            (b'\\', [escaped, after @ ..]) => (*escaped, after),
            _ => (byte, after),
        };
        out.push(decoded);
        rest = after;
    }
    Ok(out)
}

fn decode_base64(text: &[u8]) -> Option<Vec<u8>> {
    let digits = text.strip_suffix(b"==").or(text.strip_suffix(b"=")).unwrap_or(text);
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let mut out = Vec::with_capacity(digits.len() * 3 / 4);
    for chunk in digits.chunks(4) {
        let group = chunk.iter().try_fold(0u32, |group, byte| {
            let digit = ALPHABET.iter().position(|known| known == byte)?;
            Some(group << 6 | digit as u32)
        })?;
        let group = group << (6 * (4 - chunk.len()));
        out.extend_from_slice(&group.to_be_bytes()[1..chunk.len()]);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_parsed_in_all_formats() {
        let value = b"a \"b\" \\ \xc3\xa9";
        assert_eq!(encode(value, None), "\"a \\\"b\\\" \\\\ \u{e9}\"");
        assert_eq!(encode(b"\0\xff", None), "0sAP8=");
        assert_eq!(encode(b"\0\xff", Some(Encoding::Hex)), "0x00ff");
        assert_eq!(encode(b"\0\xff\n", Some(Encoding::Text)), "\"\\000\\377\\012\"");
        for value in [&b""[..], b"f", b"fo", b"foo", b"foob", b"\0\x01\xfe\xff", value] {
            for encoding in [None, Some(Encoding::Text), Some(Encoding::Hex), Some(Encoding::Base64)] {
                let text = encode(value, encoding);
                assert_eq!(decode(text.as_bytes()).unwrap(), value, "{text}");
            }
        }
        assert_eq!(decode(b"plain \\text").unwrap(), b"plain \\text");
        for wrong in [&b"0x1"[..], b"0xzz", b"0sA", b"0s$$$$", b"0sA==="] {
            assert!(decode(wrong).is_err(), "{wrong:?}");
        }
    }
}
