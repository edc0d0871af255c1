//! No cycles of imports among the files of a crate.
//!
//! Owns [`Component`].

use super::finding::Finding;
use super::module_graph::FileGraph;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;

/// A group of files that all reach one another by imports: a strongly connected component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Component {
    /// The files, sorted; at least two.
    pub files: Vec<String>,
    /// One of the shortest cycles.
    pub cycle: Vec<Edge>,
}

/// One import between two files.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Edge {
    /// The importing file.
    pub from: String,
    /// The imported file.
    pub to: String,
    /// Line of the import, from 1.
    pub line: usize,
}

/// Returns every component of `graph` with more than one file.
pub fn components(graph: &FileGraph) -> Vec<Component> {
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        graph.keys().map(|file| (file.as_str(), reachable(graph, file))).collect();
    let mut found = Vec::new();
    let mut assigned = BTreeSet::new();
    for (&file, from_here) in &reached {
        if !from_here.contains(file) || assigned.contains(file) {
            continue;
        }
        let reaches_back = |other: &&&str| reached.get(**other).is_some_and(|set| set.contains(file));
        let files: Vec<String> =
            from_here.iter().filter(reaches_back).map(|other| (*other).to_owned()).collect();
        assigned.extend(from_here.iter().filter(reaches_back).copied());
        let cycle = files.iter().filter_map(|file| shortest_cycle(graph, file)).min_by_key(Vec::len);
        found.push(Component { files, cycle: cycle.expect("every file of a component is on a cycle") });
    }
    found
}

/// Returns the files that `start` imports in one or more steps.
fn reachable<'a>(graph: &'a FileGraph, start: &str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&str> = graph.get(start).into_iter().flatten().map(|(file, _)| file.as_str()).collect();
    while let Some(file) = next.pop() {
        if reached.insert(file) {
            next.extend(graph.get(file).into_iter().flatten().map(|(file, _)| file.as_str()));
        }
    }
    reached
}

/// Returns a shortest cycle through `start`, searching breadth first.
fn shortest_cycle(graph: &FileGraph, start: &str) -> Option<Vec<Edge>> {
    let mut came_by: BTreeMap<&str, Edge> = BTreeMap::new();
    let mut next = VecDeque::from([start]);
    while let Some(from) = next.pop_front() {
        for (to, &line) in graph.get(from).into_iter().flatten() {
            if came_by.contains_key(to.as_str()) {
                continue;
            }
            came_by.insert(to, Edge { from: from.to_owned(), to: to.clone(), line });
            if to == start {
                return Some(path_to(&came_by, start));
            }
            next.push_back(to);
        }
    }
    None
}

/// Follows `came_by` back from `start` until it is `start` again.
fn path_to(came_by: &BTreeMap<&str, Edge>, start: &str) -> Vec<Edge> {
    let mut path: Vec<Edge> = Vec::new();
    let mut file = start;
    loop {
        let edge = &came_by[file];
        path.push(edge.clone());
        file = &edge.from;
        if file == start {
            path.reverse();
            return path;
        }
    }
}

/// Reports each of `components`, at the first import of its shortest cycle.
pub fn check(components: &[Component]) -> Vec<Finding> {
    let finding = |component: &Component| {
        let first = &component.cycle[0];
        Finding::new(&first.from, first.line, format!("{}: {component}", summary(component)))
    };
    components.iter().map(finding).collect()
}

fn summary(component: &Component) -> String {
    match component.files.len() {
        2 => "2 files import each other".to_owned(),
        files => format!("{files} files import one another"),
    }
}

/// The shortest cycle: each file with the line of its import, and the first file again.
impl std::fmt::Display for Component {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for Edge { from, line, .. } in &self.cycle {
            write!(f, "{from}:{line} -> ")?;
        }
        f.write_str(&self.cycle[0].from)
    }
}

