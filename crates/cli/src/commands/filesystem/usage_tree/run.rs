//! A run as a file: exported, and read again to be compared with another one.
//!
//! Owns [`Run`], [`write_run`] and the format, which docs/space.md describes. It is a flat list,
//! since readers of JSON bound how deep objects may be inside one another.

use super::tally::{DEEPEST, Entry, Tally};
use crate::output::json_bytes;
use crate::time;
use serde_json::{Map, Value, json};
use std::io::{self, Write};

/// The format, and its version.
const FORMAT: &str = "papilio-usage-tree-1";

/// Where a run comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The seed of the random numbers; `None` if every extent was looked up.
    pub seed: Option<u64>,
    /// The image or path, as the user named it.
    pub source: Vec<u8>,
    /// The UUID of the file system.
    pub fsid: String,
    /// When it was taken, as in RFC 3339.
    pub time: String,
}

/// A run that was exported.
#[derive(Debug)]
pub struct Run {
    /// Where it comes from.
    pub origin: Origin,
    /// Its weights.
    pub tally: Tally,
}

/// Writes a run, an entry a line.
///
/// # Errors
/// Those of `out`.
pub fn write_run(out: &mut dyn Write, origin: &Origin, tally: &Tally) -> io::Result<()> {
    let mut head = Map::new();
    head.insert("format".into(), FORMAT.into());
    json_bytes(&mut head, "source", &origin.source);
    let beside = |weight: u64| {
        let (bytes, error) = tally.bytes(weight);
        json!({ "weight": weight, "bytes": bytes, "error": error })
    };
    let facts = json!({
        "fsid": origin.fsid,
        "time": origin.time,
        "exact": tally.exact,
        "samples": if tally.exact { Value::Null } else { tally.all.into() },
        "seed": origin.seed,
        "data": tally.data,
        "metadata": tally.metadata,
        "unreachable": beside(tally.unreachable),
        "unread": beside(tally.unread),
    });
    if let Value::Object(facts) = facts {
        head.extend(facts);
    }
    let text = Value::Object(head).to_string();
    let open = text.strip_suffix('}').unwrap_or(&text);
    write!(out, "{open},\n\"entries\":[")?;
    let mut separator = "\n";
    let mut pending: Vec<(Vec<u8>, &Entry)> = vec![(b"/".to_vec(), &tally.root)];
    while let Some((path, entry)) = pending.pop() {
        let (bytes, error) = tally.bytes(entry.weight);
        let mut line = Map::new();
        json_bytes(&mut line, "path", &path);
        line.insert("weight".into(), entry.weight.into());
        line.insert("bytes".into(), bytes.into());
        line.insert("error".into(), error.into());
        write!(out, "{separator}{}", Value::Object(line))?;
        separator = ",\n";
        let above = if path == b"/" { &[][..] } else { &path[..] };
        let below = entry.below.iter().rev();
        pending.extend(below.map(|(name, entry)| ([above, b"/", name].concat(), entry)));
    }
    out.write_all(b"\n]}\n")
}

impl Run {
    /// Reads a run.
    ///
    /// # Errors
    /// The text is no run of this version; the message says why.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let all: Value = serde_json::from_slice(text).map_err(|error| format!("not JSON: {error}"))?;
        match all["format"].as_str() {
            Some(FORMAT) => {}
            Some(other) => return Err(format!("the format is {other:?}, not {FORMAT:?}")),
            None => return Err("not a run of papilio usage --tree --export".to_owned()),
        }
        let number = |name: &str| {
            let found = all[name].as_u64();
            found.ok_or_else(|| format!("the field {name} is no number of bytes or samples"))
        };
        let text = |name: &str| all[name].as_str().unwrap_or_default().to_owned();
        let exact = all["exact"].as_bool().ok_or("the field exact is neither true nor false")?;
        let unreachable = all["unreachable"]["weight"].as_u64();
        let unreachable = unreachable.ok_or("the field unreachable has no weight")?;
        // Runs of older versions do not have it.
        let unread = match &all["unread"] {
            Value::Null => 0,
            found => found["weight"].as_u64().ok_or("the field unread has no weight")?,
        };
        let mut tally = Tally {
            data: number("data")?,
            metadata: number("metadata")?,
            unreachable,
            unread,
            exact,
            ..Tally::default()
        };
        let entries = all["entries"].as_array().ok_or("the field entries is no list")?;
        for (number, entry) in entries.iter().enumerate() {
            let wrong = |what: &str| format!("entry {number}: {what}");
            let path = bytes_of(entry, "path").ok_or_else(|| wrong("it has no path"))?;
            let weight = entry["weight"].as_u64().ok_or_else(|| wrong("it has no weight"))?;
            if path.first() != Some(&b'/') || path.split(|byte| *byte == b'/').count() > DEEPEST + 1 {
                return Err(wrong("its path does not begin with /, or has too many names"));
            }
            tally.set(&path, weight);
        }
        let all_weights = tally.root.weight.checked_add(unreachable).and_then(|sum| sum.checked_add(unread));
        let all_weights = all_weights.ok_or("weights are too large")?;
        tally.all = all_weights;
        match all["samples"].as_u64() {
            Some(samples) if !exact && samples != all_weights => {
                return Err(format!("it has {samples} samples, but entries of {all_weights}"));
            }
            None if !exact => return Err("the number of samples is missing".to_owned()),
            _ => {}
        }
        check_weights(&tally.root)?;
        let source = bytes_of(&all, "source").unwrap_or_default();
        let (fsid, time) = (text("fsid"), text("time"));
        Ok(Self { origin: Origin { seed: all["seed"].as_u64(), source, fsid, time }, tally })
    }
}

