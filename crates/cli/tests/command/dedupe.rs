//! `dedupe --read` and `heatmap`.

use crate::common::{assert_clean, fail, succeed, succeed_json, succeed_text};
use crate::fixture::noise;
use papilio_oracle::{FileSystemSpec, Need, Scratch, require};
use std::fs;
use std::io::BufReader;
use std::path::Path;

/// Writes files of which some parts are equal; returns their names and contents.
fn contents() -> Vec<(&'static str, Vec<u8>)> {
    let common = noise(1, 3 << 20);
    let shifted = [noise(2, 256 << 10), common.clone()].concat();
    let mut changed = common.clone();
    changed[(1 << 20) + 5] ^= 1;
    vec![
        ("a", common.clone()),
        ("b", shifted),
        ("c", changed),
        ("tail", noise(1, (1 << 20) + 777)),
        ("tail again", noise(1, (1 << 20) + 777)),
        ("other", noise(3, 1 << 20)),
        ("small", b"inline".to_vec()),
        ("small again", b"inline".to_vec()),
    ]
}

/// The bytes that can be shared: all blocks of 128 KiB but the first of each content.
fn shareable() -> u64 {
    let mut seen = std::collections::HashSet::new();
    let mut bytes = 0;
    for (_, content) in contents().iter().filter(|(_, content)| content.len() > 4096) {
        for block in content.chunks(128 << 10) {
            if !seen.insert(block.to_vec()) {
                bytes += block.len() as u64;
            }
        }
    }
    bytes
}

#[test]
fn equal_blocks_of_an_image_are_shared() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let shown = image.to_str().unwrap();
    succeed(["mkfs", "-q", "-b", "256M", shown]);
    for (name, content) in contents() {
        let host = folder.path().join("host");
        fs::write(&host, &content).unwrap();
        succeed(["cp", host.to_str().unwrap(), &format!("{shown}:/{name}")]);
    }
    let used = || {
        let rows = succeed_json(["filesystem", "df", "--json", shown]);
        let data = rows.as_array().unwrap().iter().find(|row| row["type"] == "Data").unwrap();
        data["used"].as_u64().unwrap()
    };
    let before = used();
    let root = format!("{shown}:/");
    let dry = succeed_json(["dedupe", "--read", "-n", "--json", &root]);
    assert_eq!((&dry["bytes_shared"], used()), (&shareable().into(), before));
    let done = succeed_json(["dedupe", "--read", "--json", &root]);
    assert_eq!(done["bytes_shared"], shareable());
    assert_eq!((&done["blocks_with_equal_hashes_only"], &done["files"]), (&0.into(), &8.into()));
    for (name, content) in contents() {
        assert!(succeed(["cat", &format!("{shown}:/{name}")]) == content, "{name}");
    }
    // Extents of which some part is unique stay; the file that equals another one is free.
    assert!(before - used() > 1 << 20, "{before} {}", used());
    assert!(succeed_text(["dedupe", "--read", &root]).contains(": 0.00B (0 bytes) shared"), "all is shared");
    assert_clean(&image);
    assert_eq!(crate::common::papilio(["dedupe", "-b", "5k", &root]).status.code(), Some(2));
    fail(1, "no such file", ["dedupe", &format!("{shown}:/none")]);
}

#[test]
fn equal_blocks_in_a_mount_of_the_kernel_are_shared() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let scratch = Scratch::new(600 << 20).unwrap();
    let images = FileSystemSpec::default().make(&scratch).unwrap();
    let mounted = images.mount().unwrap();
    let root = mounted.path().to_str().unwrap().to_owned();
    for (name, content) in contents() {
        fs::write(mounted.path().join(name), content).unwrap();
    }
    let done = succeed_json(["dedupe", "--read", "--json", &root]);
    assert_eq!(done["bytes_shared"], shareable());
    for (name, content) in contents() {
        assert!(fs::read(mounted.path().join(name)).unwrap() == content, "{name}");
    }
    mounted.sync().unwrap();
    assert!(succeed_text(["dedupe", "--read", &root]).contains("(0 bytes) shared"));
    fail(2, "several file systems", ["dedupe", &root, &other_image(&scratch)]);
    mounted.unmount().unwrap();
    images.btrfs_check().unwrap();
}

fn other_image(scratch: &Scratch) -> String {
    let path = scratch.image("other", 128 << 20).unwrap();
    succeed(["mkfs".as_ref(), "-q".as_ref(), path.as_os_str()]);
    format!("{}:/", path.display())
}

#[test]
fn heatmaps_show_every_device() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| folder.path().join(name).to_str().unwrap().to_owned());
    succeed(["mkfs", "-q", "-b", "256M", "-d", "raid0", &a, &b]);
    let host = folder.path().join("host");
    fs::write(&host, noise(1, 20 << 20)).unwrap();
    let picture = folder.path().join("out.svg");
    let draw = || {
        succeed(["heatmap", "--device", &b, &a, picture.to_str().unwrap()]);
        fs::read_to_string(&picture).unwrap()
    };
    let empty = draw();
    succeed(["cp", "--device", &b, host.to_str().unwrap(), &format!("{a}:/f")]);
    let filled = draw();
    for svg in [&empty, &filled] {
        assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"), "{svg}");
        assert!(svg.contains("device 1: 256.00MiB") && svg.contains("device 2: 256.00MiB"));
        assert!(svg.contains("metadata") && svg.contains("unallocated"));
    }
    // The legend has the colour of full cells once.
    let full = |svg: &str| svg.matches("#1F77B4").count();
    assert_eq!(full(&empty), 1);
    assert!(full(&filled) > 2, "both devices have cells full of data");
    let wrong = folder.path().join("out.jpg");
    fail(2, "ends in .svg or .png", ["heatmap", &a, wrong.to_str().unwrap()]);
    assert!(!Path::new(&wrong).exists());

    // The same in pixels: the colour of full cells takes more than the legend's square.
    let bitmap = folder.path().join("out.png");
    succeed(["heatmap", "--device", &b, &a, bitmap.to_str().unwrap()]);
    let decoder = png::Decoder::new(BufReader::new(fs::File::open(&bitmap).unwrap()));
    let mut reader = decoder.read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    assert_eq!(info.color_type, png::ColorType::Rgb);
    let size = format!("width=\"{}\" height=\"{}\"", info.width, info.height);
    assert!(filled.contains(&size), "{size}");
    let count = |colour: [u8; 3]| pixels.chunks(3).filter(|pixel| **pixel == colour).count();
    assert!(count([0x1f, 0x77, 0xb4]) > 14 * 14 + 2 * 49, "both devices have cells full of data");
    assert!(count([0, 0, 0]) > 500, "there is text");
}
