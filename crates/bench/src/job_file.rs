//! fio job files: parsing, editing key by key, and writing them out.
//!
//! Owns [`JobFile`]. Sections and keys keep their order; comments are dropped. Only the sizes and
//! times that scaling needs are interpreted.

use anyhow::{Context, bail};
use std::fmt;

/// A job file in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobFile {
    sections: Vec<Section>,
}

/// A section: `[global]`, or a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Section {
    name: String,
    /// Keys and values in order; a key without `=` has no value.
    entries: Vec<(String, Option<String>)>,
}

/// Name of the section whose keys apply to all jobs after it.
const GLOBAL: &str = "global";

impl JobFile {
    /// Parses the text of a job file.
    ///
    /// # Errors
    /// A key precedes the first section, or the file has no job.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let mut sections: Vec<Section> = Vec::new();
        for line in text.lines().map(str::trim) {
            if line.is_empty() || line.starts_with([';', '#']) {
                continue;
            }
            if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                sections.push(Section { name: name.to_owned(), entries: Vec::new() });
                continue;
            }
            let section = sections
                .last_mut()
                .with_context(|| format!("job file: '{line}' precedes the first [section]"))?;
            section.entries.push(match line.split_once('=') {
                Some((key, value)) => (key.trim().to_owned(), Some(value.trim().to_owned())),
                None => (line.to_owned(), None),
            });
        }
        if !sections.iter().any(|section| section.name != GLOBAL) {
            bail!("job file has no job section");
        }
        Ok(Self { sections })
    }

    /// Returns the names of the jobs, in order.
    pub fn jobs(&self) -> impl Iterator<Item = &str> {
        self.sections.iter().map(|section| section.name.as_str()).filter(|name| *name != GLOBAL)
    }

    /// Returns the last value of a key in any section.
    pub fn value(&self, key: &str) -> Option<&str> {
        self.sections.iter().rev().find_map(|section| section.value(key))
    }

    /// Returns whether any section has the key, with or without a value.
    pub fn has(&self, key: &str) -> bool {
        self.sections.iter().any(|section| section.entries.iter().any(|(name, _)| name == key))
    }

    /// Sets every occurrence of a key; appends the key to the first section if it has none.
    pub fn set(&mut self, key: &str, value: impl fmt::Display) {
        let value = Some(value.to_string());
        let mut found = false;
        for (name, old) in self.sections.iter_mut().flat_map(|section| &mut section.entries) {
            if name == key {
                old.clone_from(&value);
                found = true;
            }
        }
        if let (false, Some(first)) = (found, self.sections.first_mut()) {
            first.entries.push((key.to_owned(), value));
        }
    }

    /// Appends a key without a value to the first section unless some section has it.
    pub fn set_flag(&mut self, key: &str) {
        if let (false, Some(first)) = (self.has(key), self.sections.first_mut()) {
            first.entries.push((key.to_owned(), None));
        }
    }

    /// Removes a key from all sections.
    pub fn remove(&mut self, key: &str) {
        for section in &mut self.sections {
            section.entries.retain(|(name, _)| name != key);
        }
    }

    /// Replaces each value of a key with the result of `change`.
    ///
    /// # Errors
    /// `change` fails.
    pub fn change(
        &mut self,
        key: &str,
        mut change: impl FnMut(&str) -> anyhow::Result<String>,
    ) -> anyhow::Result<()> {
        for (name, value) in self.sections.iter_mut().flat_map(|section| &mut section.entries) {
            if let (true, Some(value)) = (name == key, value) {
                *value = change(value).with_context(|| format!("{key}={value}"))?;
            }
        }
        Ok(())
    }

    /// Returns the keys of one job for editing; `None` if no job has that name.
    pub fn job_mut(&mut self, name: &str) -> Option<JobKeys<'_>> {
        self.sections.iter_mut().find(|section| section.name == name).map(JobKeys)
    }

    /// Removes all jobs except one; keeps the global section.
    pub fn keep_job(&mut self, name: &str) {
        self.sections.retain(|section| section.name == GLOBAL || section.name == name);
    }
}

/// The keys of one job.
#[derive(Debug)]
pub struct JobKeys<'a>(&'a mut Section);

impl JobKeys<'_> {
    /// Sets a key in this job only.
    pub fn set(&mut self, key: &str, value: impl fmt::Display) {
        let value = Some(value.to_string());
        match self.0.entries.iter_mut().find(|(name, _)| name == key) {
            Some((_, old)) => *old = value,
            None => self.0.entries.push((key.to_owned(), value)),
        }
    }
}