/// Returns the time of now, as in RFC 3339.
pub fn time_of_now() -> String {
    time::rfc3339(papilio::Timespec { seconds: time::now(), nanoseconds: 0 })
}

/// Verifies that no directory has less than its entries.
fn check_weights(root: &Entry) -> Result<(), String> {
    let mut pending = vec![root];
    while let Some(entry) = pending.pop() {
        let below = entry.below.values().try_fold(0_u64, |sum, entry| sum.checked_add(entry.weight));
        if below.is_none_or(|below| below > entry.weight) {
            return Err(format!("a directory has the weight {}, its entries more", entry.weight));
        }
        pending.extend(entry.below.values());
    }
    Ok(())
}

/// Returns a byte string that [`json_bytes`] wrote.
fn bytes_of(object: &Value, field: &str) -> Option<Vec<u8>> {
    let Some(hex) = object[format!("{field}_hex")].as_str() else {
        return Some(object[field].as_str()?.as_bytes().to_vec());
    };
    let digits = hex.as_bytes().chunks(2);
    digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run() -> Run {
        let mut tally = Tally { data: 4000, metadata: 16384, ..Tally::default() };
        for (path, weight) in [(&b"/a/x\n\"y"[..], 3), (b"/a/\xff\xfe", 2), (b"/<b>", 4)] {
            tally.add(Some(path), weight);
        }
        tally.add(None, 1);
        let (fsid, time) = ("id".into(), "then".into());
        let origin = Origin { seed: Some(u64::MAX), source: b"an image".to_vec(), fsid, time };
        Run { origin, tally }
    }

    fn text(run: &Run) -> String {
        let mut text = Vec::new();
        write_run(&mut text, &run.origin, &run.tally).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn a_run_is_read_as_it_was_written() {
        let written = text(&run());
        let read = Run::parse(written.as_bytes()).unwrap();
        assert_eq!(text(&read), written);
        assert_eq!((read.tally.all, read.tally.unreachable, read.origin.seed), (10, 1, Some(u64::MAX)));
        let name = read.tally.root.at(&[b"a".to_vec(), b"\xff\xfe".to_vec()]).unwrap();
        assert_eq!(name.weight, 2);
        let as_json: Value = serde_json::from_str(&written).unwrap();
        assert_eq!((&as_json["samples"], &as_json["entries"][0]["bytes"]), (&json!(10), &json!(3600)));
        let mut exact = run();
        exact.tally.exact = true;
        exact.origin.seed = None;
        let read = Run::parse(text(&exact).as_bytes()).unwrap();
        assert!(read.tally.exact && read.origin.seed.is_none());
    }

    #[test]
    fn other_files_are_refused() {
        let good = text(&run());
        for (from, to, part) in [
            ("", "x", "not JSON"),
            ("tree-1", "tree-9", "the format is"),
            ("\"format\"", "\"f\"", "not a run"),
            ("\"exact\":false", "\"exact\":1", "exact"),
            ("\"data\":4000", "\"data\":-1", "data"),
            ("\"samples\":10", "\"samples\":11", "11 samples"),
            ("\"samples\":10", "\"s\":11", "samples is missing"),
            ("\"path\":\"/<b>\"", "\"path\":\"b\"", "begin with /"),
            ("\"path\":\"/<b>\"", "\"p\":\"/b\"", "no path"),
            ("\"path\":\"/\",\"weight\":9", "\"path\":\"/\",\"weight\":18446744073709551615", "too large"),
            ("\"entries\":[", "\"entries\":3,\"e\":[", "no list"),
            ("\"weight\":4", "\"weight\":\"4\"", "no weight"),
        ] {
            let bad = if from.is_empty() { to.to_owned() } else { good.replacen(from, to, 1) };
            assert!(bad != good, "{from}");
            let error = Run::parse(bad.as_bytes()).unwrap_err();
            assert!(error.contains(part), "{from}: {error}");
        }
        let heavy = good.replacen("\"path\":\"/a\",\"weight\":5", "\"path\":\"/a\",\"weight\":4", 1);
        assert!(heavy != good, "{good}");
        assert!(Run::parse(heavy.as_bytes()).unwrap_err().contains("its entries more"));
    }
}
