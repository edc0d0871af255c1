//! Sizes as the Btrfs tools write them: `5.20MiB`, `5455872`, `5.46MB`.
//!
//! Owns [`UnitArgs`], the options that choose, and [`Units`], the choice.

use clap::Args;

/// How sizes are written; the last one given wins.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct UnitArgs {
    /// Sizes in bytes
    #[arg(short = 'b', long, overrides_with_all = ["human_readable", "human_si"])]
    raw: bool,
    /// Sizes in the unit that fits, powers of 1024 (default)
    #[arg(short = 'h', long, overrides_with_all = ["raw", "human_si"])]
    human_readable: bool,
    /// Sizes in the unit that fits, powers of 1000
    #[arg(short = 'H', id = "human_si", overrides_with_all = ["raw", "human_readable"])]
    human_si: bool,
    /// Powers of 1024
    #[arg(long, conflicts_with = "si")]
    iec: bool,
    /// Powers of 1000
    #[arg(long)]
    si: bool,
    /// Sizes in KiB, or kB with --si
    #[arg(short = 'k', long, conflicts_with_all = ["mbytes", "gbytes", "tbytes"])]
    kbytes: bool,
    /// Sizes in MiB, or MB with --si
    #[arg(short = 'm', long, conflicts_with_all = ["gbytes", "tbytes"])]
    mbytes: bool,
    /// Sizes in GiB, or GB with --si
    #[arg(short = 'g', long, conflicts_with = "tbytes")]
    gbytes: bool,
    /// Sizes in TiB, or TB with --si
    #[arg(short = 't', long)]
    tbytes: bool,
}

/// How sizes are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Units {
    /// 1000 or 1024.
    base: u64,
    /// The power of the base; `None` takes the one that fits.
    power: Option<u32>,
}

impl UnitArgs {
    /// The choice.
    pub fn resolve(self) -> Units {
        let base = if self.si || self.human_si { 1000 } else { 1024 };
        let powers = [self.raw, self.kbytes, self.mbytes, self.gbytes, self.tbytes];
        let power = powers.iter().position(|chosen| *chosen).map(|power| power as u32);
        Units { base, power }
    }
}

impl Units {
    /// The unit that fits, powers of 1024.
    pub const HUMAN: Self = Self { base: 1024, power: None };
    /// Bytes.
    pub const BYTES: Self = Self { base: 1024, power: Some(0) };

    /// Whether the unit follows the size.
    pub fn is_human(self) -> bool {
        self.power.is_none()
    }

    /// A size. What is below a thousandth of the unit is cut off before it is rounded, as the Btrfs
    /// tools do it.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_the_btrfs_tools_have_them() {
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
    fn units_that_were_asked_for() {
        let raw = UnitArgs { raw: true, ..UnitArgs::default() };
        assert_eq!(raw.resolve().text(5_455_872), "5455872");
        let megabytes = UnitArgs { mbytes: true, si: true, ..UnitArgs::default() };
        assert_eq!(megabytes.resolve().text(5_455_872), "5.46MB");
        let kibibytes = UnitArgs { kbytes: true, ..UnitArgs::default() };
        assert_eq!(kibibytes.resolve().text(512), "0.50KiB");
        let human = UnitArgs { human_si: true, ..UnitArgs::default() };
        assert_eq!(human.resolve().text(u64::MAX), "18.45EB");
    }
}
