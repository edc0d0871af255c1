//! Sizes in the format of btrfs-progs: `5.20MiB`, `5455872`, `5.46MB`.
//!
//! Owns [`UnitArgs`], the options that choose a unit, [`Units`], the chosen unit, and
//! [`parse_size`], which parses sizes like mkfs.btrfs(8).

use clap::Args;

/// The options that choose a unit; the last one wins.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct UnitArgs {
    /// Print sizes in bytes
    #[arg(short = 'b', long, overrides_with_all = ["human_readable", "human_si"])]
    raw: bool,
    /// Print sizes in a fitting unit, powers of 1024 (default)
    #[arg(short = 'h', long, overrides_with_all = ["raw", "human_si"])]
    human_readable: bool,
    /// Print sizes in a fitting unit, powers of 1000
    #[arg(short = 'H', id = "human_si", overrides_with_all = ["raw", "human_readable"])]
    human_si: bool,
    /// Use powers of 1024
    #[arg(long, conflicts_with = "si")]
    iec: bool,
    /// Use powers of 1000
    #[arg(long)]
    si: bool,
    /// Print sizes in KiB, or in kB with --si
    #[arg(short = 'k', long, conflicts_with_all = ["mbytes", "gbytes", "tbytes"])]
    kbytes: bool,
    /// Print sizes in MiB, or in MB with --si
    #[arg(short = 'm', long, conflicts_with_all = ["gbytes", "tbytes"])]
    mbytes: bool,
    /// Print sizes in GiB, or in GB with --si
    #[arg(short = 'g', long, conflicts_with = "tbytes")]
    gbytes: bool,
    /// Print sizes in TiB, or in TB with --si
    #[arg(short = 't', long)]
    tbytes: bool,
}

/// The unit of sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Units {
    /// 1000 or 1024.
    base: u64,
    /// The power of the base; `None` chooses one for each size.
    power: Option<u32>,
}

impl UnitArgs {
    /// Returns the chosen unit.
    pub fn resolve(self) -> Units {
        let powers = [self.raw, self.kbytes, self.mbytes, self.gbytes, self.tbytes];
        Units::chosen(self.si || self.human_si, powers)
    }
}

impl Units {
    /// A fitting unit for each size, powers of 1024.
    pub const HUMAN: Self = Self { base: 1024, power: None };
    /// Bytes.
    pub const BYTES: Self = Self { base: 1024, power: Some(0) };

    /// Returns the unit of the first power of the base that is chosen, or a fitting one. The base
    /// is 1000 for `si`.
    pub fn chosen(si: bool, powers: [bool; 5]) -> Self {
        let power = powers.iter().position(|chosen| *chosen).map(|power| power as u32);
        Self { base: if si { 1000 } else { 1024 }, power }
    }

    /// Returns whether the unit is chosen for each size.
    pub fn is_human(self) -> bool {
        self.power.is_none()
    }

    /// Formats a size. Like btrfs-progs, divides by all but one power of the base as integers
    /// before it rounds.
    pub fn text(self, bytes: u64) -> String {
        let power = match self.power {
            Some(0) => return bytes.to_string(),
            Some(power) => power,
            None => {
                let mut power = 0;
                let mut rest = bytes;
                while rest >= self.base {
                    rest /= self.base;
                    power += 1;
                }
                power
            }
        };
        let value = match power {
            0 => bytes as f64,
            _ => (bytes / self.base.pow(power - 1)) as f64 / self.base as f64,
        };
        format!("{value:.2}{}", self.suffix(power))
    }

    fn suffix(self, power: u32) -> &'static str {
        let suffixes = match self.base {
            1000 => ["B", "kB", "MB", "GB", "TB", "PB", "EB"],
            _ => ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"],
        };
        suffixes[power as usize]
    }
}

/// Parses a number of bytes. A suffix of K, M, G, T, P or E means powers of 1024 (`10G`, `512k`,
/// `16KiB`).
pub fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || "not a size; give bytes, or a number with K, M, G, T, P or E".to_owned();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, suffix) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let suffix = suffix.to_ascii_lowercase();
    let letter = suffix.strip_suffix("ib").unwrap_or(&suffix);
    let power = match letter {
        "" if suffix.is_empty() => 0,
        "b" => 0,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        "p" => 5,
        "e" => 6,
        _ => return Err(wrong()),
    };
    number.checked_mul(1 << (10 * power)).ok_or_else(|| "the size does not fit into 64 bits".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_match_btrfs_progs() {
        let cases = [
            (0, "0.00B"),
            (1023, "1023.00B"),
            (16384, "16.00KiB"),
            (5_455_872, "5.20MiB"),
            (5_767_168, "5.50MiB"),
            (u64::MAX, "16.00EiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(UnitArgs::default().resolve().text(bytes), text);
        }
    }

    #[test]
    fn chosen_units_are_used() {
        let raw = UnitArgs { raw: true, ..UnitArgs::default() };
        assert_eq!(raw.resolve().text(5_455_872), "5455872");
        let megabytes = UnitArgs { mbytes: true, si: true, ..UnitArgs::default() };
        assert_eq!(megabytes.resolve().text(5_455_872), "5.46MB");
        let kibibytes = UnitArgs { kbytes: true, ..UnitArgs::default() };
        assert_eq!(kibibytes.resolve().text(512), "0.50KiB");
        let human = UnitArgs { human_si: true, ..UnitArgs::default() };
        assert_eq!(human.resolve().text(u64::MAX), "18.45EB");
    }

    #[test]
    fn sizes_are_parsed_with_suffixes() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("16k", 16384),
            ("16KiB", 16384),
            ("109M", 109 << 20),
            ("2t", 2 << 40),
            ("7B", 7),
            ("15E", 15 << 60),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "k", "-1", "1.5G", "1x", "1 k", "16E", "1ib", "1kb", "18446744073709551616"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }
}
