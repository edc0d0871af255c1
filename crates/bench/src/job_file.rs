//! fio's job files: read, changed key by key, written again.
//!
//! Owns [`JobFile`]. Sections and keys keep their order; comments are dropped. What the keys mean, fio
//! knows; here are only the sizes and times that scaling needs.

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
    /// A key without `=` has no value.
    entries: Vec<(String, Option<String>)>,
}

/// The section whose keys hold for all jobs after it.
const GLOBAL: &str = "global";

impl JobFile {
    /// Reads the text of a job file.
    ///
    /// # Errors
    /// A key stands before any section, or there is no job.
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
            let section = sections.last_mut().with_context(|| format!("'{line}' before any [section]"))?;
            section.entries.push(match line.split_once('=') {
                Some((key, value)) => (key.trim().to_owned(), Some(value.trim().to_owned())),
                None => (line.to_owned(), None),
            });
        }
        if !sections.iter().any(|section| section.name != GLOBAL) {
            bail!("a job file without a job");
        }
        Ok(Self { sections })
    }

    /// The names of the jobs, in order.
    pub fn jobs(&self) -> impl Iterator<Item = &str> {
        self.sections.iter().map(|section| section.name.as_str()).filter(|name| *name != GLOBAL)
    }

    /// The value of a key, in whichever section it stands last.
    pub fn value(&self, key: &str) -> Option<&str> {
        self.sections.iter().rev().find_map(|section| section.value(key))
    }

    /// Whether a key stands anywhere, with a value or without.
    pub fn has(&self, key: &str) -> bool {
        self.sections.iter().any(|section| section.entries.iter().any(|(name, _)| name == key))
    }

    /// Gives a key a new value wherever it stands; where it stands nowhere, at the end of the first section.
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

    /// Puts a key without a value into the first section, unless it is there.
    pub fn set_flag(&mut self, key: &str) {
        if let (false, Some(first)) = (self.has(key), self.sections.first_mut()) {
            first.entries.push((key.to_owned(), None));
        }
    }

    /// Takes a key out of all sections.
    pub fn remove(&mut self, key: &str) {
        for section in &mut self.sections {
            section.entries.retain(|(name, _)| name != key);
        }
    }

    /// Changes each value of a key.
    ///
    /// # Errors
    /// What `change` says of a value.
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

    /// Changes the keys of one job; `None` where there is no job of that name.
    pub fn job_mut(&mut self, name: &str) -> Option<JobKeys<'_>> {
        self.sections.iter_mut().find(|section| section.name == name).map(JobKeys)
    }

    /// Leaves only one job and what is global.
    pub fn keep_job(&mut self, name: &str) {
        self.sections.retain(|section| section.name == GLOBAL || section.name == name);
    }
}

/// The keys of one job.
#[derive(Debug)]
pub struct JobKeys<'a>(&'a mut Section);

impl JobKeys<'_> {
    /// Gives a key a value in this job alone.
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

/// A size as fio takes it, in bytes: `4k`, `128M`, `8G`; powers of 1024.
///
/// # Errors
/// Anything else.
pub fn parse_size(text: &str) -> anyhow::Result<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, suffix) = text.split_at(digits);
    let shift = match suffix.to_ascii_lowercase().as_str() {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => bail!("'{text}' is no size"),
    };
    let number: u64 = number.parse().with_context(|| format!("'{text}' is no size"))?;
    number.checked_mul(1 << shift).with_context(|| format!("'{text}' is too large"))
}

/// A time as the job files have it, in seconds.
///
/// # Errors
/// Anything but a number with an optional `s` or `ms`.
pub fn parse_seconds(text: &str) -> anyhow::Result<f64> {
    let (number, unit) = match text.strip_suffix("ms") {
        Some(number) => (number, 0.001),
        None => (text.strip_suffix('s').unwrap_or(text), 1.0),
    };
    let number: f64 = number.parse().with_context(|| format!("'{text}' is no time"))?;
    Ok(number * unit)
}

/// Seconds as fio takes them, to the millisecond.
pub fn time(seconds: f64) -> String {
    format!("{}ms", (seconds * 1000.0).round().max(1.0) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "; a comment\n[global]\nrw=read\ntime_based\n\n# another\n[a]\nsize=8G\nrw = write\n[b]\n";

    #[test]
    fn read_and_written_again() {
        let file = JobFile::parse(TEXT).unwrap();
        assert_eq!(file.to_string(), "[global]\nrw=read\ntime_based\n\n[a]\nsize=8G\nrw=write\n\n[b]\n");
        assert_eq!(JobFile::parse(&file.to_string()).unwrap(), file);
        assert_eq!(file.jobs().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(file.value("rw"), Some("write"));
        assert!(file.has("time_based") && !file.has("thread"));
    }

    #[test]
    fn keys_change() {
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
    fn what_is_wrong_is_said() {
        assert!(JobFile::parse("rw=read\n[a]\n").unwrap_err().to_string().contains("rw=read"));
        assert!(JobFile::parse("[global]\nrw=read\n").is_err());
        for size in ["", "k", "1x", "99999999999T"] {
            assert!(parse_size(size).is_err(), "{size}");
        }
    }

    #[test]
    fn sizes_and_times() {
        assert_eq!(parse_size("4k").unwrap(), 4096);
        assert_eq!(parse_size("8G").unwrap(), 8 << 30);
        assert_eq!(parse_size("128M").unwrap(), 128 << 20);
        assert!((parse_seconds("300").unwrap() - 300.0).abs() < 1e-9);
        assert!((parse_seconds("250ms").unwrap() - 0.25).abs() < 1e-9);
        assert_eq!(time(1.5), "1500ms");
        assert_eq!(time(0.0), "1ms");
    }
}
