//! The ranges of a file that a request wants.
//!
//! A header that is malformed, or has many or overlapping ranges, is ignored, as RFC 9110, 14.2
//! advises: the client gets the whole file.

/// The most ranges of a request.
const RANGES_MOST: usize = 16;

/// The answer to a `Range`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ranges {
    Whole,
    /// Starts and ends; the end is behind the last byte.
    Parts(Vec<(u64, u64)>),
    /// No byte of the file is wanted.
    Unsatisfiable,
}

impl Ranges {
    /// Parses the value of `Range` for a file of `size` bytes.
    pub(crate) fn parse(value: &str, size: u64) -> Self {
        Self::parse_bytes(value, size).unwrap_or(Self::Whole)
    }

    fn parse_bytes(value: &str, size: u64) -> Option<Self> {
        let (unit, list) = value.split_once('=')?;
        if !unit.trim().eq_ignore_ascii_case("bytes") {
            return None;
        }
        let mut parts: Vec<(u64, u64)> = Vec::new();
        let mut count = 0;
        for one in list.split(',').map(str::trim).filter(|one| !one.is_empty()) {
            count += 1;
            if count > RANGES_MOST {
                return None;
            }
            let (first, last) = one.split_once('-')?;
            let (start, end) = match (first.trim(), last.trim()) {
                ("", suffix) => (size.saturating_sub(number(suffix)?), size),
                (first, "") => (number(first)?, size),
                (first, last) => {
                    let (first, last) = (number(first)?, number(last)?);
                    if last < first {
                        return None;
                    }
                    (first, last.saturating_add(1).min(size))
                }
            };
            if start < end {
                parts.push((start, end));
            }
        }
        if count == 0 {
            return None;
        }
        if parts.is_empty() {
            return Some(Self::Unsatisfiable);
        }
        let mut sorted = parts.clone();
        sorted.sort_unstable();
        let overlaps = sorted.windows(2).any(|pair| pair[0].1 > pair[1].0);
        (!overlaps).then_some(Self::Parts(parts))
    }
}

/// Parses digits; a number that is too large is the largest.
fn number(digits: &str) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_to_the_file() {
        let parts = |list: &[(u64, u64)]| Ranges::Parts(list.to_vec());
        for (value, expected) in [
            ("bytes=0-0", parts(&[(0, 1)])),
            ("bytes=0-99", parts(&[(0, 10)])),
            ("bytes=3-", parts(&[(3, 10)])),
            ("bytes=-3", parts(&[(7, 10)])),
            ("bytes=-99", parts(&[(0, 10)])),
            ("Bytes = 1-2 , 4-5", parts(&[(1, 3), (4, 6)])),
            ("bytes=8-9,0-1", parts(&[(8, 10), (0, 2)])),
            ("bytes=1-2,50-", parts(&[(1, 3)])),
            ("bytes=10-", Ranges::Unsatisfiable),
            ("bytes=-0", Ranges::Unsatisfiable),
            ("bytes=99999999999999999999-", Ranges::Unsatisfiable),
            ("bytes=0-99999999999999999999", parts(&[(0, 10)])),
            ("bytes=0-4,3-6", Ranges::Whole),
            ("bytes=2-1", Ranges::Whole),
            ("bytes=", Ranges::Whole),
            ("bytes=-", Ranges::Whole),
            ("bytes=a-b", Ranges::Whole),
            ("bytes=+1-2", Ranges::Whole),
            ("items=0-1", Ranges::Whole),
            ("nonsense", Ranges::Whole),
        ] {
            assert_eq!(Ranges::parse(value, 10), expected, "{value}");
        }
        let many = format!("bytes={}", vec!["0-0"; 17].join(","));
        assert_eq!(Ranges::parse(&many, 10), Ranges::Whole);
        assert_eq!(Ranges::parse("bytes=0-0", 0), Ranges::Unsatisfiable);
    }
}