/// Describes `component` of `graph`: its files, and short cycles that have no import in common.
/// Ending the component takes the removal of at least one import of each.
pub fn describe(graph: &FileGraph, component: &Component) -> String {
    let mut text = format!("{}\n", summary(component));
    for file in &component.files {
        writeln!(text, "  {file}").expect("writing to a String");
    }
    let mut rest: FileGraph =
        component.files.iter().filter_map(|file| Some((file.clone(), graph.get(file)?.clone()))).collect();
    loop {
        let shortest = components(&rest).into_iter().min_by_key(|component| component.cycle.len());
        let Some(shortest) = shortest else { return text };
        writeln!(text, "  cycle: {shortest}").expect("writing to a String");
        for edge in &shortest.cycle {
            rest.get_mut(&edge.from).expect("an importing file").remove(&edge.to);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::module_graph;
    use super::super::sources::tests::sources;
    use super::*;

    /// Findings for a crate `crates/a` of `files`.
    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let mut texts = vec![("crates/a/Cargo.toml", "[package]\nname = \"a\"\n")];
        texts.extend(files);
        let components = components(&module_graph::build(&sources(&texts)));
        check(&components).iter().map(ToString::to_string).collect()
    }

    const TWO: [(&str, &str); 3] = [
        ("crates/a/src/lib.rs", "mod b; mod c;"),
        ("crates/a/src/b.rs", "use crate::c::C; pub struct B;"),
        ("crates/a/src/c.rs", "\nuse crate::b::B; pub struct C;"),
    ];

    /// `disk` finds `errors` by a re-export of the root, which finds `key`, which finds `disk`.
    const THREE: [(&str, &str); 4] = [
        ("crates/a/src/lib.rs", "mod disk; mod errors; mod key; pub use errors::Error;"),
        ("crates/a/src/disk.rs", "//! Disk.\nuse crate::Error; pub struct Disk;"),
        ("crates/a/src/errors.rs", "pub enum Error { Key(crate::key::Key) }"),
        ("crates/a/src/key.rs", "use super::disk; pub struct Key(\n  disk::Disk);"),
    ];

    #[test]
    fn two_files_that_import_each_other_are_found() {
        let expected = "crates/a/src/b.rs:1: 2 files import each other: \
                        crates/a/src/b.rs:1 -> crates/a/src/c.rs:2 -> crates/a/src/b.rs";
        assert_eq!(found(&TWO), [expected]);
    }

    #[test]
    fn three_files_in_a_circle_through_a_re_export_are_found() {
        let expected = "crates/a/src/disk.rs:2: 3 files import one another: crates/a/src/disk.rs:2 -> \
                        crates/a/src/errors.rs:1 -> crates/a/src/key.rs:2 -> crates/a/src/disk.rs";
        assert_eq!(found(&THREE), [expected]);
    }

    #[test]
    fn a_parent_that_uses_its_child_and_back_is_found() {
        let files = [
            ("crates/a/src/lib.rs", "mod child; const ROOT: u8 = child::CHILD;"),
            ("crates/a/src/child.rs", "pub const CHILD: u8 = super::ROOT;"),
        ];
        assert_eq!(found(&files).len(), 1);
        let collects = [
            ("crates/a/src/lib.rs", "mod child; pub use child::CHILD; const ROOT: u8 = 0;"),
            ("crates/a/src/child.rs", "pub const CHILD: u8 = super::ROOT;"),
        ];
        assert_eq!(found(&collects), Vec::<String>::new());
    }

    #[test]
    fn the_shortest_cycle_is_the_one_that_is_shown() {
        let files = [
            ("crates/a/src/lib.rs", "mod b; mod c; mod d; mod e;"),
            ("crates/a/src/b.rs", "use crate::c::X as C; pub struct X;"),
            ("crates/a/src/c.rs", "use crate::d::X as D; pub struct X;"),
            ("crates/a/src/d.rs", "use crate::b::X as B; use crate::e::X as E; pub struct X;"),
            ("crates/a/src/e.rs", "use crate::d::X as D; pub struct X;"),
        ];
        let found = found(&files);
        assert_eq!(found.len(), 1, "{found:?}");
        let cycle =
            "4 files import one another: crates/a/src/d.rs:1 -> crates/a/src/e.rs:1 -> crates/a/src/d.rs";
        assert!(found[0].ends_with(cycle), "{found:?}");
    }

    #[test]
    fn the_description_lists_files_and_separate_cycles() {
        let mut texts = vec![("crates/a/Cargo.toml", "[package]\nname = \"a\"\n")];
        texts.extend(TWO);
        let graph = module_graph::build(&sources(&texts));
        let text = describe(&graph, &components(&graph)[0]);
        assert_eq!(
            text,
            "2 files import each other\n  crates/a/src/b.rs\n  crates/a/src/c.rs\n  \
             cycle: crates/a/src/b.rs:1 -> crates/a/src/c.rs:2 -> crates/a/src/b.rs\n"
        );
    }
}
