//! Times in headers, properties and pages.
//!
//! Source: RFC 9110, 5.6.7 (dates of HTTP), RFC 3339.

use jiff::Timestamp;
use jiff::fmt::strtime;
use jiff::tz::TimeZone;
use papilio::Timespec;
use std::time::SystemTime;

const FIXED: &str = "%a, %d %b %Y %H:%M:%S GMT";
/// The forms of old clients, which a recipient must understand.
const OLD: [&str; 2] = ["%A, %d-%b-%y %H:%M:%S GMT", "%a %b %e %H:%M:%S %Y"];

/// Formats a time; one that the calendar does not have becomes the epoch.
fn formatted(time: Timespec, form: &str) -> String {
    let stamp = Timestamp::from_second(time.seconds).unwrap_or(Timestamp::UNIX_EPOCH);
    strtime::format(form, &stamp.to_zoned(TimeZone::UTC)).unwrap_or_default()
}

/// Returns a time for a header.
pub(crate) fn http(time: Timespec) -> String {
    formatted(time, FIXED)
}

/// Returns a time for `DAV:creationdate` and the attribute of an HTML `time`.
pub(crate) fn rfc3339(time: Timespec) -> String {
    formatted(time, "%Y-%m-%dT%H:%M:%SZ")
}

/// Returns a time as people read it.
pub(crate) fn shown(time: Timespec) -> String {
    formatted(time, "%Y-%m-%d %H:%M:%S")
}

/// Returns the seconds since 1970 of a time in a header.
pub(crate) fn parse_http(text: &str) -> Option<i64> {
    let text = text.trim();
    let parse = |form: &str| strtime::parse(form, text).ok()?.to_datetime().ok();
    let date = std::iter::once(FIXED).chain(OLD).find_map(parse)?;
    Some(date.to_zoned(TimeZone::UTC).ok()?.timestamp().as_second())
}

/// Returns the time of the clock.
pub(crate) fn now() -> Timespec {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timespec {
        seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        nanoseconds: since.subsec_nanos(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_three_forms_of_the_standard_are_read() {
        const EXAMPLE: i64 = 784_111_777;
        assert_eq!(http(Timespec { seconds: EXAMPLE, nanoseconds: 9 }), "Sun, 06 Nov 1994 08:49:37 GMT");
        for text in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
            " Sun, 06 Nov 1994 08:49:37 GMT ",
        ] {
            assert_eq!(parse_http(text), Some(EXAMPLE), "{text}");
        }
        for bad in ["", "yesterday", "Sun, 31 Feb 1994 08:49:37 GMT", "0", "\u{0}"] {
            assert_eq!(parse_http(bad), None, "{bad}");
        }
    }

    #[test]
    fn times_outside_the_calendar_are_no_panic() {
        for seconds in [i64::MIN, -1, 0, i64::MAX] {
            let time = Timespec { seconds, nanoseconds: u32::MAX };
            assert!(http(time).ends_with("GMT") && rfc3339(time).ends_with('Z') && !shown(time).is_empty());
        }
    }
}
