//! WebDAV clients of others: rclone, cadaver, davfs2, curl, and the suite litmus.

use crate::world::{Wish, World, pattern};
use papilio_oracle::requirement::find_command;
use papilio_oracle::{Need, require};
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn run(command: &mut Command) -> String {
    let output: Output = command.stdin(Stdio::null()).output().unwrap();
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {text}");
    text
}

fn url(world: &World) -> String {
    format!("http://{}/", world.server().address())
}

/// Makes files of several sizes, with names that need escapes.
fn tree(folder: &Path) {
    for (name, size) in [("empty", 0), ("one byte", 1), ("ä+ü%20#?&;", 5000), ("large", 3_000_000)] {
        fs::write(folder.join(name), pattern(size)).unwrap();
    }
    for number in 0..40 {
        let below = folder.join(format!("d{}/e", number % 3));
        fs::create_dir_all(&below).unwrap();
        fs::write(below.join(format!("f{number}")), pattern(number * 100)).unwrap();
    }
}

#[test]
fn rclone_syncs_both_ways() {
    if require(&[Need::Command("rclone")]).is_none() {
        return;
    }
    let world = World::new();
    let local = world.folder.path().join("local");
    fs::create_dir(&local).unwrap();
    tree(&local);
    let obscured = run(Command::new("rclone").args(["obscure", &world.token]));
    let rclone = |arguments: &[&str]| {
        let mut command = Command::new("rclone");
        command
            .env("RCLONE_CONFIG", "")
            .env("RCLONE_CONFIG_W_TYPE", "webdav")
            .env("RCLONE_CONFIG_W_URL", url(&world));
        command.env("RCLONE_CONFIG_W_USER", "any").env("RCLONE_CONFIG_W_PASS", obscured.trim());
        run(command.args(["--retries", "1", "--transfers", "4"]).args(arguments))
    };
    let text = local.to_str().unwrap();
    rclone(&["sync", text, "W:up"]);
    rclone(&["check", "--download", text, "W:up"]);
    assert!(rclone(&["lsf", "W:up"]).contains("ä+ü%20#?&;"));
    rclone(&["copyto", "W:up/large", "W:up/copied on the server"]);
    rclone(&["moveto", "W:up/d0", "W:up/moved"]);
    fs::rename(local.join("d0"), local.join("moved")).unwrap();
    fs::copy(local.join("large"), local.join("copied on the server")).unwrap();
    rclone(&["check", "--download", text, "W:up"]);
    let back = world.folder.path().join("back");
    rclone(&["sync", "W:up", back.to_str().unwrap()]);
    rclone(&["check", text, back.to_str().unwrap()]);
    rclone(&["purge", "W:up"]);
    assert!(world.fs.metadata("/up").is_err());
    world.close();
}

#[test]
fn curl_downloads_and_goes_on() {
    if require(&[Need::Command("curl")]).is_none() {
        return;
    }
    let world = World::new();
    let user = format!("any:{}", world.token);
    let curl =
        |arguments: &[&str]| run(Command::new("curl").args(["-sS", "--fail", "-u", &user]).args(arguments));
    let part = world.folder.path().join("part");
    fs::write(&part, &pattern(1_000_000)[..400_000]).unwrap();
    curl(&["-C", "-", "-o", part.to_str().unwrap(), &format!("{}folder/data.bin", url(&world))]);
    assert!(fs::read(&part).unwrap() == pattern(1_000_000));
    curl(&["-T", part.to_str().unwrap(), "-H", "Expect: 100-continue", &format!("{}up.bin", url(&world))]);
    assert_eq!(world.fs.read("/up.bin").unwrap(), pattern(1_000_000));
    let form = format!("file=@{};filename=form.bin", part.display());
    curl(&["-F", &form, &format!("{}folder/?do=upload", url(&world))]);
    assert_eq!(world.fs.read("/folder/form.bin").unwrap(), pattern(1_000_000));
    world.close();
}

