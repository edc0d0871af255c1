//! The graph of lock classes: an edge means that a lock of one class was awaited while a lock of
//! another was held.
//!
//! Owns the classes and edges of the process, and the list of locks that each thread holds.
//!
//! **Invariants**
//! - The graph has no cycle: an edge that would close one is refused.
//! - An edge is in the graph before the thread waits.
//!
//! **Locks**
//! - The graph's mutex; no other is acquired under it.
//! - A thread's list of held locks has a mutex, because another thread may release a folio's lock
//!   that this one acquired. It is held for single operations on the list only.

use parking_lot::Mutex;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::panic::Location;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};

/// The environment variable that names the file to which new edges are appended.
const EDGES_VARIABLE: &str = "PAPILIO_LOCK_ORDER";
/// Stands for a class that has no number yet.
const UNKNOWN: u32 = u32::MAX;

type Place = &'static Location<'static>;

/// The location in the source that made a lock, and thereby its class.
pub(crate) struct Origin {
    place: Place,
    /// The type of the protected value.
    of: &'static str,
    /// Number of the class, or [`UNKNOWN`].
    class: AtomicU32,
}

/// A class of things that threads hold and wait for, other than locks.
#[derive(Debug)]
pub struct Class {
    name: &'static str,
    /// Whether a thread may hold several of it.
    several: bool,
    /// Number of the class, or [`UNKNOWN`].
    class: AtomicU32,
}

/// A record that something is held, until it is dropped. The hold counts for the thread that
/// acquired it, even if another thread drops the record.
#[derive(Debug)]
pub struct Held {
    by: Arc<Mutex<Vec<Acquisition>>>,
    token: u64,
}

/// Permission for the thread to acquire several locks of one class, until it is dropped.
#[derive(Debug)]
pub struct InOrder {
    _of_this_thread: std::marker::PhantomData<*const ()>,
}

/// An acquisition in a thread's list of held locks.
#[derive(Clone, Copy, Debug)]
struct Acquisition {
    class: u32,
    instance: usize,
    at: Place,
    token: u64,
}

/// A hold that is suspended until this is dropped.
pub(crate) struct Without<'a> {
    held: &'a Held,
    taken: Option<Acquisition>,
}

#[derive(Default)]
struct Graph {
    classes: Vec<ClassInfo>,
    edges: BTreeMap<u32, BTreeMap<u32, Edge>>,
}

/// File, line and column of the location that makes a lock, and the type of the protected value.
type MadeAt = (&'static str, u32, u32, &'static str);

struct ClassInfo {
    name: String,
    place: Option<MadeAt>,
    several: bool,
}

/// The acquisition that first showed an edge.
struct Edge {
    held_at: Place,
    taken_at: Place,
    thread: String,
}

static GRAPH: LazyLock<Mutex<Graph>> = LazyLock::new(Mutex::default);
static NEXT_TOKEN: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static HELD: Arc<Mutex<Vec<Acquisition>>> = Arc::default();
    /// Edges that this thread knows to be in the graph.
    static KNOWN: RefCell<HashSet<(u32, u32)>> = RefCell::default();
    /// Number of [`InOrder`] that are alive.
    static IN_ORDER: Cell<u32> = const { Cell::new(0) };
}

impl Origin {
    #[track_caller]
    pub fn here<T>() -> Self {
        let of = std::any::type_name::<T>();
        Self { place: Location::caller(), of, class: AtomicU32::new(UNKNOWN) }
    }

    pub fn class(&self) -> u32 {
        known_or(&self.class, || {
            // The type is part of the key: a derived `Default` makes all locks of a struct at one
            // location.
            let key = (self.place.file(), self.place.line(), self.place.column(), self.of);
            let name = || format!("{}:{}", short(self.place), name_in_source(self.place, self.of));
            GRAPH.lock().class(Some(key), name, false)
        })
    }
}

impl Class {
    /// Makes a class called `name`, a single word. A thread holds at most one of the class.
    pub const fn new(name: &'static str) -> Self {
        Self { name, several: false, class: AtomicU32::new(UNKNOWN) }
    }

    /// Makes a class called `name`, of which a thread may hold several; `_why` says why that cannot
    /// deadlock.
    pub const fn several(name: &'static str, _why: &'static str) -> Self {
        Self { name, several: true, class: AtomicU32::new(UNKNOWN) }
    }

    /// Checks the order of waiting for `instance`, and records that the thread holds it.
    #[track_caller]
    pub fn hold<T: ?Sized>(&self, instance: &T) -> Held {
        self.might_wait(instance);
        self.tried(instance)
    }

