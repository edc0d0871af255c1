//! Runs the examples on small images.

#[path = "../../examples/check.rs"]
#[allow(dead_code)]
mod check;
#[path = "../../examples/fsync.rs"]
#[allow(dead_code)]
mod fsync;
#[path = "../../examples/in_memory.rs"]
#[allow(dead_code)]
mod in_memory;
#[path = "../../examples/make_image.rs"]
#[allow(dead_code)]
mod make_image;
#[path = "../../examples/queue.rs"]
#[allow(dead_code)]
mod queue;
#[path = "../../examples/read_image.rs"]
#[allow(dead_code)]
mod read_image;
#[path = "../../examples/scrub.rs"]
#[allow(dead_code)]
mod scrub;
#[path = "../../examples/write_and_snapshot.rs"]
#[allow(dead_code)]
mod write_and_snapshot;

use std::path::Path;
use tempfile::TempDir;

fn assert_clean(image: &Path) {
    assert!(check::check(&[image.to_path_buf()]).unwrap());
}

#[test]
fn make_image_and_read_image() {
    let scratch = TempDir::new().unwrap();
    let (source, image) = (scratch.path().join("source"), scratch.path().join("image"));
    std::fs::create_dir(&source).unwrap();
    let content = "content\n".repeat(10_000);
    std::fs::write(source.join("file"), &content).unwrap();
    make_image::make_image(&source, &image).unwrap();
    assert_clean(&image);
    assert!(scrub::scrub(std::slice::from_ref(&image)).unwrap());
    read_image::list(&image).unwrap();
    let target = scratch.path().join("target");
    read_image::copy_out(&image, Path::new("/file"), &target).unwrap();
    assert_eq!(std::fs::read_to_string(target).unwrap(), content);
}

#[test]
fn write_and_snapshot() {
    let scratch = TempDir::new().unwrap();
    let image = scratch.path().join("image");
    write_and_snapshot::write_and_snapshot(&image).unwrap();
    assert_clean(&image);
}

#[test]
fn fsync() {
    let scratch = TempDir::new().unwrap();
    let image = scratch.path().join("image");
    fsync::fsync(&image).unwrap();
    assert_clean(&image);
}

#[test]
fn queue() {
    let scratch = TempDir::new().unwrap();
    let image = scratch.path().join("image");
    queue::queue(&image).unwrap();
    assert_clean(&image);
}

#[test]
fn in_memory() {
    in_memory::in_memory().unwrap();
}

#[test]
fn check_reports_faults() {
    let scratch = TempDir::new().unwrap();
    let image = scratch.path().join("image");
    assert!(check::check(std::slice::from_ref(&image)).is_err(), "there is no image");
    write_and_snapshot::write_and_snapshot(&image).unwrap();
    // Breaks all copies of the leaf that holds the content of a file.
    let mut bytes = std::fs::read(&image).unwrap();
    let found: Vec<usize> = (0..bytes.len() - 6).filter(|&at| bytes[at..].starts_with(b"second")).collect();
    assert!(!found.is_empty());
    found.iter().for_each(|&at| bytes[at] = b'S');
    std::fs::write(&image, bytes).unwrap();
    assert!(!check::check(&[image]).unwrap());
}
