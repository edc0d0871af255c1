//! `papilio run`: programs get the answers of the kernel's Btrfs on a mount.

use crate::common::{check_failure, command, text};
use crate::kernel::KernelMount;
use crate::world::{MOUNT, World, binary};
use papilio_oracle::{FileSystemSpec, Need, Scratch};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Returns the library that is preloaded, which cargo has built for these tests.
fn library() -> PathBuf {
    let folder = binary().parent().unwrap();
    let candidates = [folder.join("deps"), folder.to_owned()];
    let mut found = candidates.iter().map(|folder| folder.join("libpapilio_preload.so"));
    found.find(|path| path.exists()).expect("cargo has built the library")
}

/// Returns `papilio run` with options.
fn run(options: &[&str]) -> Command {
    let mut command = command();
    command.arg("run").args(options).stdin(Stdio::null()).env("PAPILIO_PRELOAD_LIBRARY", library());
    command
}

/// Returns a folder in which `btrfs` is our command.
fn names(world: &World) -> PathBuf {
    let names = world.beside("names");
    if !names.exists() {
        std::fs::create_dir(&names).unwrap();
        symlink(binary(), names.join("btrfs")).unwrap();
    }
    names
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mount").join(name)
}

fn lines(world: &World, mut command: Command) -> Vec<String> {
    let path = format!("{}:{}", names(world).display(), std::env::var("PATH").unwrap());
    let output = command.env("LC_ALL", "C").env("PATH", path).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
    text(&output.stdout).lines().map(str::to_owned).collect()
}

/// Runs a script in a new file system of the kernel, and in one of ours in both ways of answering,
/// and compares what it prints.
fn compare(program: &str, name: &str, least: usize) {
    let programs = ["btrfs", "findmnt", "filefrag", "python3"].map(Need::Command);
    let Some(world) = World::new(&[MOUNT, Need::KERNEL_MOUNT, &programs].concat()) else { return };
    let directory = world.directory();
    let scratch = Scratch::new(512 << 20).unwrap();
    let images = FileSystemSpec::default().make(&scratch).unwrap();
    let expected = {
        let _kernel = KernelMount::new(&images.paths()[0], &directory, "rw");
        let mut command = Command::new(program);
        command.arg(script(name)).arg(&directory);
        lines(&world, command)
    };
    assert!(expected.len() > least, "{expected:?}");
    for options in [&["--by", "preload"], &["--by", "supervisor"]] {
        std::fs::File::create(world.image()).unwrap().set_len(512 << 20).unwrap();
        crate::world::succeed(["mkfs", world.image().to_str().unwrap()]);
        world.mount_plainly(&[]);
        let mut command = run(options);
        command.arg(program).arg(script(name)).arg(&directory);
        let found = lines(&world, command);
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!(found, expected, "{options:?}");
        }
        assert_eq!(found.len(), expected.len());
        world.unmount();
        world.assert_clean();
    }
}

#[test]
fn files_and_tables_are_shown_as_by_the_kernel() {
    compare("bash", "as_btrfs.sh", 25);
}

#[test]
fn reflinks_and_extents_are_those_of_the_kernel() {
    compare("python3", "reflinks.py", 40);
}

#[test]
fn snapper_btrbk_and_duperemove_work_as_on_the_kernel() {
    let programs = ["snapper", "btrbk", "duperemove", "compsize"].map(Need::Command);
    if papilio_oracle::require(&programs).is_some() {
        compare("bash", "programs.sh", 14);
    }
}

#[test]
fn other_users_share_only_what_they_can_open() {
    let needs = [MOUNT, &[Need::Command("setpriv"), Need::Command("python3")]].concat();
    let Some(world) = World::new(&needs) else { return };
    world.mount_plainly(&[]);
    let secret = world.at("secret");
    std::fs::write(&secret, vec![7; 8192]).unwrap();
    run_in(&world, "chmod 600 secret; mkdir -m 777 open; mkdir -m 700 closed; echo all > closed/f");
    // By the numbers of our own ioctl, which names a descriptor: no right comes from a number.
    let attempt = "import fcntl, os, struct, sys\n\
        t = os.open('mine', os.O_RDWR | os.O_CREAT)\n\
        for fd in (-1, 50, int(sys.argv[1])):\n\
        \x20   try: fcntl.ioctl(t, 0x4020bd0f, struct.pack('qQQQ', fd, 0, 0, 0)); print('cloned')\n\
        \x20   except OSError as error: print(error.errno)\n";
    let user = "--reuid=65534 --regid=65534 --clear-groups";
    let line = format!("cd open && exec 9</ && setpriv {user} /usr/bin/python3 -c \"$1\" 9");
    let output = Command::new("bash")
        .args(["-c", &line, "bash", attempt])
        .current_dir(world.directory())
        .output()
        .unwrap();
    let (badf, xdev) = (rustix::io::Errno::BADF.raw_os_error(), rustix::io::Errno::XDEV.raw_os_error());
    assert_eq!(text(&output.stdout), format!("{badf}\n{badf}\n{xdev}\n"), "{}", text(&output.stderr));
    // A target of somebody else, which the user can read.
    run_in(&world, "echo target > target; chmod 644 target");
    let attempt = "import fcntl, os, struct\n\
        s = os.open('open/mine', os.O_RDWR)\n\
        t = os.open('target', os.O_RDONLY)\n\
        try: fcntl.ioctl(t, 0x4020bd0f, struct.pack('qQQQ', s, 0, 0, 0)); print('cloned')\n\
        except OSError as error: print(error.errno)\n";
    let line = format!("setpriv {user} /usr/bin/python3 -c \"$1\"");
    let output = Command::new("bash")
        .args(["-c", &line, "bash", attempt])
        .current_dir(world.directory())
        .output()
        .unwrap();
    let acces = rustix::io::Errno::ACCESS.raw_os_error();
    assert_eq!(text(&output.stdout), format!("{acces}\n"), "{}", text(&output.stderr));
    assert_eq!(std::fs::read_to_string(world.at("target")).unwrap(), "target\n");
    world.unmount();
}

