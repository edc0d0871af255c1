//! Histories of several processes, which take turns in an agreed order.
//!
//! Owns [`Callers`]. Each caller is this test binary again, with the test `caller_process` and
//! commands on its standard input. It has open files, locks and mappings of its own on both mounts.
//! It draws the same history from the seed, so that a command names a step by its number.

use super::call::Step;
use super::history;
use super::side::Side;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const SEED: &str = "PAPILIO_TEST_CALLER";
const ANSWER: &str = "answer: ";

/// A process that makes calls.
struct Caller {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Caller {
    fn ask(&mut self, command: &str) -> String {
        writeln!(self.commands, "{command}").expect("the caller is running");
        self.commands.flush().expect("the caller is running");
        loop {
            let mut line = String::new();
            let read = self.answers.read_line(&mut line).expect("the caller answers in UTF-8");
            assert!(read > 0, "the caller ended at the command {command:?}");
            // The test harness prints lines of its own.
            if let Some((_, answer)) = line.trim_end_matches('\n').split_once(ANSWER) {
                return answer.to_owned();
            }
        }
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        // It ends with its standard input; without that, by a signal.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The processes of a pair of mounts.
#[derive(Default)]
pub struct Callers(Vec<Caller>);

impl Callers {
    /// Starts processes that make the calls of histories on two mounts.
    pub fn start(count: usize, ours: &Path, theirs: &Path) -> Self {
        let start = |_| {
            let mut child = Command::new(std::env::current_exe().expect("the path of this program"))
                .args(["--exact", "calls::processes::caller_process", "--ignored", "--nocapture"])
                .env(SEED, format!("{}\n{}", ours.display(), theirs.display()))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("start this program again");
            let commands = child.stdin.take().expect("its input is a pipe");
            let answers = BufReader::new(child.stdout.take().expect("its output is a pipe"));
            Caller { child, commands, answers }
        };
        Self((0..count).map(start).collect())
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Begins a history in a new directory.
    pub fn begin(&mut self, seed: u64, directory: &str) {
        for caller in &mut self.0 {
            assert_eq!(caller.ask(&format!("begin {seed} {directory}")), "ready");
        }
    }

    /// Makes a call on both mounts, and returns both results.
    pub fn run(&mut self, step: &Step) -> (String, String) {
        let caller = &mut self.0[step.process];
        (caller.ask(&format!("ours {}", step.number)), caller.ask(&format!("theirs {}", step.number)))
    }
}

#[test]
#[ignore = "a process of another test"]
fn caller_process() {
    let Ok(mounts) = std::env::var(SEED) else { return };
    let (ours, theirs) = mounts.split_once('\n').expect("two paths");
    super::own_umask();
    let mut state: Option<(Vec<Step>, Side, Side)> = None;
    for command in std::io::stdin().lines() {
        let command = command.expect("a line");
        let words: Vec<_> = command.split(' ').collect();
        let answer = match (&words[..], &mut state) {
            (["begin", seed, directory], state) => {
                let steps = history(seed.parse().expect("a seed"), true, super::PROCESSES);
                // The files of the history before are closed first.
                *state = None;
                let sides = [ours, theirs].map(|mount| Side::new(Path::new(mount), directory));
                let [ours, theirs] = sides;
                *state = Some((steps, ours, theirs));
                "ready".to_owned()
            }
            (["ours", number], Some((steps, side, _))) | (["theirs", number], Some((steps, _, side))) => {
                side.run(&steps[number.parse::<usize>().expect("a number")])
            }
            other => panic!("unknown command {:?}", other.0),
        };
        println!("{ANSWER}{}", answer.replace('\n', " "));
    }
}
