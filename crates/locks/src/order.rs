//! Which class of locks was taken while which other was held: a graph without cycles.
//!
//! Owns the classes, the edges of the process, and of each thread what it holds. Invariants: the graph has no cycle, as an
//! edge that would close one is not entered; edges are there before anybody waits for them. Locks: the graph's, and under
//! it nothing; a list of what a thread holds is locked for one operation on it, as who has a folio's lock may hand it to
//! another thread, which lets go of it.

use parking_lot::Mutex;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::panic::Location;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};

/// Names a file to which each new edge is added.
const EDGES_VARIABLE: &str = "PAPILIO_LOCK_ORDER";
const UNKNOWN: u32 = u32::MAX;

type Place = &'static Location<'static>;

/// Where a lock was made: all that were made there are of one class.
pub(crate) struct Origin {
    place: Place,
    of: &'static str,
    class: AtomicU32,
}

/// Something that is waited for and is no lock.
#[derive(Debug)]
pub struct Class {
    name: &'static str,
    several: bool,
    class: AtomicU32,
}

/// Something is held, until this is dropped: by the thread that took it, wherever this has gone since.
#[derive(Debug)]
pub struct Held {
    by: Arc<Mutex<Vec<Taken>>>,
    token: u64,
}

/// Until this is dropped, several of one class may be taken.
#[derive(Debug)]
pub struct InOrder {
    _of_this_thread: std::marker::PhantomData<*const ()>,
}

#[derive(Clone, Copy, Debug)]
struct Taken {
    class: u32,
    instance: usize,
    at: Place,
    token: u64,
}

/// Lets go of what is held, and takes it again when it is dropped.
pub(crate) struct Without<'a> {
    held: &'a Held,
    taken: Option<Taken>,
}

#[derive(Default)]
struct Graph {
    classes: Vec<ClassInfo>,
    edges: BTreeMap<u32, BTreeMap<u32, Edge>>,
}

/// File, line, column, and the type of what the lock protects.
type MadeAt = (&'static str, u32, u32, &'static str);

struct ClassInfo {
    name: String,
    place: Option<MadeAt>,
    several: bool,
}

/// When it was first met.
struct Edge {
    held_at: Place,
    taken_at: Place,
    thread: String,
}

static GRAPH: LazyLock<Mutex<Graph>> = LazyLock::new(Mutex::default);
static NEXT_TOKEN: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static HELD: Arc<Mutex<Vec<Taken>>> = Arc::default();
    /// Edges that are known to be in the graph.
    static KNOWN: RefCell<HashSet<(u32, u32)>> = RefCell::default();
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
            // The type too: a derived `Default` makes all locks of a struct at one place.
            let key = (self.place.file(), self.place.line(), self.place.column(), self.of);
            let name = || format!("{}:{}", short(self.place), name_in_source(self.place, self.of));
            GRAPH.lock().class(Some(key), name, false)
        })
    }
}

impl Class {
    /// A class of that name, a word; a thread has at most one of it.
    pub const fn new(name: &'static str) -> Self {
        Self { name, several: false, class: AtomicU32::new(UNKNOWN) }
    }

    /// A class of that name, of which a thread may have several; `_why` that cannot deadlock.
    pub const fn several(name: &'static str, _why: &'static str) -> Self {
        Self { name, several: true, class: AtomicU32::new(UNKNOWN) }
    }

    /// The one at this address is waited for, and then held.
    #[track_caller]
    pub fn hold<T: ?Sized>(&self, instance: &T) -> Held {
        self.might_wait(instance);
        self.tried(instance)
    }

    /// The one at this address is held, and was not waited for.
    #[track_caller]
    pub fn tried<T: ?Sized>(&self, instance: &T) -> Held {
        took(self.class(), std::ptr::from_ref(instance).addr())
    }

    /// The one at this address may be waited for here.
    #[track_caller]
    pub fn might_wait<T: ?Sized>(&self, instance: &T) {
        waits(self.class(), std::ptr::from_ref(instance).addr());
    }

    fn class(&self) -> u32 {
        known_or(&self.class, || GRAPH.lock().class(None, || self.name.to_owned(), self.several))
    }
}

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

/// From here on this thread takes several of one class; `_why` that cannot deadlock.
pub fn in_order(_why: &'static str) -> InOrder {
    IN_ORDER.set(IN_ORDER.get() + 1);
    InOrder { _of_this_thread: std::marker::PhantomData }
}

impl Drop for InOrder {
    fn drop(&mut self) {
        IN_ORDER.set(IN_ORDER.get() - 1);
    }
}

