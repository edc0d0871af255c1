//! Which tests caught mutants so far, by the file of the mutant. Decides which test to try next.
//!
//! A test that caught mutants of one file will catch others of that file. The estimate of a test's
//! chance begins with its share in all files, and moves to that in the file as tries add up.

use std::collections::HashMap;

/// Tries that the chance in all files counts for, beside those in a file.
const WEIGHT: f64 = 3.0;
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
    /// greater, the later it is run.
    pub fn cost(&self, test: &str, file: &str, seconds: f64) -> f64 {
        let all = self.of_test.get(test).copied().unwrap_or_default();
        let chance = (all.catches + 0.2) / (all.tries + 10.0);
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
        assert!(record.cost("a", "x.rs", 2.0) < record.cost("b", "x.rs", 2.0));
        assert!(record.cost("b", "x.rs", 2.0) < record.cost("c", "x.rs", 2.0));
        assert!(record.cost("c", "x.rs", 0.05) < record.cost("b", "x.rs", 2.0));
        let before = record.cost("a", "x.rs", 2.0);
        record.note("a", "x.rs", false);
        assert!(before < record.cost("a", "x.rs", 2.0));
    }
}