fn run_in(world: &World, line: &str) -> String {
    let output = Command::new("bash").args(["-ec", line]).current_dir(world.directory()).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn static_programs_get_the_same_answers() {
    let Some(world) = World::new(&[MOUNT, &[Need::Command("gcc")]].concat()) else { return };
    let source = "#include <stdio.h>\n#include <sys/stat.h>\n#include <sys/vfs.h>\n#include <string.h>\n\
        int main(int count, char **paths) { struct stat s; struct statfs f; char line[999];\n\
        for (int i = 1; i < count; i++) { if (stat(paths[i], &s) || statfs(paths[i], &f)) return 1;\n\
        printf(\"%ld %lx\\n\", (long)s.st_ino, (long)f.f_type); }\n\
        FILE *table = fopen(\"/proc/self/mountinfo\", \"r\");\n\
        while (fgets(line, 999, table)) if (strstr(line, paths[1])) printf(\"%s\", strstr(line, \" - \"));\n\
        return 0; }\n";
    let (file, program) = (world.beside("static.c"), world.beside("static"));
    std::fs::write(&file, source).unwrap();
    let made = Command::new("gcc").arg("-static").arg(&file).arg("-o").arg(&program).output().unwrap();
    assert!(made.status.success(), "{}", text(&made.stderr));
    world.mount_plainly(&[]);
    crate::world::succeed(["subvolume", "create", &world.at("sv")]);
    let output = run(&[]).arg(&program).args([world.directory(), world.at("sv").into()]).output().unwrap();
    let found = text(&output.stdout);
    assert!(found.starts_with("256 9123683e\n256 9123683e\n - btrfs "), "{found} {}", text(&output.stderr));
    assert!(found.contains("subvolid=5,subvol=/"), "{found}");
    world.unmount();
}

/// Runs `papilio run` with a shell's line.
fn shell(by: &str, line: &str) -> Output {
    run(&["--by", by]).args(["sh", "-c", line]).output().unwrap()
}

#[test]
fn the_exit_code_is_the_programs() {
    let Some(_) = papilio_oracle::require(&[Need::Root]) else { return };
    for by in ["preload", "supervisor"] {
        assert_eq!(shell(by, "exit 7").status.code(), Some(7), "{by}");
        assert_eq!(shell(by, "echo out; echo err >&2").stdout, b"out\n", "{by}");
    }
    assert_eq!(shell("supervisor", "kill -TERM $$").status.code(), Some(128 + 15));
    let missing = run(&["/no/such/program"]).output().unwrap();
    check_failure(&missing, 127, "/no/such/program: no such program");
    check_failure(&run(&["/etc/passwd"]).output().unwrap(), 126, "no permission to run it");
    check_failure(&run(&["/etc"]).output().unwrap(), 126, "no permission to run it");
    assert_eq!(run(&[]).output().unwrap().status.code(), Some(2));
}

#[test]
fn programs_that_stay_behind_get_answers_and_hold_nothing_up() {
    let Some(world) = World::new(MOUNT) else { return };
    world.mount_plainly(&[]);
    let result = world.beside("result");
    let (at, out) = (world.directory(), result.display());
    let line = format!(
        "(sleep 1; stat -f -c %T {} > {out}.new; mv {out}.new {out}) > /dev/null 2>&1 & echo started",
        at.display()
    );
    let begun = std::time::Instant::now();
    let output = shell("supervisor", &line);
    assert_eq!(output.stdout, b"started\n");
    assert!(begun.elapsed().as_millis() < 900, "it waits for the program only");
    while !result.exists() {
        assert!(begun.elapsed().as_secs() < 60, "the program that stayed behind ends");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(std::fs::read_to_string(&result).unwrap(), "btrfs\n");
    world.unmount();
}

#[test]
fn papilios_own_programs_see_their_mounts() {
    let Some(world) = World::new(MOUNT) else { return };
    world.mount_plainly(&[]);
    for by in ["preload", "supervisor"] {
        let output =
            run(&["--by", by]).arg(binary()).args(["filesystem", "df"]).arg(world.directory()).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{by}: {}", text(&output.stderr));
    }
    world.unmount();
}
