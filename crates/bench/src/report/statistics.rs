//! Medians and spreads.

/// Distribution of a value over the rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    /// The median; for an even number of values, the mean of the two in the middle.
    pub median: f64,
    /// The minimum.
    pub least: f64,
    /// The maximum.
    pub most: f64,
}

impl Spread {
    /// Computes the distribution; all zero without values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let (Some(&least), Some(&most)) = (sorted.first(), sorted.last()) else { return Self::default() };
        let middle = sorted.len() / 2;
        let median = match sorted.len() % 2 {
            0 => f64::midpoint(sorted[middle - 1], sorted[middle]),
            _ => sorted[middle],
        };
        Self { median, least, most }
    }
}

/// Formats a number with three significant digits or more: `1,234`, `56.7`, `8.90`.
pub fn number(value: f64) -> String {
    match value.abs() {
        large if large >= 99.95 => thousands(value.round() as i64),
        middling if middling >= 9.995 => format!("{value:.1}"),
        small if small >= 0.1 || small == 0.0 => format!("{value:.2}"),
        little if little >= 0.001 => format!("{value:.4}"),
        _ => format!("{value:.2e}"),
    }
}

fn thousands(value: i64) -> String {
    let digits = value.unsigned_abs().to_string();
    let mut text = String::from(if value < 0 { "-" } else { "" });
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a time in nanoseconds with a suitable unit.
pub fn nanoseconds(value: f64) -> String {
    match value {
        ns if ns < 1e3 => format!("{} ns", number(ns)),
        us if us < 1e6 => format!("{} µs", number(us / 1e3)),
        ms if ms < 1e9 => format!("{} ms", number(ms / 1e6)),
        s => format!("{} s", number(s / 1e9)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_and_extremes() {
        assert_eq!(Spread::of([3.0, 1.0, 2.0]), Spread { median: 2.0, least: 1.0, most: 3.0 });
        assert_eq!(Spread::of([4.0, 1.0]), Spread { median: 2.5, least: 1.0, most: 4.0 });
        assert_eq!(Spread::of([]), Spread::default());
    }

    #[test]
    fn numbers_and_times_are_readable() {
        for (value, text) in [
            (1_234_567.2, "1,234,567"),
            (100.4, "100"),
            (99.96, "100"),
            (12.34, "12.3"),
            (1.234, "1.23"),
            (0.0, "0.00"),
            (0.015625, "0.0156"),
            (0.0001, "1.00e-4"),
            (-1234.0, "-1,234"),
        ] {
            assert_eq!(number(value), text);
        }
        assert_eq!(nanoseconds(950.0), "950 ns");
        assert_eq!(nanoseconds(18_304.0), "18.3 µs");
        assert_eq!(nanoseconds(84_410_368.0), "84.4 ms");
        assert_eq!(nanoseconds(2.5e9), "2.50 s");
    }
}
