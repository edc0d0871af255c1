//! Which tests caught mutants so far, by the file of the mutant. Decides which test to try next.
//!
//! A test that caught mutants of one file will catch others of that file. The estimate of a test's
//! chance begins with its share in all files, and moves to that in the file as tries add up. A test
//! that was never tried has a good chance if it reaches few mutants, as unit tests do.

use std::collections::HashMap;

/// Tries that the chance in all files counts for, beside those in a file.
const WEIGHT: f64 = 3.0;
/// Tries that the first guess of a chance counts for.
const GUESS: f64 = 10.0;
/// A test that reaches so many mutants has half the chance of one that reaches the mutant alone.
const FEW: f64 = 50.0;
/// A test with less is no sooner done: starting a program takes as long.
const SHORTEST: f64 = 0.02;

#[derive(Clone, Copy, Default)]
struct Count {
    tries: f64,
    catches: f64,
}

impl Count {
    fn add(&mut self, caught: bool) {
        self.tries += 1.0;
        self.catches += f64::from(u8::from(caught));
    }
}

/// The tries and catches of each test.
#[derive(Default)]
pub struct Record {
    of_test: HashMap<String, Count>,
    in_file: HashMap<(String, String), Count>,
}

impl Record {
    /// Notes that a test was run with a mutant of a file.
    pub fn note(&mut self, test: &str, file: &str, caught: bool) {
        self.of_test.entry(test.to_owned()).or_default().add(caught);
        self.in_file.entry((test.to_owned(), file.to_owned())).or_default().add(caught);
    }

    /// Returns the seconds that a test takes for each mutant of a file that it may catch: the
    /// greater, the later it is run. `reached` is the number of mutants that it reaches.
    pub fn cost(&self, test: &str, file: &str, seconds: f64, reached: usize) -> f64 {
        let all = self.of_test.get(test).copied().unwrap_or_default();
        let guess = 0.02 + 0.5 * FEW / (FEW + reached as f64);
        let chance = GUESS.mul_add(guess, all.catches) / (all.tries + GUESS);
        let here = self.in_file.get(&(test.to_owned(), file.to_owned())).copied().unwrap_or_default();
        seconds.max(SHORTEST) * (here.tries + WEIGHT) / WEIGHT.mul_add(chance, here.catches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_caught_mutants_of_the_file_come_early() {
        let mut record = Record::default();
        record.note("a", "x.rs", true);
        record.note("b", "y.rs", true);
        let cost = |record: &Record, test: &str, seconds| record.cost(test, "x.rs", seconds, 1000);
        assert!(cost(&record, "a", 2.0) < cost(&record, "b", 2.0));
        assert!(cost(&record, "b", 2.0) < cost(&record, "c", 2.0));
        assert!(cost(&record, "c", 0.05) < cost(&record, "b", 2.0));
        let before = cost(&record, "a", 2.0);
        record.note("a", "x.rs", false);
        assert!(before < cost(&record, "a", 2.0));
        assert!(record.cost("c", "x.rs", 2.0, 10) < cost(&record, "c", 2.0));
    }
}