impl Section {
    fn value(&self, key: &str) -> Option<&str> {
        self.entries.iter().rev().find(|(name, _)| name == key).and_then(|(_, value)| value.as_deref())
    }
}

impl fmt::Display for JobFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, section) in self.sections.iter().enumerate() {
            let gap = if number == 0 { "" } else { "\n" };
            writeln!(f, "{gap}[{}]", section.name)?;
            for (key, value) in &section.entries {
                match value {
                    Some(value) => writeln!(f, "{key}={value}")?,
                    None => writeln!(f, "{key}")?,
                }
            }
        }
        Ok(())
    }
}

/// Parses a size in fio's syntax into bytes: `4k`, `128M`, `8G`; suffixes are powers of 1024.
///
/// # Errors
/// The text is not such a size, or it exceeds `u64`.
pub fn parse_size(text: &str) -> anyhow::Result<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, suffix) = text.split_at(digits);
    let shift = match suffix.to_ascii_lowercase().as_str() {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => bail!("'{text}' is not a size"),
    };
    let number: u64 = number.parse().with_context(|| format!("'{text}' is not a size"))?;
    number.checked_mul(1 << shift).with_context(|| format!("'{text}' is too large"))
}

/// Parses a time in a job file into seconds.
///
/// # Errors
/// The text is not a number with an optional `s` or `ms`.
pub fn parse_seconds(text: &str) -> anyhow::Result<f64> {
    let (number, unit) = match text.strip_suffix("ms") {
        Some(number) => (number, 0.001),
        None => (text.strip_suffix('s').unwrap_or(text), 1.0),
    };
    let number: f64 = number.parse().with_context(|| format!("'{text}' is not a time"))?;
    Ok(number * unit)
}

/// Formats seconds in fio's syntax, rounded to the millisecond.
pub fn time(seconds: f64) -> String {
    format!("{}ms", (seconds * 1000.0).round().max(1.0) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "; a comment\n[global]\nrw=read\ntime_based\n\n# another\n[a]\nsize=8G\nrw = write\n[b]\n";

    #[test]
    fn parsing_and_writing_round_trips() {
        let file = JobFile::parse(TEXT).unwrap();
        assert_eq!(file.to_string(), "[global]\nrw=read\ntime_based\n\n[a]\nsize=8G\nrw=write\n\n[b]\n");
        assert_eq!(JobFile::parse(&file.to_string()).unwrap(), file);
        assert_eq!(file.jobs().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(file.value("rw"), Some("write"));
        assert!(file.has("time_based") && !file.has("thread"));
    }

    #[test]
    fn keys_are_edited() {
        let mut file = JobFile::parse(TEXT).unwrap();
        file.set("rw", "trim");
        file.set("bs", "4k");
        file.remove("time_based");
        file.set_flag("thread");
        file.set_flag("thread");
        file.job_mut("b").unwrap().set("size", "1G");
        assert!(file.job_mut("c").is_none());
        file.change("size", |size| Ok((parse_size(size)? / 2).to_string())).unwrap();
        assert_eq!(
            file.to_string(),
            "[global]\nrw=trim\nbs=4k\nthread\n\n[a]\nsize=4294967296\nrw=trim\n\n[b]\nsize=536870912\n"
        );
        file.keep_job("b");
        assert_eq!(file.jobs().collect::<Vec<_>>(), ["b"]);
        assert!(file.has("bs"));
    }

    #[test]
    fn malformed_input_is_an_error() {
        assert!(JobFile::parse("rw=read\n[a]\n").unwrap_err().to_string().contains("rw=read"));
        assert!(JobFile::parse("[global]\nrw=read\n").is_err());
        for size in ["", "k", "1x", "99999999999T"] {
            assert!(parse_size(size).is_err(), "{size}");
        }
    }

    #[test]
    fn sizes_and_times_are_parsed() {
        assert_eq!(parse_size("4k").unwrap(), 4096);
        assert_eq!(parse_size("8G").unwrap(), 8 << 30);
        assert_eq!(parse_size("128M").unwrap(), 128 << 20);
        assert!((parse_seconds("300").unwrap() - 300.0).abs() < 1e-9);
        assert!((parse_seconds("250ms").unwrap() - 0.25).abs() < 1e-9);
        assert_eq!(time(1.5), "1500ms");
        assert_eq!(time(0.0), "1ms");
    }
}
