//! LUKS volumes that cryptsetup formats: it needs no device mapper for files.

use papilio_device::{Access, Device, FileDevice, MemoryDevice, PhysicalAddress};
use papilio_layers::LayerError;
use papilio_layers::luks::{LuksDevice, LuksHeader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

const SECRET: &[u8] = b"a secret\nof two lines";

/// Formats a file, or says why the test is skipped.
fn format(path: &Path, arguments: &[&str]) -> bool {
    let key = path.with_extension("key");
    std::fs::write(&key, SECRET).unwrap();
    std::fs::File::create(path).unwrap().set_len(24 << 20).unwrap();
    let made = Command::new("cryptsetup")
        .args(["-q", "luksFormat", "--key-file"])
        .arg(&key)
        .args(arguments)
        .arg(path)
        .stdin(Stdio::null())
        .output();
    match made {
        Ok(output) if output.status.success() => true,
        Ok(output) => panic!("cryptsetup: {}", String::from_utf8_lossy(&output.stderr)),
        Err(error) if std::env::var_os("PAPILIO_REQUIRE_ALL").is_none() => {
            eprintln!("skipped: cryptsetup: {error}");
            false
        }
        Err(error) => panic!("cryptsetup: {error}"),
    }
}

const CHEAP: [&str; 4] = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];
const SMALL: [&str; 4] = ["--luks2-keyslots-size", "512k", "--luks2-metadata-size", "16k"];

fn open(path: &Path) -> Arc<dyn Device> {
    Arc::new(FileDevice::open(path, Access::ReadWrite).unwrap())
}

/// Names, and the arguments of cryptsetup.
fn kinds() -> [(&'static str, Vec<&'static str>); 6] {
    let argon = [
        "--pbkdf",
        "argon2id",
        "--pbkdf-force-iterations",
        "4",
        "--pbkdf-memory",
        "64",
        "--pbkdf-parallel",
        "1",
    ];
    let argon_i = [
        "--pbkdf",
        "argon2i",
        "--pbkdf-force-iterations",
        "4",
        "--pbkdf-memory",
        "64",
        "--pbkdf-parallel",
        "2",
    ];
    [
        (
            "1",
            vec!["--type", "luks1", "--pbkdf-force-iterations", "1000", "-c", "aes-xts-plain64", "-s", "512"],
        ),
        (
            "1cbc",
            vec![
                "--type",
                "luks1",
                "--pbkdf-force-iterations",
                "1000",
                "-c",
                "aes-cbc-essiv:sha256",
                "-s",
                "256",
                "-h",
                "sha1",
            ],
        ),
        ("2", [&["--type", "luks2"][..], &CHEAP, &SMALL, &["--sector-size", "4096"]].concat()),
        (
            "2cbc",
            [
                &["--type", "luks2"][..],
                &CHEAP,
                &SMALL,
                &["-c", "aes-cbc-plain64", "-s", "128", "--sector-size", "1024"],
            ]
            .concat(),
        ),
        ("2id", [&["--type", "luks2"][..], &argon, &SMALL].concat()),
        ("2i", [&["--type", "luks2"][..], &argon_i, &SMALL].concat()),
    ]
}

