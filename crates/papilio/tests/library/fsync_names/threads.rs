//! Several threads that change and fsync the same names.

use super::case::{judge, new_file_system};
use crate::in_memory::{crashed, has_log};
use papilio::{ErrorKind, FileSystem, PathError, RenameMode};
use papilio_oracle::{Need, Scratch, require};
use std::sync::{Condvar, Mutex, PoisonError};

/// The work of several threads: the test waits for their fsyncs and then ends them.
#[derive(Default)]
struct Work {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    fsyncs: u64,
    ended: bool,
}

impl Work {
    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }

    fn has_ended(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).ended
    }

    /// Waits until the threads finish this many more fsyncs. Returns false if a thread failed.
    fn wait_for_fsyncs(&self, fsyncs: u64) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = state.fsyncs + fsyncs;
        let pending = |state: &mut State| state.fsyncs < wanted && !state.ended;
        let state = self.changed.wait_while(state, pending).unwrap_or_else(PoisonError::into_inner);
        !state.ended
    }
}

/// Ends the work when it is dropped. The test and each thread hold one: if any of them panics, all
/// threads return, and the scope that waits for them reports the panic.
struct EndsWork<'a>(&'a Work);

impl Drop for EndsWork<'_> {
    fn drop(&mut self) {
        self.0.change(|state| state.ended = true);
    }
}

/// Returns the value of an operation, or `None` where another thread had changed the names before.
/// Panics on all other errors.
fn unless_raced<T>(result: papilio::Result<T>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            let raced = matches!(
                error.kind(),
                ErrorKind::Path(
                    PathError::NotFound | PathError::Exists | PathError::NotEmpty | PathError::IntoItself
                )
            );
            assert!(raced, "{error}");
            None
        }
    }
}

/// Threads unlink a name while others create and fsync it: the replay finds no file of that name,
/// or one as an fsync left it.
#[test]
fn unlinks_race_with_creates_and_fsyncs_of_a_name() {
    if require(&[Need::KERNEL_MOUNT, &[Need::Command("btrfs")]].concat()).is_none() {
        return;
    }
    let scratch = Scratch::new(1 << 30).unwrap();
    let (device, fs) = new_file_system();
    fs.create_dir("/d").unwrap();
    fs.sync().unwrap();
    let work = Work::default();
    std::thread::scope(|scope| {
        let _end = EndsWork(&work);
        for _ in 0..2 {
            scope.spawn(|| {
                let _end = EndsWork(&work);
                while !work.has_ended() {
                    unless_raced(fs.remove_file("/d/name"));
                }
            });
            scope.spawn(|| {
                let _end = EndsWork(&work);
                while !work.has_ended() {
                    // `create_file` creates and then opens: another thread may unlink in between.
                    let Some(file) = unless_raced(fs.create_file("/d/name")) else { continue };
                    if unless_raced(file.write_all_at(b"content", 0)).is_none() {
                        continue;
                    }
                    file.sync_all().unwrap();
                    work.change(|state| state.fsyncs += 1);
                }
            });
        }
        for _ in 0..12 {
            if !work.wait_for_fsyncs(50) {
                return;
            }
            judge(&scratch, &crashed(&device), |seen| {
                if seen.there("/d/name") {
                    let content = std::fs::read(seen.0.join("d/name")).unwrap();
                    assert!(content == b"content" || content.is_empty(), "{content:?}");
                }
            })
            .unwrap();
        }
    });
    assert!(fs.failure().is_none());
}

/// Renames, links, unlinks and fsyncs a few names in a few directories until the work ends.
fn change_and_fsync_names(fs: &FileSystem, seed: u64, work: &Work) {
    let _end = EndsWork(work);
    let mut random = fastrand::Rng::with_seed(seed);
    while !work.has_ended() {
        let mut path = || format!("/{}/{}", ["d", "e", "d/x"][random.usize(..3)], random.u8(..5));
        let (one, other) = (path(), path());
        let synced = match random.u8(..9) {
            0 => unless_raced(fs.create_file(&one).and_then(|file| file.write_all_at(one.as_bytes(), 0)))
                .and(None),
            1 => unless_raced(fs.rename(&one, &other)).and(None),
            2 => unless_raced(fs.rename_with(&one, &other, RenameMode::Exchange)).and(None),
            3 => unless_raced(fs.hard_link(&one, &other)).and(None),
            4 => unless_raced(fs.remove_file(&one)).and(None),
            5 => unless_raced(fs.create_dir("/d/x")).and(None),
            6 => unless_raced(fs.rename("/d/x", "/e/x"))
                .and_then(|()| unless_raced(fs.rename("/e/x", "/d/x")))
                .and(None),
            7 => unless_raced(fs.inode_nofollow(&one).and_then(|inode| inode.sync_all())),
            _ => {
                let directory = ["/d", "/e", "/"][random.usize(..3)];
                unless_raced(fs.inode_nofollow(directory).and_then(|inode| inode.sync_all()))
            }
        };
        if synced.is_some() {
            work.change(|state| state.fsyncs += 1);
        }
    }
}

#[test]
fn threads_change_and_fsync_the_same_names() {
    if require(&[Need::KERNEL_MOUNT, &[Need::Command("btrfs")]].concat()).is_none() {
        return;
    }
    let scratch = Scratch::new(1 << 30).unwrap();
    let (device, fs) = new_file_system();
    for path in ["/d", "/e", "/d/x"] {
        fs.create_dir(path).unwrap();
    }
    fs.sync().unwrap();
    let (work, mut logs) = (Work::default(), 0);
    std::thread::scope(|scope| {
        let _end = EndsWork(&work);
        for seed in 0..4 {
            let (fs, work) = (&fs, &work);
            scope.spawn(move || change_and_fsync_names(fs, seed, work));
        }
        for round in 0..16 {
            if !work.wait_for_fsyncs(50) {
                return;
            }
            let cut = crashed(&device);
            logs += u32::from(has_log(&cut));
            judge(&scratch, &cut, |_| {}).unwrap_or_else(|why| panic!("round {round}: {why}"));
            if round % 5 == 4 {
                fs.sync().unwrap();
            }
        }
    });
    assert!(fs.failure().is_none());
    assert!(logs > 0, "some of the states have a log");
}