/// This thread is about to wait for one of a class.
///
/// # Panics
/// That may be for ever.
#[track_caller]
pub(crate) fn waits(class: u32, instance: usize) {
    // Whatever lets go of things while it panics has said enough.
    if std::thread::panicking() {
        return;
    }
    let at = Location::caller();
    let Ok(held) = HELD.try_with(|held| held.lock().clone()) else { return };
    for taken in &held {
        let violation = if taken.class != class {
            enter_edge(taken, class, at)
        } else if taken.instance == instance && !GRAPH.lock().classes[class as usize].several {
            Some("it has that very one".to_owned())
        } else if IN_ORDER.get() == 0 && !GRAPH.lock().classes[class as usize].several {
            Some("it has another of that class, and nothing says in which order".to_owned())
        } else {
            None
        };
        if let Some(violation) = violation {
            report(&held, class, at, &violation);
        }
    }
}

/// This thread has one of a class now.
#[track_caller]
pub(crate) fn took(class: u32, instance: usize) -> Held {
    let token = NEXT_TOKEN.fetch_add(1, Relaxed);
    let by = HELD.try_with(Arc::clone).unwrap_or_default();
    by.lock().push(Taken { class, instance, at: Location::caller(), token });
    Held { by, token }
}

impl Held {
    /// It is held no more; for what is not dropped.
    pub fn let_go(&self) {
        self.leave();
    }

    fn leave(&self) -> Option<Taken> {
        let mut list = self.by.lock();
        let index = list.iter().rposition(|taken| taken.token == self.token)?;
        Some(list.remove(index))
    }

    pub(crate) fn without(&self) -> Without<'_> {
        Without { held: self, taken: self.leave() }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Drop for Without<'_> {
    fn drop(&mut self) {
        self.held.by.lock().extend(self.taken.take());
    }
}

/// Enters an edge; says why not, where it would close a cycle.
fn enter_edge(held: &Taken, class: u32, at: Place) -> Option<String> {
    let edge = (held.class, class);
    if KNOWN.try_with(|known| known.borrow().contains(&edge)).unwrap_or(true) {
        return None;
    }
    let mut graph = GRAPH.lock();
    if !graph.has_edge(edge) {
        if let Some(path) = graph.path(class, held.class) {
            return Some(graph.tell_of(&path));
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

fn report(held: &[Taken], class: u32, at: Place, why: &str) -> ! {
    let graph = GRAPH.lock();
    let name = |class: u32| graph.classes[class as usize].name.as_str();
    let mut text = format!("lock order: {} is waited for at {at} by who holds", name(class));
    for taken in held {
        let _ = write!(text, "\n    {}, taken at {}", name(taken.class), taken.at);
    }
    let _ = write!(text, "\n{why}");
    drop(graph);
    // Said also where somebody catches the panic, or hangs after it.
    let _ = writeln!(std::io::stderr(), "{text}");
    panic!("{text}");
}

impl Graph {
    fn class(&mut self, place: Option<MadeAt>, name: impl FnOnce() -> String, several: bool) -> u32 {
        if place.is_some()
            && let Some(found) = self.classes.iter().position(|class| class.place == place)
        {
            return found as u32;
        }
        let name = name();
        // One class, made by two threads at once.
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

    /// The classes on a way from one to another.
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

    fn tell_of(&self, path: &[u32]) -> String {
        let mut text = "but this was seen before:".to_owned();
        for pair in path.windows(2) {
            let edge = &self.edges[&pair[0]][&pair[1]];
            let (held, taken) = (&self.classes[pair[0] as usize].name, &self.classes[pair[1] as usize].name);
            let _ = write!(
                text,
                "\n    {taken}, taken at {}, while {held} was held, taken at {} ({})",
                edge.taken_at, edge.held_at, edge.thread
            );
        }
        text
    }

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
        // In one piece: several processes may add to it.
        file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the edges can be written down");
    }
}

fn short(place: Place) -> String {
    let file = place.file().trim_start_matches("crates/").replace("/src/", "/");
    format!("{file}:{}", place.line())
}

/// What the source calls a lock that is made there: what stands before it.
fn name_in_source(place: Place, of: &'static str) -> String {
    let workspace = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let text = std::fs::read_to_string(workspace.join(place.file())).unwrap_or_default();
    let line = text.lines().nth(place.line() as usize - 1).unwrap_or_default();
    let before = line.get(..place.column() as usize - 1).unwrap_or_default();
    let name = before.trim_end_matches([' ', ':', '=', '>', '(', '&']);
    let name = name.rsplit(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
    if place.file().starts_with('/') {
        // By the standard library, for a function that was passed on.
        return of.replace(' ', "");
    }
    let of = of.split('<').next().and_then(|of| of.rsplit("::").next()).unwrap_or(of);
    if of == "()" { name.to_owned() } else { format!("{name}<{of}>") }
}
