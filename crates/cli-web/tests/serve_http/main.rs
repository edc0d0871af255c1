//! `papilio serve --http` as a process: its addresses, secrets, sandbox and end.

use papilio::{FileSystem, MkfsOptions, OpenOptions};
use papilio_oracle::{Need, require};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn papilio_web() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_papilio-web"));
    // A system call that is not in the list of the job ends the process.
    command.env("PAPILIO_SANDBOX", "kill").stdin(Stdio::null());
    command
}

fn image(folder: &Path) -> PathBuf {
    let image = folder.join("disk.img");
    papilio::mkfs(&image, &MkfsOptions::new().size(256 << 20)).unwrap();
    let fs = FileSystem::open_with(&image, &OpenOptions::new().write(true)).unwrap();
    fs.create_dir("/docs").unwrap();
    fs.write("/docs/a.txt", b"content").unwrap();
    fs.write("/docs/large", (0..200_000_u32).map(|at| (at >> 3) as u8).collect::<Vec<u8>>()).unwrap();
    fs.snapshot("/", "/before", true).unwrap();
    fs.close().unwrap();
    image
}

/// A server, which ends with this.
struct Served {
    child: Child,
    url: String,
}

impl Served {
    fn start(arguments: &[&str], image: &str) -> Self {
        let mut child = papilio_web()
            .args(["serve", "--http"])
            .args(arguments)
            .arg(image)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut url = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
        if url.is_empty() {
            let mut text = String::new();
            child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
            panic!("no server: {text}");
        }
        Self { child, url: url.trim().to_owned() }
    }

    fn authority(&self) -> &str {
        self.url.split('/').nth(2).unwrap()
    }

    fn cookie(&self) -> String {
        let port = self.authority().rsplit(':').next().unwrap();
        format!("papilio-{port}={}", self.url.split("token=").nth(1).unwrap())
    }

    /// Sends a request with the cookie, and returns the answer as text.
    fn request(&self, method: &str, target: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(self.authority()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let head = format!(
            "{method} {target} HTTP/1.1\r\nHost: {}\r\nCookie: {}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            self.authority(),
            self.cookie(),
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// Ends the server by a signal, and returns its messages.
    fn end(mut self) -> String {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < deadline, "the server did not end");
            std::thread::sleep(Duration::from_millis(20));
        };
        let mut text = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        assert!(status.success(), "{status}: {text}");
        text
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn fails(code: i32, part: &str, arguments: &[&str]) {
    let output: Output = papilio_web().arg("serve").args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(code) && text.contains(part),
        "{arguments:?}: {:?} {text}",
        output.status
    );
    assert!(output.stdout.is_empty());
}

#[test]
fn files_views_and_uploads_work_inside_the_sandbox() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let served = Served::start(&["--writable", "--listen", "127.0.0.1:0"], image.to_str().unwrap());
    for (method, target, body, part) in [
        ("GET", "/docs/a.txt", "", "content"),
        ("GET", "/", "", "Snapshots of this folder"),
        ("GET", "/docs/a.txt?view=versions", "", "1 different versions"),
        ("GET", "/docs/?download=tar", "", "application/x-tar"),
        ("GET", "/?view=usage", "", "<th scope=\"row\">/docs"),
        ("GET", "/?view=usage.svg", "", "<svg"),
        ("GET", "/?view=heatmap", "", "<th scope=\"row\">device 1</th>"),
        ("GET", "/?view=heatmap.svg", "", "<svg"),
        ("PUT", "/docs/new", "uploaded", "201 Created"),
        ("PROPFIND", "/docs/new", "", "403 Forbidden"),
        ("MKCOL", "/made", "", "201 Created"),
        (
            "LOCK",
            "/made",
            "<lockinfo xmlns='DAV:'><lockscope><exclusive/></lockscope><locktype><write/></locktype></lockinfo>",
            "200 OK",
        ),
        ("POST", "/?view=check", "", "303 See Other"),
    ] {
        let answer = served.request(method, target, body);
        let depth = method == "PROPFIND" && answer.contains("207 Multi-Status");
        assert!(answer.contains(part) || depth, "{method} {target}: {answer}");
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    while !served.request("GET", "/?view=check", "").contains("No error found.") {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(50));
    }
    let text = served.end();
    assert!(text.contains("as root would"), "{text}");
    let fs = FileSystem::open(&image).unwrap();
    assert_eq!(fs.read("/docs/new").unwrap(), b"uploaded");
    assert!(fs.metadata("/made").unwrap().is_dir());
}

#[test]
fn a_server_for_reading_leaves_the_image_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let before = fs::read(&image).unwrap();
    let place = format!("{}:/docs", image.display());
    let served = Served::start(&["--user", "1000:1000", "--listen", "127.0.0.1:0"], &place);
    assert!(served.request("GET", "/a.txt", "").ends_with("content"));
    assert!(served.request("PUT", "/a.txt", "x").contains("403 Forbidden"));
    assert!(served.request("GET", "/?view=usage", "").contains("403 Forbidden"));
    assert_eq!(served.end(), "");
    assert!(fs::read(&image).unwrap() == before);
}

