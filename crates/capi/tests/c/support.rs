//! Compiles C programs against the library and runs them.

use papilio_oracle::Scratch;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// Returns the folder of this crate.
pub fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// How a program gets the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    Shared,
    Static,
    /// The shared library, with AddressSanitizer in the program.
    Address,
}

/// Returns the archive under test. Cargo puts it beside the test program, with a hash in its name.
pub fn archive() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let beside = std::fs::read_dir(program.parent().unwrap()).unwrap().map(|entry| entry.unwrap().path());
    let archives = beside.filter(|path| {
        path.extension().is_some_and(|end| end == "a")
            && path.file_stem().is_some_and(|stem| stem.to_string_lossy().starts_with("libpapilio_capi-"))
    });
    // Other builds left the older ones.
    archives
        .max_by_key(|path| path.metadata().unwrap().modified().unwrap())
        .expect("cargo builds the archive with its tests")
}

/// Returns the folder with the shared library, which is linked once.
pub fn library() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let output = Path::new(env!("CARGO_TARGET_TMPDIR")).join("capi");
        let mut link = Command::new("sh");
        succeed(link.arg(folder().join("link.sh")).arg(archive()).arg(&output));
        output
    })
}

/// A folder for images and programs of one test.
pub struct Bench {
    pub scratch: Scratch,
}

impl Bench {
    pub fn new() -> Self {
        Self { scratch: Scratch::new(1 << 30).unwrap() }
    }

    /// Returns a path in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Compiles a program of this crate. Warnings are errors.
    pub fn compile(&self, source: &str, link: Link) -> PathBuf {
        let name = Path::new(source).file_stem().unwrap().to_str().unwrap();
        let program = self.path(&format!("{name}-{link:?}"));
        let plus = source.ends_with(".cc");
        let mut compiler = Command::new(if plus { "c++" } else { "cc" });
        compiler
            .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-g", "-D_GNU_SOURCE"])
            .arg(if plus { "-std=c++11" } else { "-std=c11" })
            .arg("-I")
            .arg(folder().join("include"))
            .arg(folder().join(source))
            .arg("-o")
            .arg(&program);
        match link {
            Link::Static => compiler.arg(archive()).args(["-lpthread", "-ldl", "-lm"]),
            _ => compiler.arg("-L").arg(library()).args(["-lpapilio", "-lpthread"]),
        };
        if link == Link::Address {
            compiler.arg("-fsanitize=address");
        }
        succeed(&mut compiler);
        program
    }

    /// Runs a program, which succeeds, and returns its output. It is killed after two minutes.
    pub fn run(&self, program: &Path, arguments: &[&str]) -> String {
        text(&succeed(self.command(&[program.to_str().unwrap()]).args(arguments)).stdout)
    }

    /// Runs a program under Valgrind, which finds neither errors nor leaks.
    pub fn valgrind(&self, program: &Path, arguments: &[&str]) -> String {
        let suppressions = format!("--suppressions={}", folder().join("tests/c/valgrind.supp").display());
        let valgrind = [
            "valgrind",
            &suppressions,
            "--quiet",
            "--error-exitcode=99",
            "--leak-check=full",
            "--errors-for-leak-kinds=definite",
            "--fair-sched=yes",
        ];
        text(&succeed(self.command(&valgrind).arg(program).args(arguments)).stdout)
    }

    /// Returns a command with the library in its path and a limit of time.
    pub fn command(&self, program: &[&str]) -> Command {
        let mut command = Command::new("timeout");
        command.args(["-k", "5", "120"]).args(program);
        command.env("LD_LIBRARY_PATH", library()).current_dir(self.scratch.path());
        command
    }
}

/// Runs a command, which succeeds.
#[track_caller]
pub fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
    output
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
