//! fs-verity on a mount: the ioctls of the tool fsverity(1), and verified reads.

use crate::world::{MOUNT, World, fail, succeed};
use papilio::{FsverityAlgorithm, FsverityOptions};
use papilio_ioctl::client::MountedPath;
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The digest that a kernel gave to 1,500,000 bytes of `seq 1 300000`.
const DIGEST: &str = "650886e7ae4c2a93649a84f88eb8b04a4dc70616de0d8a2386941fecfe417618";

fn content() -> Vec<u8> {
    let text: String = (1..=300_000).map(|number| format!("{number}\n")).collect();
    text.into_bytes()[..1_500_000].to_vec()
}

fn enable(world: &World, name: &str, options: &FsverityOptions) -> std::io::Result<()> {
    MountedPath::open(Path::new(&world.at(name))).unwrap().enable_verity(options)
}

#[test]
fn files_are_fixed_and_measured_by_ioctl() {
    let Some(world) = World::new(MOUNT) else { return };
    for options in ["opens=server", "opens=kernel", "nowriteback_cache"] {
        world.mount(&["-o", options]);
        fs::write(world.at("file"), content()).unwrap();
        let mount = MountedPath::open(Path::new(&world.at("file"))).unwrap();
        assert_eq!(mount.measure_verity().unwrap(), None, "{options}");
        enable(&world, "file", &FsverityOptions::new()).unwrap();
        let (algorithm, digest) = mount.measure_verity().unwrap().unwrap();
        let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!((algorithm, digest.as_str()), (FsverityAlgorithm::Sha256, DIGEST), "{options}");
        assert!(fs::read(world.at("file")).unwrap() == content(), "{options}");
        let again = enable(&world, "file", &FsverityOptions::new()).unwrap_err();
        assert_eq!(again.raw_os_error(), Some(Errno::EXIST.raw_os_error()), "{options}: {again}");
        let path = world.at("file");
        assert!(succeed(["verity", "measure", &path]).starts_with(&format!("sha256:{DIGEST} ")));
        succeed(["verity", "verify", &path]);
        // With a salt and a signature, which are in the caller's memory.
        fs::write(world.at("salted"), "text").unwrap();
        let salted =
            FsverityOptions::new().algorithm(FsverityAlgorithm::Sha512).salt("salt").signature(vec![5; 99]);
        enable(&world, "salted", &salted).unwrap();
        drop(mount);
        world.unmount();
        world.assert_clean();
        let at = |name: &str| format!("{}:/{name}", world.image().display());
        assert!(succeed(["verity", "measure", &at("file")]).contains(DIGEST));
        let info = papilio::FileSystem::open(world.image()).unwrap().open_file("/salted").unwrap().verity();
        let info = info.unwrap().unwrap();
        assert_eq!((info.salt, info.signature), (b"salt".to_vec(), vec![5; 99]), "{options}");
        succeed(["rm", &at("file"), &at("salted")]);
    }
}

#[test]
fn a_file_that_is_open_for_writing_is_refused() {
    let Some(world) = World::new(MOUNT) else { return };
    world.mount(&["-o", "opens=server"]);
    let mut writer = File::create(world.at("file")).unwrap();
    writer.write_all(b"text").unwrap();
    let busy = enable(&world, "file", &FsverityOptions::new()).unwrap_err();
    assert_eq!(busy.raw_os_error(), Some(Errno::TXTBSY.raw_os_error()), "{busy}");
    fail(1, "busy", ["verity", "enable", &world.at("file")]);
    writer.write_all(b" and more").unwrap();
    drop(writer);
    enable(&world, "file", &FsverityOptions::new()).unwrap();
    assert_eq!(fs::read_to_string(world.at("file")).unwrap(), "text and more");
    let directory = enable(&world, ".", &FsverityOptions::new()).unwrap_err();
    assert_eq!(directory.raw_os_error(), Some(Errno::ISDIR.raw_os_error()), "{directory}");
    world.unmount();
    world.assert_clean();
}

#[test]
fn wrong_data_is_an_error_of_the_read() {
    let Some(world) = World::new(MOUNT) else { return };
    // Without checksums, so that only the Merkle tree betrays the change.
    world.mount(&["-o", "nodatasum"]);
    fs::write(world.at("file"), content()).unwrap();
    enable(&world, "file", &FsverityOptions::new()).unwrap();
    world.unmount();
    let image = fs::read(world.image()).unwrap();
    let block = &content()[8192..12288];
    let place = image.chunks(4096).position(|other| other == block).expect("the block in the image");
    let file = File::options().write(true).open(world.image()).unwrap();
    file.write_all_at(b"!", place as u64 * 4096 + 7).unwrap();
    drop((file, image));
    world.mount(&[]);
    let file = File::open(world.at("file")).unwrap();
    let mut part = vec![0; 4096];
    file.read_exact_at(&mut part, 0).unwrap_or_else(|error| panic!("the first block: {error}"));
    let error = file.read_exact_at(&mut part, 8192).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()), "{error}");
    drop(file);
    fail(1, "input/output error", ["verity", "verify", &world.at("file")]);
    world.unmount();
    let at = format!("{}:/file", world.image().display());
    fail(1, "fs-verity: the data block has the hash", ["verity", "verify", &at]);
}