#[test]
fn other_machines_need_tls_and_a_password() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let image = image.to_str().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (key, certificate, password) = (at("key.pem"), at("cert.pem"), at("password"));
    fs::write(&password, "a password\nsecond line\n").unwrap();
    let everywhere = ["--http", "--listen", "0.0.0.0:0"];
    fails(2, "other machines can reach", &[&everywhere[..], &[image]].concat());
    let without_tls = [&everywhere[..], &["--password-file", &password, image]].concat();
    fails(2, "--tls-cert", &without_tls);
    fails(2, "--tls-key", &["--http", "--tls-cert", &password, image]);
    fails(2, "cannot be used with", &["--nbd", "--writable", image]);
    fails(2, "cannot be used with", &["--http", "--writable", "--read-only", image]);
    fails(2, "number of a user", &["--http", "--user", "root", image]);
    fails(1, "no password", &["--http", "--password-file", "/dev/null", image]);
    fails(1, "/nothing", &["--http", "--listen", "127.0.0.1:0", &format!("{image}:/nothing")]);
    if require(&[Need::Command("openssl"), Need::Command("curl")]).is_none() {
        return;
    }
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
        ])
        .args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"])
        .args(["-keyout", &key, "-out", &certificate])
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let wrong = ["--http", "--listen", "127.0.0.1:0", "--tls-cert", &password, "--tls-key", &key, image];
    fails(1, "has none in PEM", &wrong);
    let options = ["--tls-cert", &certificate, "--tls-key", &key, "--password-file", &password, "--writable"];
    let served = Served::start(&[&everywhere[1..], &options].concat(), image);
    assert!(served.url.starts_with("https://") && !served.url.contains("token"), "{}", served.url);
    let port = served.authority().rsplit(':').next().unwrap().to_owned();
    let curl = |arguments: &[&str], target: &str| {
        let url = format!("https://localhost:{port}{target}");
        let output = Command::new("curl")
            .args(["-sS", "--cacert", &certificate, "-w", " %{http_code}"])
            .args(arguments)
            .arg(url)
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert_eq!(curl(&["-u", "me:a password"], "/docs/a.txt"), "content 200");
    assert!(curl(&["-u", "me:another"], "/docs/a.txt").ends_with(" 401"));
    assert!(curl(&[], "/docs/a.txt").ends_with(" 401"));
    assert!(curl(&["-u", "me:a password", "-H", "Host: evil.example"], "/docs/a.txt").ends_with(" 421"));
    assert!(curl(&["-u", "me:a password", "-T", &certificate], "/docs/up").ends_with(" 201"));
    // Plain HTTP is no request of TLS.
    let mut plain = TcpStream::connect(("127.0.0.1", port.parse().unwrap())).unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"));
    served.end();
    assert_eq!(FileSystem::open(image).unwrap().read("/docs/up").unwrap(), fs::read(&certificate).unwrap());
}

#[test]
fn a_killed_server_leaves_a_sound_image_with_what_it_answered() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let mut served = Served::start(&["--writable", "--listen", "127.0.0.1:0"], image.to_str().unwrap());
    assert!(served.request("PUT", "/docs/a.txt", "replaced").contains("204 No Content"));
    assert!(served.request("PUT", "/answered", "whole").contains("201 Created"));
    // One upload is in the middle.
    let mut stream = TcpStream::connect(served.authority()).unwrap();
    let head = format!(
        "PUT /docs/a.txt HTTP/1.1\r\nHost: {}\r\nCookie: {}\r\nContent-Length: 1000000\r\n\r\nhalf",
        served.authority(),
        served.cookie()
    );
    stream.write_all(head.as_bytes()).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    served.child.kill().unwrap();
    served.child.wait().unwrap();
    let fs = FileSystem::open_with(&image, &OpenOptions::new().write(true)).unwrap();
    assert_eq!(fs.read("/docs/a.txt").unwrap(), b"replaced");
    assert_eq!(fs.read("/answered").unwrap(), b"whole");
    fs.sync().unwrap();
    assert!(fs.check(&papilio::CheckOptions::new().data_csum(true)).unwrap().is_clean());
    fs.close().unwrap();
}
