//! `papilio serve --nbd` with TLS as a process: QEMU and libnbd as clients, with certificates and
//! without.

use papilio_oracle::{Need, require};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

const SIZE: u64 = 16 << 20;

/// A server, which ends with this.
struct Served {
    child: Child,
    uri: String,
}

impl Served {
    fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_papilio-web"))
            // A system call that is not in the list of the job ends the process.
            .env("PAPILIO_SANDBOX", "kill")
            .args(["serve", "--nbd", "--listen", "127.0.0.1:0"])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut uri = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut uri).unwrap();
        if uri.is_empty() {
            let mut text = String::new();
            child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
            panic!("no server: {text}");
        }
        Self { child, uri: uri.trim().to_owned() }
    }

    fn port(&self) -> &str {
        self.uri.trim_end_matches('/').rsplit(':').next().unwrap()
    }

    /// Ends the server by a signal, which it must obey.
    fn end(mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It has ended already, unless the test has failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn openssl(folder: &Path, arguments: &str) {
    let output = Command::new("openssl").current_dir(folder).args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "openssl {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Makes an authority, and certificates of it for a server and a client. A folder for clients has
/// the names that QEMU and libnbd look for.
fn certificates(folder: &Path) {
    let new = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2";
    openssl(folder, &format!("req -x509 {new} -subj /CN=authority -keyout ca-key.pem -out ca-cert.pem"));
    for (name, alternative) in [("server", "DNS:localhost,IP:127.0.0.1"), ("client", "DNS:client")] {
        openssl(
            folder,
            &format!(
                "req -x509 {new} -subj /CN={name} -addext subjectAltName={alternative} \
                 -addext basicConstraints=critical,CA:FALSE -CA ca-cert.pem -CAkey ca-key.pem \
                 -keyout {name}-key.pem -out {name}-cert.pem"
            ),
        );
    }
    for kind in ["anonymous", "known"] {
        fs::create_dir(folder.join(kind)).unwrap();
        fs::copy(folder.join("ca-cert.pem"), folder.join(kind).join("ca-cert.pem")).unwrap();
    }
    for file in ["client-cert.pem", "client-key.pem"] {
        fs::copy(folder.join(file), folder.join("known").join(file)).unwrap();
    }
}

/// Runs qemu-io on the export of a server.
fn qemu(served: &Served, certificates: &Path, commands: &[&str]) -> Output {
    let credentials =
        format!("tls-creds-x509,id=tls,endpoint=client,verify-peer=yes,dir={}", certificates.display());
    let disk =
        format!("driver=nbd,host=127.0.0.1,port={},tls-creds=tls,tls-hostname=localhost", served.port());
    let mut qemu = Command::new("qemu-io");
    qemu.args(["--object", &credentials, "--image-opts", &disk]);
    for command in commands {
        qemu.args(["-c", command]);
    }
    qemu.output().unwrap()
}

fn succeeds(output: &Output) -> bool {
    output.status.success() && !String::from_utf8_lossy(&output.stdout).contains("failed")
}

#[test]
fn clients_of_tls_read_and_write() {
    let tools = ["openssl", "qemu-io", "nbdinfo", "nbdcopy"].map(Need::Command);
    if require(&tools).is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    certificates(folder.path());
    fs::write(at("image"), vec![0; SIZE as usize]).unwrap();
    let image = at("image");
    let tls = ["--tls-cert", &at("server-cert.pem"), "--tls-key", &at("server-key.pem")].map(str::to_owned);
    let tls = tls.each_ref().map(String::as_str);

    let served = Served::start(&[&tls[..], &[&image]].concat());
    assert!(served.uri.starts_with("nbds://127.0.0.1:"), "{}", served.uri);
    let (anonymous, known) = (folder.path().join("anonymous"), folder.path().join("known"));
    let commands =
        ["write -P 7 1000000 5000000", "write -P 8 0 1M", "flush", "read -P 7 2M 3M", "read -P 8 0 1M"];
    let output = qemu(&served, &anonymous, &commands);
    assert!(succeeds(&output), "{output:?}");
    // Many requests in flight, from several connections.
    let uri = format!("{}/?tls-certificates={}", served.uri, anonymous.display());
    let bytes: Vec<u8> =
        (0..SIZE as u32 / 4).flat_map(|word| word.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    fs::write(at("source"), &bytes).unwrap();
    for arguments in [[&at("source"), &uri], [&uri, &at("copy")]] {
        let output = Command::new("nbdcopy").arg("--connections=4").args(arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    assert!(fs::read(at("copy")).unwrap() == bytes);
    let told = Command::new("nbdinfo").arg(&uri).output().unwrap();
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(told.contains("TLS") && told.contains("export-size: 16777216"), "{told}");
    // Without TLS nothing is served.
    let plain = Command::new("nbdinfo").arg(served.uri.replace("nbds://", "nbd://")).output().unwrap();
    let told = String::from_utf8_lossy(&plain.stdout).into_owned();
    assert!(!plain.status.success() && !told.contains("size"), "{plain:?}");
    served.end();
    assert!(fs::read(&image).unwrap() == bytes);

    // Only clients that the authority knows.
    let authority = at("ca-cert.pem");
    let served = Served::start(&[&tls[..], &["--tls-client-ca", &authority, "--read-only", &image]].concat());
    let read = ["read 0 1M"];
    assert!(!succeeds(&qemu(&served, &anonymous, &read)));
    let uri = format!("{}/?tls-certificates={}", served.uri, known.display());
    let told = Command::new("nbdinfo").arg(&uri).output().unwrap();
    assert!(told.status.success(), "{told:?}");
    served.end();
}

#[test]
fn wrong_files_of_tls_are_refused() {
    if require(&[Need::Command("openssl")]).is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    certificates(folder.path());
    fs::write(at("image"), vec![0; SIZE as usize]).unwrap();
    let (certificate, key, other, image) =
        (at("server-cert.pem"), at("server-key.pem"), at("client-key.pem"), at("image"));
    let none = at("none");
    for (code, part, arguments) in [
        (1, "No such file", vec!["--tls-cert", &none, "--tls-key", &key]),
        (1, "cannot use certificate and key", vec!["--tls-cert", &certificate, "--tls-key", &other]),
        (
            1,
            "has none in PEM",
            vec!["--tls-cert", &certificate, "--tls-key", &key, "--tls-client-ca", &image],
        ),
        (2, "--tls-key", vec!["--tls-cert", &certificate]),
        (2, "--tls-cert", vec!["--tls-client-ca", &certificate]),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_papilio-web"))
            .args(["serve", "--nbd", "--listen", "127.0.0.1:0"])
            .args(&arguments)
            .arg(&image)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(code) && text.contains(part), "{arguments:?}: {text}");
        assert!(output.stdout.is_empty());
    }
}
