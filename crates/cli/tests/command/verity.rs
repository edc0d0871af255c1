//! `papilio verity` on images: digests as the kernel's, and clear refusals.

use crate::common::{fail, papilio, succeed_text as succeed, text};
use std::path::Path;

/// The digest that a kernel gave to 4,097 bytes of the letter b.
const DIGEST: &str = "sha256:c6d5cc0703d262023822da09bfdf7bf3f2cc8d084bcac090bf6e9089a8d0e49f";

fn new_image(folder: &Path) -> String {
    let image = folder.join("image");
    succeed(["mkfs", "--size", "300M", image.to_str().unwrap()]);
    let host = folder.join("host");
    std::fs::write(&host, vec![b'b'; 4097]).unwrap();
    succeed(["cp", host.to_str().unwrap(), &format!("{}:/file", image.display())]);
    image.to_str().unwrap().to_owned()
}

#[test]
fn files_are_fixed_measured_and_verified() {
    let folder = tempfile::tempdir().unwrap();
    let image = new_image(folder.path());
    let at = |path: &str| format!("{image}:{path}");
    fail(1, "has no fs-verity", ["verity", "measure", &at("/file")]);
    fail(1, "has no fs-verity", ["verity", "verify", &at("/file")]);
    succeed(["verity", "enable", &at("/file")]);
    assert_eq!(succeed(["verity", "measure", &at("/file")]), format!("{DIGEST} {}\n", at("/file")));
    succeed(["verity", "verify", &at("/file")]);
    fail(1, "already exists", ["verity", "enable", &at("/file")]);
    fail(1, "not permitted", ["truncate", "-s", "5", &at("/file")]);
    assert!(succeed(["inspect", "dump-super", &image]).contains("VERITY"));
    // With other parameters, and a file without content.
    succeed(["touch", &at("/empty")]);
    succeed([
        "verity",
        "enable",
        "--hash-alg",
        "sha512",
        "--salt",
        "0a0b",
        "--block-size",
        "1024",
        &at("/empty"),
    ]);
    assert!(succeed(["verity", "measure", &at("/empty")]).starts_with("sha512:"));
    succeed(["verity", "verify", &at("/empty"), &at("/file")]);
    // A copy is an ordinary file; a snapshot has the flag, too.
    succeed(["cp", &at("/file"), &at("/copy")]);
    fail(1, "has no fs-verity", ["verity", "measure", &at("/copy")]);
    succeed(["subvolume", "snapshot", &at("/"), &at("/snap")]);
    assert!(succeed(["verity", "measure", &at("/snap/file")]).starts_with(DIGEST));
    succeed(["check", "--check-data-csum", &image]);
    succeed(["rm", &at("/file")]);
    succeed(["check", &image]);
}

#[test]
fn wrong_use_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let image = new_image(folder.path());
    let at = |path: &str| format!("{image}:{path}");
    for (option, value, part) in
        [("--hash-alg", "md5", "sha256 and sha512"), ("--salt", "xyz", "hexadecimal")]
    {
        let output = papilio(["verity", "enable", option, value, &at("/file")]);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(part), "{option}: {}", text(&output.stderr));
    }
    fail(1, "power of two", ["verity", "enable", "--block-size", "3000", &at("/file")]);
    fail(1, "may have 32", ["verity", "enable", "--salt", &"00".repeat(33), &at("/file")]);
    fail(1, "o such file", ["verity", "enable", "--signature", "/nowhere", &at("/file")]);
    fail(1, "no such file", ["verity", "enable", &at("/nothing")]);
    fail(1, "is a directory", ["verity", "enable", &at("/")]);
    fail(1, "has no fs-verity", ["verity", "measure", &at("/")]);
    fail(1, "has no fs-verity", ["verity", "measure", &at("/file")]);
    succeed(["check", &image]);
}