    /// Records that the thread holds `instance`, which it acquired without waiting.
    #[track_caller]
    pub fn tried<T: ?Sized>(&self, instance: &T) -> Held {
        acquired(self.class(), std::ptr::from_ref(instance).addr())
    }

    /// Checks the order as if the thread waited for `instance` here.
    #[track_caller]
    pub fn might_wait<T: ?Sized>(&self, instance: &T) {
        check_wait(self.class(), std::ptr::from_ref(instance).addr());
    }

    fn class(&self) -> u32 {
        known_or(&self.class, || GRAPH.lock().class(None, || self.name.to_owned(), self.several))
    }
}

/// Returns the number in `class`, or stores and returns the one that `find` gives.
fn known_or(class: &AtomicU32, find: impl FnOnce() -> u32) -> u32 {
    match class.load(Relaxed) {
        UNKNOWN => {
            let found = find();
            class.store(found, Relaxed);
            found
        }
        known => known,
    }
}

/// Lets the thread acquire several locks of one class; `_why` says why that cannot deadlock.
pub fn in_order(_why: &'static str) -> InOrder {
    IN_ORDER.set(IN_ORDER.get() + 1);
    InOrder { _of_this_thread: std::marker::PhantomData }
}

impl Drop for InOrder {
    fn drop(&mut self) {
        IN_ORDER.set(IN_ORDER.get() - 1);
    }
}

/// Checks the order of the locks that the thread holds and `instance` of `class`, for which it is
/// about to wait.
///
/// # Panics
/// The wait could deadlock.
#[track_caller]
pub(crate) fn check_wait(class: u32, instance: usize) {
    // Code that runs while the thread unwinds must not panic a second time.
    if std::thread::panicking() {
        return;
    }
    let at = Location::caller();
    let Ok(held) = HELD.try_with(|held| held.lock().clone()) else { return };
    for taken in &held {
        let violation = if taken.class != class {
            enter_edge(taken, class, at)
        } else if taken.instance == instance && !GRAPH.lock().classes[class as usize].several {
            Some("the thread already holds this very lock".to_owned())
        } else if IN_ORDER.get() == 0 && !GRAPH.lock().classes[class as usize].several {
            Some("the thread holds another lock of this class, and no in_order gives their order".to_owned())
        } else {
            None
        };
        if let Some(violation) = violation {
            report(&held, class, at, &violation);
        }
    }
}

/// Records that the thread holds `instance` of `class`.
#[track_caller]
pub(crate) fn acquired(class: u32, instance: usize) -> Held {
    let token = NEXT_TOKEN.fetch_add(1, Relaxed);
    let by = HELD.try_with(Arc::clone).unwrap_or_default();
    by.lock().push(Acquisition { class, instance, at: Location::caller(), token });
    Held { by, token }
}

impl Held {
    /// Records the release, for an owner that cannot drop the record.
    pub fn release(&self) {
        self.remove();
    }

    /// Removes the entry from the holder's list, unless that has been done.
    fn remove(&self) -> Option<Acquisition> {
        let mut list = self.by.lock();
        let index = list.iter().rposition(|taken| taken.token == self.token)?;
        Some(list.remove(index))
    }

    /// Suspends the hold until the result is dropped.
    pub(crate) fn without(&self) -> Without<'_> {
        Without { held: self, taken: self.remove() }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.remove();
    }
}

impl Drop for Without<'_> {
    fn drop(&mut self) {
        self.held.by.lock().extend(self.taken.take());
    }
}

/// Adds the edge from `held` to `class`. If it would close a cycle, leaves the graph as it is and
/// returns a description of the cycle.
fn enter_edge(held: &Acquisition, class: u32, at: Place) -> Option<String> {
    let edge = (held.class, class);
    if KNOWN.try_with(|known| known.borrow().contains(&edge)).unwrap_or(true) {
        return None;
    }
    let mut graph = GRAPH.lock();
    if !graph.has_edge(edge) {
        if let Some(path) = graph.path(class, held.class) {
            return Some(graph.describe(&path));
        }
        let thread = std::thread::current().name().unwrap_or("a thread").to_owned();
        let new = Edge { held_at: held.at, taken_at: at, thread };
        graph.print_edge(edge, &new);
        graph.edges.entry(edge.0).or_default().insert(edge.1, new);
    }
    drop(graph);
    KNOWN.with(|known| known.borrow_mut().insert(edge));
    None
}

