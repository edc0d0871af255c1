//! Formats of times. A time in an image can have any 64-bit number of seconds; one outside the
//! calendar is shown as `@seconds`.

use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use std::sync::OnceLock;

/// Half a Gregorian year in seconds; `ls` calls a younger time recent.
const HALF_A_YEAR: i64 = 31_556_952 / 2;

/// Returns the zone of this machine. It is read once: later the process may reach no files.
pub fn zone() -> TimeZone {
    static ZONE: OnceLock<TimeZone> = OnceLock::new();
    ZONE.get_or_init(read_zone).clone()
}

/// Reads the file of the zone itself. To find its name, the library would list the whole database
/// of zones, which takes longer than most commands do.
fn read_zone() -> TimeZone {
    const FILE: &str = "/etc/localtime";
    match std::env::var_os("TZ") {
        Some(name) if name == "UTC" => return TimeZone::UTC,
        Some(_) => {}
        None => {
            let zone = std::fs::read(FILE).ok().and_then(|bytes| TimeZone::tzif(FILE, &bytes).ok());
            if let Some(zone) = zone {
                return zone;
            }
        }
    }
    TimeZone::system()
}

fn zoned(time: papilio::Timespec) -> Option<Zoned> {
    Some(instant(time)?.to_zoned(zone()))
}

fn instant(time: papilio::Timespec) -> Option<Timestamp> {
    let nanoseconds = i32::try_from(time.nanoseconds).ok().filter(|n| *n < 1_000_000_000)?;
    Timestamp::new(time.seconds, nanoseconds).ok()
}

fn raw(time: papilio::Timespec) -> String {
    format!("@{}.{:09}", time.seconds, time.nanoseconds)
}

/// Returns the short format of `ls -l`: with the time of day if recent, else with the year.
pub fn short(time: papilio::Timespec, now: i64) -> String {
    let Some(zoned) = zoned(time) else { return raw(time) };
    let recent = time.seconds <= now && time.seconds > now.saturating_sub(HALF_A_YEAR);
    let form = if recent { "%b %e %H:%M" } else { "%b %e  %Y" };
    zoned.strftime(form).to_string()
}

/// Returns local time as `2024-05-06 07:08:09.123456789 +0200`.
pub fn full(time: papilio::Timespec) -> String {
    match zoned(time) {
        Some(zoned) => zoned.strftime("%Y-%m-%d %H:%M:%S.%9f %z").to_string(),
        None => raw(time),
    }
}

/// Returns local time as `2024-05-06 07:08:09`.
pub fn to_second(time: papilio::Timespec) -> String {
    match zoned(time) {
        Some(zoned) => zoned.strftime("%Y-%m-%d %H:%M:%S").to_string(),
        None => raw(time),
    }
}

/// Returns local time as `2024-05-06 07:08:09 +0200`.
pub fn to_second_with_zone(time: papilio::Timespec) -> String {
    match zoned(time) {
        Some(zoned) => zoned.strftime("%Y-%m-%d %H:%M:%S %z").to_string(),
        None => raw(time),
    }
}

/// Returns local time as `2024-05-06T07:08:09+0200`.
pub fn with_zone(time: papilio::Timespec) -> String {
    match zoned(time) {
        Some(zoned) => zoned.strftime("%Y-%m-%dT%H:%M:%S%z").to_string(),
        None => raw(time),
    }
}

/// Returns UTC as `2024-05-06T05:08:09.123456789Z`.
pub fn rfc3339(time: papilio::Timespec) -> String {
    match instant(time) {
        Some(instant) => instant.strftime("%Y-%m-%dT%H:%M:%S.%9fZ").to_string(),
        None => raw(time),
    }
}

/// Returns the current time in seconds since 1970.
pub fn now() -> i64 {
    Timestamp::now().as_second()
}

/// Parses `@seconds`, `2024-05-06`, `2024-05-06 07:08:09` or RFC 3339, in local time if there is no
/// zone. Returns seconds and nanoseconds since 1970.
pub fn parse(text: &str) -> Result<(i64, u32), String> {
    let wrong = || format!("{text}: not a time; give @SECONDS, YYYY-MM-DD or YYYY-MM-DD HH:MM:SS");
    if let Some(seconds) = text.strip_prefix('@') {
        return Ok((seconds.parse().map_err(|_| wrong())?, 0));
    }
    let instant = match text.parse::<Timestamp>() {
        Ok(instant) => instant,
        Err(_) => {
            let civil: jiff::civil::DateTime = text.parse().map_err(|_| wrong())?;
            civil.to_zoned(zone()).map_err(|_| wrong())?.timestamp()
        }
    };
    // Inodes count nanoseconds forward from the second below.
    let nanoseconds = instant.as_nanosecond().rem_euclid(1_000_000_000);
    let seconds = instant.as_nanosecond().div_euclid(1_000_000_000);
    let seconds = i64::try_from(seconds).map_err(|_| wrong())?;
    Ok((seconds, u32::try_from(nanoseconds).map_err(|_| wrong())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(seconds: i64, nanoseconds: u32) -> papilio::Timespec {
        papilio::Timespec { seconds, nanoseconds }
    }

    #[test]
    fn json_times_are_utc() {
        assert_eq!(rfc3339(time(0, 5)), "1970-01-01T00:00:00.000000005Z");
        assert_eq!(rfc3339(time(-1, 500_000_000)), "1969-12-31T23:59:59.500000000Z");
    }

    #[test]
    fn times_outside_the_calendar_are_raw() {
        assert_eq!(rfc3339(time(i64::MAX, 0)), format!("@{}.000000000", i64::MAX));
        assert_eq!(full(time(0, 2_000_000_000)), "@0.2000000000");
        assert!(short(time(i64::MIN, 0), 0).starts_with("@-"));
    }

    #[test]
    fn times_are_parsed() {
        assert_eq!(parse("@-5"), Ok((-5, 0)));
        assert_eq!(parse("1970-01-02T00:00:00Z"), Ok((86_400, 0)));
        assert!(parse("yesterday").is_err());
        assert!(parse("2024-05-06 07:08:09").is_ok());
        assert!(parse("2024-05-06").is_ok());
    }
}