#[test]
fn volumes_open_and_keep_what_is_written() {
    let folder = tempfile::tempdir().unwrap();
    for (name, arguments) in kinds() {
        let path = folder.path().join(name);
        if !format(&path, &arguments) {
            return;
        }
        // cryptsetup's own reading of the key. Later, this process has the lock that it waits for.
        let dumped = Command::new("cryptsetup")
            .args(["-q", "luksDump", "--dump-master-key", "--key-file"])
            .arg(path.with_extension("key"))
            .arg(&path)
            .output()
            .unwrap();
        assert!(dumped.status.success(), "{name}");
        let device = open(&path);
        let header = LuksHeader::read(&*device).unwrap();
        let wrong = header.unlock(&*device, b"another", None, "passphrase").unwrap_err();
        assert!(matches!(wrong, LayerError::WrongKey { .. }), "{wrong}");
        assert!(!wrong.to_string().contains("another"));
        let key = header.unlock(&*device, SECRET, None, "key file").unwrap();
        assert!(header.unlock(&*device, SECRET, Some(5), "key file").is_err());
        let volume = LuksDevice::new(Arc::clone(&device), name.to_owned(), &header, &key).unwrap();
        let mut random = fastrand::Rng::with_seed(2);
        let mut content = vec![0; 1 << 20];
        random.fill(&mut content);
        volume.write_at(&content, PhysicalAddress(8192)).unwrap();
        // A part of a sector.
        volume.write_at(b"part", PhysicalAddress(8192 + 1000)).unwrap();
        content[1000..1004].copy_from_slice(b"part");
        let mut found = vec![0; content.len() - 3];
        volume.read_at(&mut found, PhysicalAddress(8192 + 3)).unwrap();
        assert!(found == content[3..], "{name}");
        let mut raw = vec![0; 24 << 20];
        device.read_at(&mut raw, PhysicalAddress(0)).unwrap();
        assert!(
            !raw.windows(64).step_by(16).any(|bytes| bytes == &content[2048..2112]),
            "{name}: not encrypted"
        );
        assert!(volume.read_at(&mut [0; 2], PhysicalAddress(volume.size() - 1)).is_err());
        assert!(volume.discard(PhysicalAddress(0), 4096).is_err());
    }
}

#[test]
fn damaged_headers_are_named_and_the_second_is_used() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("volume");
    if !format(&path, &[&["--type", "luks2"][..], &CHEAP, &SMALL].concat()) {
        return;
    }
    let whole = std::fs::read(&path).unwrap();
    let memory = |bytes: &[u8]| {
        let device = MemoryDevice::new(bytes.len() as u64);
        device.write_at(bytes, PhysicalAddress(0)).unwrap();
        device
    };
    let device = memory(&whole);
    device.write_at(&[0; 4096], PhysicalAddress(0)).unwrap();
    assert!(LuksHeader::is_at(&device));
    let header = LuksHeader::read(&device).unwrap();
    assert!(header.is_secondary);
    header.unlock(&device, SECRET, None, "key file").unwrap();
    // A byte of the JSON of both.
    device.write_at(b"!", PhysicalAddress(0x4000 + 5000)).unwrap();
    let error = LuksHeader::read(&device).unwrap_err().to_string();
    assert!(error.contains("first header") && error.contains("wrong checksum"), "{error}");
    // Random damage never panics, and never opens with a wrong key.
    let mut random = fastrand::Rng::with_seed(4);
    for _ in 0..300 {
        let mut bytes = whole[..0x10000].to_vec();
        for _ in 0..random.usize(1..20) {
            let at = random.usize(..0x8000);
            bytes[at] = random.u8(..);
        }
        let _ = LuksHeader::read(&memory(&bytes));
    }
}

#[test]
fn mutated_headers_with_good_checksums_never_panic() {
    use sha2::{Digest, Sha256};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("volume");
    if !format(&path, &[&["--type", "luks2"][..], &CHEAP, &SMALL].concat()) {
        return;
    }
    let whole = std::fs::read(&path).unwrap();
    let mut random = fastrand::Rng::with_seed(5);
    for _ in 0..500 {
        let mut bytes = whole.clone();
        bytes.truncate(1 << 20);
        let end = 4096 + bytes[4096..0x4000].iter().position(|byte| *byte == 0).unwrap();
        for _ in 0..random.usize(1..4) {
            // Digits change numbers, and the JSON stays valid.
            let at = random.usize(4096..end);
            if bytes[at].is_ascii_digit() {
                bytes[at] = b'0' + random.u8(..10);
            } else if random.u8(..8) == 0 {
                bytes[at] = random.u8(32..127);
            }
        }
        bytes[448..512].fill(0);
        let sum = Sha256::digest(&bytes[..0x4000]);
        bytes[448..480].copy_from_slice(&sum);
        let device = Arc::new(MemoryDevice::new(bytes.len() as u64));
        device.write_at(&bytes, PhysicalAddress(0)).unwrap();
        if let Ok(header) = LuksHeader::read(&*device)
            && let Ok(key) = header.unlock(&*device, SECRET, None, "key file")
            && let Ok(volume) = LuksDevice::new(device, "mutated".to_owned(), &header, &key)
        {
            let _ = volume.read_at(&mut [0; 512], PhysicalAddress(0));
        }
    }
}