/// Panics with the violation and the locks that the thread holds.
fn report(held: &[Acquisition], class: u32, at: Place, why: &str) -> ! {
    let graph = GRAPH.lock();
    let name = |class: u32| graph.classes[class as usize].name.as_str();
    let mut text = format!("lock order: {} is awaited at {at} by a thread that holds", name(class));
    for taken in held {
        let _ = write!(text, "\n    {}, acquired at {}", name(taken.class), taken.at);
    }
    let _ = write!(text, "\n{why}");
    drop(graph);
    // Also printed because a caller may catch the panic, or unwinding may hang.
    let _ = writeln!(std::io::stderr(), "{text}");
    panic!("{text}");
}

impl Graph {
    /// Returns the number of the class made at `place` or, without one, called `name`. Adds a new
    /// class.
    fn class(&mut self, place: Option<MadeAt>, name: impl FnOnce() -> String, several: bool) -> u32 {
        if place.is_some()
            && let Some(found) = self.classes.iter().position(|class| class.place == place)
        {
            return found as u32;
        }
        let name = name();
        // A class without a location is known by its name; two threads may look it up at once.
        if let Some(found) = self.classes.iter().position(|class| class.name == name && class.place == place)
        {
            return found as u32;
        }
        self.classes.push(ClassInfo { name, place, several });
        (self.classes.len() - 1) as u32
    }

    fn has_edge(&self, (from, to): (u32, u32)) -> bool {
        self.edges.get(&from).is_some_and(|edges| edges.contains_key(&to))
    }

    /// Returns the classes on a path of edges from `from` to `to`, both included.
    fn path(&self, from: u32, to: u32) -> Option<Vec<u32>> {
        let mut came_from = BTreeMap::from([(from, from)]);
        let mut ways = vec![from];
        while let Some(class) = ways.pop() {
            if class == to {
                let mut path = vec![to];
                while path.last() != Some(&from) {
                    path.push(came_from[path.last()?]);
                }
                path.reverse();
                return Some(path);
            }
            for next in self.edges.get(&class).into_iter().flat_map(BTreeMap::keys) {
                if !came_from.contains_key(next) {
                    came_from.insert(*next, class);
                    ways.push(*next);
                }
            }
        }
        None
    }

    /// Describes the acquisitions that the edges along `path` were seen in.
    fn describe(&self, path: &[u32]) -> String {
        let mut text = "but an earlier acquisition had the opposite order:".to_owned();
        for pair in path.windows(2) {
            let edge = &self.edges[&pair[0]][&pair[1]];
            let (held, taken) = (&self.classes[pair[0] as usize].name, &self.classes[pair[1] as usize].name);
            let _ = write!(
                text,
                "\n    {taken}, acquired at {}, while {held} was held, acquired at {} ({})",
                edge.taken_at, edge.held_at, edge.thread
            );
        }
        text
    }

    /// Appends the edge to the file that [`EDGES_VARIABLE`] names.
    fn print_edge(&self, (from, to): (u32, u32), edge: &Edge) {
        let Some(path) = std::env::var_os(EDGES_VARIABLE) else { return };
        let (from, to) = (&self.classes[from as usize].name, &self.classes[to as usize].name);
        let line = format!(
            "{from} {to} {}:{} {}:{}\n",
            edge.held_at.file(),
            edge.held_at.line(),
            edge.taken_at.file(),
            edge.taken_at.line()
        );
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        // A single write, because several processes may append to the file.
        file.and_then(|mut file| file.write_all(line.as_bytes()))
            .expect("the file of PAPILIO_LOCK_ORDER can be written");
    }
}

/// The crate, file and line of `place`.
fn short(place: Place) -> String {
    let file = place.file().trim_start_matches("crates/").replace("/src/", "/");
    format!("{file}:{}", place.line())
}

/// Returns the name of a lock made at `place`: the identifier before the expression in the source,
/// and the type `of` the protected value.
fn name_in_source(place: Place, of: &'static str) -> String {
    let workspace = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let text = std::fs::read_to_string(workspace.join(place.file())).unwrap_or_default();
    let line = text.lines().nth(place.line() as usize - 1).unwrap_or_default();
    let before = line.get(..place.column() as usize - 1).unwrap_or_default();
    let name = before.trim_end_matches([' ', ':', '=', '>', '(', '&']);
    let name = name.rsplit(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
    if place.file().starts_with('/') {
        // The standard library called a constructor that was passed as a function.
        return of.replace(' ', "");
    }
    let of = of.split('<').next().and_then(|of| of.rsplit("::").next()).unwrap_or(of);
    if of == "()" { name.to_owned() } else { format!("{name}<{of}>") }
}
