//! Runs of several threads, as a list: [`Turn`], the [`Order`] in which one is repeated, and
//! [`report`], which shortens one that failed.
//!
//! A failure of several threads seldom needs a race: most fail when one thread takes the turns of
//! all, in the order in which they began. Such a run repeats exactly, and is shortened like a
//! history. Any other is tried several times on threads, and a shorter one counts as failing if one
//! of the trials fails.

use crate::operation::Operation;
use crate::shrink::{self, Failure};
use std::fmt;
use std::time::Duration;

/// Trials of a run on threads that may not fail each time.
const TRIALS: usize = 12;

/// An operation of one of several threads.
#[derive(Clone, PartialEq, Eq)]
pub struct Turn {
    /// The thread's number.
    pub thread: u8,
    /// Its operation.
    pub operation: Operation,
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "thread {}: {:?}", self.thread, self.operation)
    }
}

/// How turns are repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// One thread takes all of them, in the order of the list.
    OneByOne,
    /// Each thread takes its own, at the same time as the others.
    AtOnce,
}

/// Describes a failure with the turns that it needs. `repeat` runs a shorter list in an order, and
/// returns its failure.
pub fn report(
    failure: &Failure,
    turns: &[Turn],
    time: Duration,
    mut repeat: impl FnMut(&[Turn], Order) -> Option<Failure>,
) -> String {
    let one_by_one = shrink::shortened(failure, turns, time, |turns| repeat(turns, Order::OneByOne));
    if let Some(text) = one_by_one {
        return format!("{failure}\none thread fails, too: {text}");
    }
    let at_once = shrink::shortened(failure, turns, time, |turns| {
        let alike = |found: &Failure| found.kind == failure.kind;
        (0..TRIALS).find_map(|_| repeat(turns, Order::AtOnce).filter(alike))
    });
    match at_once {
        Some(text) => format!("{failure}\nin one of {TRIALS} trials on threads, {text}"),
        None => format!("{failure}\nit does not repeat in {TRIALS} trials: nothing is left out"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(count: u8) -> Vec<Turn> {
        let turn = |number| Turn { thread: number % 3, operation: Operation::Close { slot: number } };
        (0..count).map(turn).collect()
    }

    fn lines(report: &str) -> usize {
        report.lines().filter(|line| line.starts_with("    thread ")).count()
    }

    #[test]
    fn a_failure_without_a_race_is_repeated_by_one_thread() {
        let (turns, failure) = (turns(40), Failure::new("a", "b"));
        let needed = [&turns[3], &turns[30]];
        let text = report(&failure, &turns, Duration::from_secs(60), |part, order| {
            assert_eq!(order, Order::OneByOne);
            needed.iter().all(|turn| part.contains(turn)).then(|| failure.clone())
        });
        assert!(text.contains("one thread fails, too: 2 of 40"), "{text}");
        assert_eq!(lines(&text), 2, "{text}");
    }

    #[test]
    fn a_race_is_tried_several_times() {
        let (turns, failure) = (turns(40), Failure::new("a", "b"));
        let needed = [&turns[3], &turns[30], &turns[31]];
        let mut trials = 0;
        let text = report(&failure, &turns, Duration::from_secs(60), |part, order| {
            trials += 1;
            let races = order == Order::AtOnce && needed.iter().all(|turn| part.contains(turn));
            let kind = if trials % 5 == 0 { "a" } else { "another" };
            races.then(|| Failure::new(kind, "b"))
        });
        assert!(text.contains("trials on threads, 3 of 40"), "{text}");
        assert_eq!(lines(&text), 3, "{text}");
        let never = report(&failure, &turns, Duration::from_secs(60), |_, _| None);
        assert!(never.contains("does not repeat"), "{never}");
    }
}
