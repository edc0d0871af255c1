//! How much entries grew or shrank between two runs.
//!
//! Owns [`View`], a tally beside that of an older run, and [`Row`], an entry of either.
//!
//! **Invariant:** an entry that only one of the runs has is in the rows of both, with the weight 0
//! in the other.

use super::tally::{Entry, Tally};

/// A difference of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Positive if there are more bytes now.
    pub bytes: i64,
    /// The bytes by which this may be wrong.
    pub error: u64,
}

impl Change {
    /// Whether the runs show that anything changed at all.
    pub fn is_certain(self) -> bool {
        self.bytes.unsigned_abs() > self.error
    }
}

/// The weights of now, and those of an older run if there is one.
#[derive(Clone, Copy, Debug)]
pub struct View<'t> {
    /// Those of now.
    pub now: &'t Tally,
    /// Those of the older run.
    pub then: Option<&'t Tally>,
}

/// An entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row<'t> {
    /// Its name.
    pub name: &'t [u8],
    /// Its weight now.
    pub weight: u64,
    /// Its weight in the older run, in the unit of that one.
    pub before: u64,
    /// Whether either run has anything in it.
    pub is_directory: bool,
}

impl<'t> View<'t> {
    /// A view of one run.
    #[cfg(test)]
    pub fn of(now: &'t Tally) -> Self {
        Self { now, then: None }
    }

    /// Returns the entry at a path, and that of the older run.
    fn at(&self, path: &[Vec<u8>]) -> (Option<&'t Entry>, Option<&'t Entry>) {
        (self.now.root.at(path), self.then.and_then(|then| then.root.at(path)))
    }

    /// Returns the weights of a path: now, and in the older run.
    pub fn weights(&self, path: &[Vec<u8>]) -> (u64, u64) {
        let (now, then) = self.at(path);
        (now.map_or(0, |entry| entry.weight), then.map_or(0, |entry| entry.weight))
    }

    /// Returns the entries of a directory by name.
    pub fn rows(&self, path: &[Vec<u8>]) -> Vec<Row<'t>> {
        rows(self.at(path))
    }

    /// Calls `each` for the entries of the whole tree, an entry before those in it, with the number
    /// of directories above. It returns whether to look into the entry.
    pub fn walk(
        &self,
        order: impl Fn(&Row<'_>, &Row<'_>) -> std::cmp::Ordering,
        mut each: impl FnMut(usize, &Row<'t>) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let root = (Some(&self.now.root), self.then.map(|then| &then.root));
        let mut pending = vec![(0, row(b"/", root), root)];
        while let Some((depth, row_of_it, pair)) = pending.pop() {
            if !each(depth, &row_of_it)? {
                continue;
            }
            let mut below = rows(pair);
            below.sort_by(|one, other| order(one, other).then_with(|| one.name.cmp(other.name)));
            let entry = |of: Option<&'t Entry>, name: &[u8]| of.and_then(|entry| entry.below.get(name));
            for found in below.into_iter().rev() {
                pending.push((depth + 1, found, (entry(pair.0, found.name), entry(pair.1, found.name))));
            }
        }
        Ok(())
    }

    /// Returns how a weight has changed, if there is an older run.
    pub fn change(&self, weight: u64, before: u64) -> Option<Change> {
        let (now, error) = self.now.bytes(weight);
        let (then, error_then) = self.then?.bytes(before);
        let difference = i128::from(now) - i128::from(then);
        // The runs are independent of one another.
        let error = (error as f64).hypot(error_then as f64).ceil();
        let bytes = difference.clamp(i64::MIN.into(), i64::MAX.into());
        Some(Change { bytes: i64::try_from(bytes).unwrap_or_default(), error: error as u64 })
    }

    /// Returns how the entry of a row has changed.
    pub fn change_of(&self, row: &Row<'_>) -> Option<Change> {
        self.change(row.weight, row.before)
    }
}

fn row<'t>(name: &'t [u8], (now, then): (Option<&Entry>, Option<&Entry>)) -> Row<'t> {
    let has_below = |entry: Option<&Entry>| entry.is_some_and(|entry| !entry.below.is_empty());
    Row {
        name,
        weight: now.map_or(0, |entry| entry.weight),
        before: then.map_or(0, |entry| entry.weight),
        is_directory: has_below(now) || has_below(then),
    }
}

fn rows<'t>((now, then): (Option<&'t Entry>, Option<&'t Entry>)) -> Vec<Row<'t>> {
    let names = |entry: Option<&'t Entry>| entry.into_iter().flat_map(|entry| entry.below.keys());
    let mut all: Vec<&'t Vec<u8>> = names(now).chain(names(then)).collect();
    all.sort();
    all.dedup();
    let entry = |of: Option<&'t Entry>, name: &Vec<u8>| of.and_then(|entry| entry.below.get(name));
    all.into_iter().map(|name| row(name, (entry(now, name), entry(then, name)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(exact: bool, weights: &[(&str, u64)]) -> Tally {
        let mut tally = Tally { data: 1000, exact, ..Tally::default() };
        weights.iter().for_each(|(path, weight)| tally.add(Some(path.as_bytes()), *weight));
        tally
    }

    #[test]
    fn entries_of_both_runs_are_compared() {
        let now = tally(true, &[("/a/new", 300), ("/a/same", 50), ("/b", 10)]);
        let then = tally(true, &[("/a/same", 50), ("/a/gone/x", 70), ("/b", 40)]);
        let view = View { now: &now, then: Some(&then) };
        let changes = |path: &[Vec<u8>]| {
            let rows = view.rows(path).into_iter();
            rows.map(|row| (row.name, view.change_of(&row).unwrap().bytes, row.is_directory))
                .collect::<Vec<_>>()
        };
        assert_eq!(changes(&[]), [(&b"a"[..], 230, true), (b"b", -30, false)]);
        let below = changes(&[b"a".to_vec()]);
        assert_eq!(below, [(&b"gone"[..], -70, true), (b"new", 300, false), (b"same", 0, false)]);
        let mut seen = Vec::new();
        view.walk(
            |one, other| other.weight.cmp(&one.weight),
            |depth, row| {
                seen.push((depth, row.name.to_vec()));
                Ok(row.name != b"gone")
            },
        )
        .unwrap();
        let names: Vec<(usize, &[u8])> = seen.iter().map(|(depth, name)| (*depth, &name[..])).collect();
        let expected: [(usize, &[u8]); 6] =
            [(0, b"/"), (1, b"a"), (2, b"new"), (2, b"same"), (2, b"gone"), (1, b"b")];
        assert_eq!(names, expected);
        assert_eq!(View::of(&now).change(1, 1), None);
    }

    #[test]
    fn errors_of_both_samples_count() {
        let now = tally(false, &[("/a", 60), ("/b", 40)]);
        let then = tally(false, &[("/a", 40), ("/b", 60)]);
        let view = View { now: &now, then: Some(&then) };
        let change = view.change(60, 40).unwrap();
        let error = now.bytes(60).1;
        assert_eq!(change.bytes, 200);
        assert!(change.error > error && change.error < 2 * error, "{change:?} {error}");
        assert!(change.is_certain() && !view.change(40, 40).unwrap().is_certain());
        // A counted run adds no error.
        let counted = tally(true, &[("/a", 400)]);
        let view = View { now: &now, then: Some(&counted) };
        assert_eq!(view.change(60, 400).unwrap(), Change { bytes: 200, error });
    }
}