#[test]
fn cadaver_works_on_files() {
    if require(&[Need::Command("cadaver")]).is_none() {
        return;
    }
    let world = World::new();
    let home = world.folder.path().join("home");
    fs::create_dir(&home).unwrap();
    fs::write(home.join(".netrc"), format!("machine 127.0.0.1\nlogin any\npassword {}\n", world.token))
        .unwrap();
    fs::write(home.join("local"), pattern(100_000)).unwrap();
    let script = "mkcol new\nput local new/file\nlock new/file\npropset new/file colour blue\n\
        propget new/file colour\nunlock new/file\ncopy new/file new/copy\nmove new/copy new/moved\nls new\n\
        get new/moved back\ndelete new/file\nrmcol folder\nquit\n";
    let mut cadaver = Command::new("cadaver")
        .arg(url(&world))
        .env("HOME", &home)
        .current_dir(&home)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    cadaver.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    let output = cadaver.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!text.contains("failed") && text.contains("blue"), "{text}");
    assert_eq!(fs::read(home.join("back")).unwrap(), pattern(100_000));
    assert_eq!(world.fs.read("/new/moved").unwrap(), pattern(100_000));
    assert!(world.fs.metadata("/new/file").is_err() && world.fs.metadata("/folder").is_err(), "{text}");
    world.close();
}

/// A mount of davfs2, which is unmounted in any case.
struct Davfs(PathBuf);

impl Davfs {
    fn unmount(&self) -> Output {
        Command::new("umount").arg(&self.0).output().unwrap()
    }
}

impl Drop for Davfs {
    fn drop(&mut self) {
        let _ = self.unmount();
    }
}

#[test]
fn davfs2_mounts_the_export() {
    if require(&[Need::Command("mount.davfs"), Need::Root, Need::Fuse]).is_none() {
        return;
    }
    let world = World::new();
    let folder = world.folder.path();
    let (point, cache, conf, secrets) =
        (folder.join("mnt"), folder.join("cache"), folder.join("conf"), folder.join("secrets"));
    fs::create_dir(&point).unwrap();
    fs::create_dir(&cache).unwrap();
    // The mount's server runs as a user of its own.
    for (path, mode) in [(folder, 0o755), (&cache, 0o777)] {
        fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    }
    fs::write(&secrets, format!("{} any {}\n", point.display(), world.token)).unwrap();
    fs::set_permissions(&secrets, PermissionsExt::from_mode(0o600)).unwrap();
    let text = format!(
        "secrets {}\ncache_dir {}\nask_auth 0\nuse_locks 1\ndelay_upload 0\n",
        secrets.display(),
        cache.display()
    );
    fs::write(&conf, text).unwrap();
    let mut command = Command::new(find_command("mount.davfs").unwrap());
    command.arg(url(&world)).arg(&point).arg("-o").arg(format!("conf={},uid=0,gid=0", conf.display()));
    run(&mut command);
    let mounted = Davfs(point.clone());
    assert_eq!(fs::read(point.join("hello.txt")).unwrap(), b"hello, world\n");
    assert_eq!(fs::read(point.join("folder/data.bin")).unwrap(), pattern(1_000_000));
    fs::create_dir(point.join("made")).unwrap();
    fs::write(point.join("made/file"), pattern(200_000)).unwrap();
    fs::rename(point.join("hello.txt"), point.join("made/hello")).unwrap();
    // Without listing: davfs2 1.6 cannot do that on new kernels, whatever the server.
    fs::remove_file(point.join("folder/data.bin")).unwrap();
    fs::remove_dir(point.join("folder")).unwrap();
    // Uploads are complete when the mount ends.
    let ended = mounted.unmount();
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(world.fs.read("/made/file").unwrap(), pattern(200_000));
    assert_eq!(world.fs.read("/made/hello").unwrap(), b"hello, world\n");
    assert!(world.fs.metadata("/folder").is_err());
    drop(mounted);
    world.close();
}

#[test]
fn litmus_passes_every_test() {
    if require(&[Need::Command("litmus")]).is_none() {
        return;
    }
    let world = World::with(&Wish::default(), |_| ());
    let folder = world.folder.path().join("litmus");
    fs::create_dir(&folder).unwrap();
    let output = Command::new("litmus")
        .args(["-k", &url(&world), "any", &world.token])
        .current_dir(&folder)
        .env("HOME", &folder)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let summaries: Vec<&str> = text.lines().filter(|line| line.starts_with("<- summary for")).collect();
    assert_eq!(summaries.len(), 5, "{text}");
    assert!(summaries.iter().all(|line| line.contains(" 0 failed")), "{text}");
    assert!(!text.contains("WARNING"), "{text}");
    println!("{}", summaries.join("\n"));
    world.close();
}
