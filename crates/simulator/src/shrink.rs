//! Shrinking a list that makes a test fail: [`minimise`], and [`report`], which says what is left.
//!
//! Owns the search only: the caller decides whether a shorter list still fails. A history, a stream
//! of commands and a plan of mutations are such lists.

use std::fmt::{self, Debug};
use std::time::{Duration, Instant};

/// A failure of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The step or the check that failed. A shorter list must fail in the same way.
    pub kind: String,
    /// The error, for a reader.
    pub text: String,
}

impl Failure {
    /// Creates a failure.
    pub fn new(kind: impl Into<String>, text: impl Into<String>) -> Self {
        Self { kind: kind.into(), text: text.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.text)
    }
}

/// Describes a failure with the elements of `list` that it needs. `repeat` runs a shorter list, and
/// returns its failure.
pub fn report<T: Clone + Debug>(
    failure: &Failure,
    list: &[T],
    time: Duration,
    repeat: impl FnMut(&[T]) -> Option<Failure>,
) -> String {
    match shortened(failure, list, time, repeat) {
        Some(text) => format!("{failure}\n{text}"),
        None => format!("{failure}\nit does not repeat: nothing is left out"),
    }
}

/// Describes the elements of `list` that a failure needs, and how they fail. Returns `None` if the
/// list does not fail again.
pub(crate) fn shortened<T: Clone + Debug>(
    failure: &Failure,
    list: &[T],
    time: Duration,
    mut repeat: impl FnMut(&[T]) -> Option<Failure>,
) -> Option<String> {
    let mut last = None;
    let mut fails = |part: &[T]| {
        let found = repeat(part).filter(|found| found.kind == failure.kind);
        let fails = found.is_some();
        last = found.or(last.take());
        fails
    };
    if !fails(list) {
        return None;
    }
    let needed = minimise(list, time, fails);
    let again = last.map_or_else(String::new, |again| format!(", which fail with: {again}"));
    let lines: Vec<String> = needed.iter().map(|element| format!("    {element:?}")).collect();
    Some(format!("{} of {} steps are needed{again}\n{}", needed.len(), list.len(), lines.join("\n")))
}

/// Returns a part of `list` that still fails, in the same order. Unless the time ends first, each
/// single element of the result is needed.
///
/// `fails` must be true for `list` itself; it is not asked about that.
///
/// ```
/// use papilio_simulator::minimise;
/// use std::time::Duration;
///
/// let list: Vec<u32> = (0..1000).collect();
/// let fails = |part: &[u32]| part.contains(&7) && part.contains(&800);
/// assert_eq!(minimise(&list, Duration::from_secs(10), fails), [7, 800]);
/// ```
pub fn minimise<T: Clone>(list: &[T], time: Duration, mut fails: impl FnMut(&[T]) -> bool) -> Vec<T> {
    let end = Instant::now() + time;
    let mut list = list.to_vec();
    let mut piece = list.len().div_ceil(2);
    while piece > 0 && !list.is_empty() {
        let mut removed = false;
        // From the end: the last elements depend on the first ones more often than not.
        let mut at = list.len();
        while at > 0 {
            if Instant::now() >= end {
                return list;
            }
            let start = at.saturating_sub(piece);
            let shorter = [&list[..start], &list[at..]].concat();
            if fails(&shorter) {
                list = shorter;
                removed = true;
            }
            at = start;
        }
        // At the smallest size, until nothing more can be removed.
        piece = if piece == 1 && removed { 1 } else { piece / 2 };
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_element_of_the_result_is_needed() {
        let list: Vec<u32> = (0..300).collect();
        for needed in [vec![0], vec![299], vec![3, 4, 5, 250], (0..300).step_by(50).collect()] {
            let mut trials = 0;
            let found = minimise(&list, Duration::from_secs(60), |part| {
                trials += 1;
                needed.iter().all(|number| part.contains(number))
            });
            assert_eq!(found, needed);
            assert!(trials < 2000, "{trials} trials");
        }
        assert!(minimise(&list, Duration::from_secs(60), |_| true).is_empty());
    }

    #[test]
    fn the_result_fails_where_the_time_ends_early() {
        let list: Vec<u32> = (0..100).collect();
        assert_eq!(minimise(&list, Duration::ZERO, |_| unreachable!("no time")), list);
    }
}
