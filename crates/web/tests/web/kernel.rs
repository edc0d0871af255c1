//! The kernel's mount of an image, after clients have changed it.

use crate::client::Client;
use crate::world::{Wish, World, pattern};
use fastrand::Rng;
use papilio_oracle::{ImageSet, Need, Scratch, require};
use std::collections::BTreeMap;

/// The files that should be there: path and content.
type Files = BTreeMap<String, Vec<u8>>;

fn change(client: &mut Client, random: &mut Rng, files: &mut Files) {
    let known: Vec<String> = files.keys().cloned().collect();
    let path = format!("/d{}/f{}", random.u8(..4), random.u8(..12));
    match (random.u8(..10), known.is_empty()) {
        (0..=4, _) | (_, true) => {
            let data = pattern(random.usize(..200_000));
            assert_eq!(client.send("PUT", &path, &[], &data).status / 100, 2);
            files.insert(path, data);
        }
        (5 | 6, _) => {
            let from = &known[random.usize(..known.len())];
            if *from == path {
                return;
            }
            assert_eq!(client.send("COPY", from, &[("Destination", &path)], b"").status / 100, 2);
            files.insert(path, files[from].clone());
        }
        (7 | 8, _) => {
            let from = &known[random.usize(..known.len())];
            if *from == path {
                return;
            }
            assert_eq!(client.send("MOVE", from, &[("Destination", &path)], b"").status / 100, 2);
            let data = files.remove(from).unwrap();
            files.insert(path, data);
        }
        _ => {
            let victim = &known[random.usize(..known.len())];
            assert_eq!(client.send("DELETE", victim, &[], b"").status, 204);
            files.remove(victim);
        }
    }
}

#[test]
fn the_kernel_sees_what_clients_wrote() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let world = World::with(&Wish::default(), |fs| {
        fs.create_subvolume("/d3").unwrap();
    });
    let (mut client, mut random, mut files) = (world.client(), Rng::with_seed(11), Files::new());
    for folder in 0..3 {
        assert_eq!(client.send("MKCOL", &format!("/d{folder}"), &[], b"").status, 201);
    }
    for _ in 0..300 {
        change(&mut client, &mut random, &mut files);
    }
    let (image, _folder) = world.close();
    let scratch = Scratch::new(16 << 20).unwrap();
    let images = ImageSet::open(&scratch, vec![image]);
    images.btrfs_check().unwrap();
    let mount = images.mount().unwrap();
    let mut seen = Files::new();
    for folder in 0..4 {
        for entry in std::fs::read_dir(mount.path().join(format!("d{folder}"))).unwrap() {
            let entry = entry.unwrap();
            let name = format!("/d{folder}/{}", entry.file_name().into_string().unwrap());
            seen.insert(name, std::fs::read(entry.path()).unwrap());
        }
    }
    assert!(seen == files, "{:?} {:?}", seen.keys(), files.keys());
    assert_eq!(std::fs::read(mount.path().join("hello.txt")).unwrap(), b"hello, world\n");
    mount.unmount().unwrap();
}
