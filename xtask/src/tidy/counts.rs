//! Findings that a ratchet counts by area: while an area has no more than it is allowed, it passes.

use super::areas::area;
use super::finding::Finding;
use super::ratchet::TIGHTEN;
use std::collections::BTreeMap;

/// Returns the number of `findings` in each area.
pub fn by_area(findings: &[Finding]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for finding in findings {
        *counts.entry(area(&finding.path)).or_default() += 1;
    }
    counts
}

/// Returns those of `findings` whose area has more of them than `allowed`, and a finding at
/// `ratchet_path` for every allowance in its table `table` that is too high.
pub fn check(
    findings: Vec<Finding>,
    allowed: &BTreeMap<String, usize>,
    table: &str,
    ratchet_path: &str,
) -> Vec<Finding> {
    let counts = by_area(&findings);
    let allowance = |area: &str| allowed.get(area).copied().unwrap_or(0);
    let mut kept = findings;
    kept.retain(|finding| counts[&area(&finding.path)] > allowance(&area(&finding.path)));
    for (area, &allowed) in allowed {
        let present = counts.get(area).copied().unwrap_or(0);
        let message = match present.cmp(&allowed) {
            std::cmp::Ordering::Equal => continue,
            std::cmp::Ordering::Less => format!("[{table}] `{area}`: only {present} are left: {TIGHTEN}"),
            std::cmp::Ordering::Greater => {
                format!("[{table}] `{area}`: {allowed} are allowed, {present} are there")
            }
        };
        kept.push(Finding::new(ratchet_path, 1, message));
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(present: usize, allowed: &[(&str, usize)]) -> Vec<String> {
        let findings = (1..=present).map(|line| Finding::new("crates/a/src/lib.rs", line, "bad")).collect();
        let allowed = allowed.iter().map(|(area, count)| ((*area).to_owned(), *count)).collect();
        check(findings, &allowed, "bad_lines", "r.toml").iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_area_without_allowance_passes_only_clean() {
        assert_eq!(found(0, &[]), Vec::<String>::new());
        assert_eq!(found(1, &[("crates/b", 0)]), ["crates/a/src/lib.rs:1: bad"]);
    }

    #[test]
    fn an_allowance_may_only_shrink() {
        assert_eq!(found(2, &[("crates/a", 2)]), Vec::<String>::new());
        assert_eq!(found(3, &[("crates/a", 2)]).len(), 4);
        let stale = ["r.toml:1: [bad_lines] `crates/a`: only 1 are left: run `cargo xtask tidy --tighten`"];
        assert_eq!(found(1, &[("crates/a", 2)]), stale);
    }
}
