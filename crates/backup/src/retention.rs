//! Which backups are kept.
//!
//! Owns [`Retention`]. Periods are those of UTC; a week begins on Monday. Of each of the last N
//! periods that have a backup, the last backup is kept. Each series of snapshots counts alone.

use crate::backups::Backup;
use std::collections::BTreeMap;

/// The period of a backup, from its index in the series and its time.
type PeriodOf = fn(usize, i64) -> i64;

/// The numbers of backups to keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// The last ones.
    pub last: u32,
    /// Days.
    pub daily: u32,
    /// Weeks.
    pub weekly: u32,
    /// Months.
    pub monthly: u32,
    /// Years.
    pub yearly: u32,
}

impl Retention {
    /// Returns whether there is no rule.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the rules that keep each backup, by its index. Backups are in the order of time.
    pub(crate) fn kept(&self, backups: &[Backup]) -> BTreeMap<usize, Vec<&'static str>> {
        let mut kept: BTreeMap<usize, Vec<&'static str>> = BTreeMap::new();
        let mut series: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (index, backup) in backups.iter().enumerate() {
            series.entry(&backup.manifest.series).or_default().push(index);
        }
        for members in series.values() {
            let rules: [(&str, u32, PeriodOf); 5] = [
                ("last", self.last, |index, _| index as i64),
                ("daily", self.daily, |_, time| day(time)),
                ("weekly", self.weekly, |_, time| (day(time) + 3).div_euclid(7)),
                ("monthly", self.monthly, |_, time| month(day(time))),
                ("yearly", self.yearly, |_, time| month(day(time)).div_euclid(12)),
            ];
            for (rule, count, period) in rules {
                let (mut left, mut before) = (count, None);
                for &index in members.iter().rev() {
                    let own = period(index, backups[index].manifest.time);
                    if left > 0 && before != Some(own) {
                        kept.entry(index).or_default().push(rule);
                        (left, before) = (left - 1, Some(own));
                    }
                }
            }
        }
        kept
    }
}

/// Returns the days since 1970-01-01.
fn day(time: i64) -> i64 {
    time.div_euclid(86_400)
}

/// Returns the months since the year 0 of the Gregorian calendar.
fn month(day: i64) -> i64 {
    // Years that begin in March have the leap day at their end.
    let day = day + 719_468;
    let era = day.div_euclid(146_097);
    let of_era = day.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    (era * 400 + year_of_era) * 12 + from_march + 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{BaseName, Manifest};
    use papilio::Uuid;

    fn backup(series: &str, time: i64) -> Backup {
        let snapshot = BaseName { uuid: Uuid::from_u128(time as u128), ctransid: 1 };
        let manifest = Manifest {
            version: 1,
            name: "s".into(),
            name_hex: None,
            host: String::new(),
            source: String::new(),
            time,
            written: 0,
            series: series.into(),
            snapshot,
            base: None,
            stream_bytes: 0,
            stream: Vec::new(),
            outline_bytes: 0,
            outline: Vec::new(),
        };
        Backup { id: format!("{time:064}"), manifest }
    }

    #[test]
    fn months_are_those_of_the_calendar() {
        // 1970-01-31, 1970-02-01, 2000-02-29, 2000-03-01, 2023-12-31, 2024-01-01, 1969-12-31
        let months = [30, 31, 11_016, 11_017, 19_722, 19_723, -1].map(month);
        let at = |year: i64, month: i64| year * 12 + month - 1;
        assert_eq!(
            months,
            [at(1970, 1), at(1970, 2), at(2000, 2), at(2000, 3), at(2023, 12), at(2024, 1), at(1969, 12)]
        );
    }

    #[test]
    fn each_rule_keeps_the_last_of_its_periods() {
        // Two a day from 2024-01-01, a Monday, for 70 days.
        let start = 19_723 * 86_400;
        let backups: Vec<Backup> = (0..140).map(|half| backup("a", start + half * 43_200)).collect();
        let kept = |retention: Retention| retention.kept(&backups).into_keys().collect::<Vec<_>>();
        assert_eq!(kept(Retention { last: 3, ..Retention::default() }), [137, 138, 139]);
        assert_eq!(kept(Retention { daily: 3, ..Retention::default() }), [135, 137, 139]);
        // Ends of weeks: days 55, 62, and the last one, day 69.
        assert_eq!(kept(Retention { weekly: 3, ..Retention::default() }), [111, 125, 139]);
        // January ends with day 30, February with day 59.
        assert_eq!(kept(Retention { monthly: 9, ..Retention::default() }), [61, 119, 139]);
        assert_eq!(kept(Retention { yearly: 2, ..Retention::default() }), [139]);
        let all = Retention { last: 1, daily: 2, weekly: 2, monthly: 2, yearly: 1 };
        assert_eq!(all.kept(&backups)[&139], ["last", "daily", "weekly", "monthly", "yearly"]);
        assert_eq!(kept(all), [119, 125, 137, 139]);
    }

    #[test]
    fn each_series_counts_alone() {
        let backups = [backup("a", 1), backup("b", 2), backup("a", 3), backup("a", 4)];
        let kept = Retention { last: 1, ..Retention::default() }.kept(&backups);
        assert_eq!(kept.into_keys().collect::<Vec<_>>(), [1, 3]);
        assert!(Retention::default().is_empty());
    }
}
