//! Limits that the kernel and Papilio share: the size of a file, and the extended attributes of an
//! inode.

use crate::images::{assert_clean_for_both, open, writable};
use crate::matrix::compare_with_kernel;
use papilio::{Error, File, XattrSet};
use papilio_oracle::{ImageSet, Need, Scratch, preset, require};
use rustix::fs::{SeekFrom, XattrFlags};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

const LARGEST: u64 = i64::MAX as u64;

/// The operations on a large file, by either implementation.
trait Large {
    fn write(&self, byte: u8, at: u64) -> Result<(), i32>;
    fn truncate(&self, size: u64) -> Result<(), i32>;
    fn punch(&self, at: u64, length: u64) -> Result<(), i32>;
    fn read(&self, at: u64) -> Result<Vec<u8>, i32>;
    fn size(&self) -> u64;
    fn data_after(&self, at: u64) -> Result<u64, i32>;
    fn hole_after(&self, at: u64) -> Result<u64, i32>;
}

fn errno(error: io::Error) -> i32 {
    error.raw_os_error().expect("the kernel's errors have an errno")
}

impl Large for std::fs::File {
    fn write(&self, byte: u8, at: u64) -> Result<(), i32> {
        self.write_all_at(&[byte], at).map_err(errno)
    }

    fn truncate(&self, size: u64) -> Result<(), i32> {
        self.set_len(size).map_err(errno)
    }

    fn punch(&self, at: u64, length: u64) -> Result<(), i32> {
        let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(self, flags, at, length).map_err(|error| error.raw_os_error())
    }

    fn read(&self, at: u64) -> Result<Vec<u8>, i32> {
        // The kernel refuses to read across the largest offset.
        let mut buffer = vec![0xee; 16.min(LARGEST - at) as usize];
        let read = self.read_at(&mut buffer, at).map_err(errno)?;
        buffer.truncate(read);
        Ok(buffer)
    }

    fn size(&self) -> u64 {
        self.metadata().unwrap().len()
    }

    fn data_after(&self, at: u64) -> Result<u64, i32> {
        rustix::fs::seek(self, SeekFrom::Data(at)).map_err(|error| error.raw_os_error())
    }

    fn hole_after(&self, at: u64) -> Result<u64, i32> {
        let found = rustix::fs::seek(self, SeekFrom::Hole(at)).map_err(|error| error.raw_os_error())?;
        // After data in the last sector of the largest file, the kernel returns the sector's end.
        Ok(found.min(self.size()))
    }
}

impl Large for File {
    fn write(&self, byte: u8, at: u64) -> Result<(), i32> {
        self.write_all_at(&[byte], at).map_err(|error| error.errno())
    }

    fn truncate(&self, size: u64) -> Result<(), i32> {
        self.set_len(size).map_err(|error| error.errno())
    }

    fn punch(&self, at: u64, length: u64) -> Result<(), i32> {
        self.punch_hole(at, length).map_err(|error| error.errno())
    }

    fn read(&self, at: u64) -> Result<Vec<u8>, i32> {
        let mut buffer = vec![0xee; 16];
        let read = self.read_at(&mut buffer, at).map_err(|error| error.errno())?;
        buffer.truncate(read);
        Ok(buffer)
    }

    fn size(&self) -> u64 {
        self.len()
    }

    fn data_after(&self, at: u64) -> Result<u64, i32> {
        self.seek_data(at).map_err(|error| error.errno())?.ok_or(6)
    }

    fn hole_after(&self, at: u64) -> Result<u64, i32> {
        self.seek_hole(at).map_err(|error| error.errno())
    }
}

/// Returns all that a caller sees of a large file.
fn look(file: &impl Large) -> Vec<String> {
    let mut seen = vec![format!("size {}", file.size())];
    for at in [0, 1 << 40, LARGEST - 8192, LARGEST - 4096, LARGEST - 4095, LARGEST - 20, LARGEST - 1, LARGEST]
    {
        seen.push(format!("{at}: read {:?}", file.read(at)));
        seen.push(format!("{at}: data {:?}, hole {:?}", file.data_after(at), file.hole_after(at)));
    }
    seen
}

/// Changes a large file, and returns all that a caller sees.
fn change(file: &impl Large) -> Vec<String> {
    let mut seen = Vec::new();
    let mut step = |what: &str, result: Result<(), i32>| {
        seen.push(format!("{what}: {result:?}"));
        seen.extend(look(file).into_iter().map(|line| format!("{what}: {line}")));
    };
    step("truncate to the largest size", file.truncate(LARGEST));
    step("write the last byte", file.write(1, LARGEST - 1));
    // EINVAL or EFBIG.
    assert!(file.write(1, LARGEST).is_err());
    step("write in the middle", file.write(2, 1 << 40));
    step("punch the last sector", file.punch(LARGEST - 4095, 4095));
    step("write before the last sector", file.write(3, LARGEST - 4096));
    step("shrink a little", file.truncate(LARGEST - 10));
    step("shrink", file.truncate((1 << 40) + 1));
    step("grow to the largest size", file.truncate(LARGEST));
    step("write the last byte again", file.write(4, LARGEST - 1));
    step("write the byte before", file.write(5, LARGEST - 2));
    seen
}

/// The steps that a file is left after, for the comparison of what is on disk.
fn leave(file: &impl Large, which: usize) {
    match which {
        0 => file.truncate(LARGEST).unwrap(),
        1 => file.write(7, LARGEST - 1).unwrap(),
        2 => {
            file.write(8, 0).unwrap();
            file.write(9, LARGEST - 5000).unwrap();
            file.truncate(LARGEST).unwrap();
        }
        _ => {
            file.truncate(LARGEST).unwrap();
            file.truncate(5000).unwrap();
        }
    }
}

#[test]
fn a_file_may_have_the_largest_size() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    for name in ["default", "without-no-holes", "mixed"] {
        let scratch = Scratch::new(2 << 30).unwrap();
        let images = preset(name).unwrap().make(&scratch).unwrap();
        let at = |mounted: &Path, name: &str| {
            let mut options = std::fs::OpenOptions::new();
            options.read(true).write(true).create(true).mode(0o644).open(mounted.join(name)).unwrap()
        };
        let mounted = images.mount().unwrap();
        let kernel = change(&at(mounted.path(), "changed"));
        (0..4).for_each(|which| leave(&at(mounted.path(), &format!("kernel-{which}")), which));
        let looked: Vec<_> =
            (0..4).map(|which| look(&at(mounted.path(), &format!("kernel-{which}")))).collect();
        std::fs::remove_file(mounted.path().join("changed")).unwrap();
        mounted.unmount().unwrap();

        for cache in [0, 16 << 20] {
            let fs =
                papilio::FileSystem::open_with(&images.paths()[0], &writable().cache_bytes(cache)).unwrap();
            let file = fs.create_file("/changed").unwrap();
            let ours = change(&file);
            for (ours, kernel) in ours.iter().zip(&kernel) {
                assert_eq!(ours, kernel, "{name}, cache {cache}");
            }
            assert_eq!(ours.len(), kernel.len());
            drop(file);
            fs.remove_file("/changed").unwrap();
            for (which, kernel) in looked.iter().enumerate() {
                assert_eq!(look(&fs.open_file(format!("/kernel-{which}")).unwrap()), *kernel);
                let path = format!("/papilio-{cache}-{which}");
                let file = fs.create_file(&path).unwrap();
                leave(&file, which);
                file.sync_all().unwrap();
                assert_eq!(look(&fs.open_file(&path).unwrap()), *kernel, "{name}, {path}");
            }
            fs.close().unwrap();
            let mounted = images.mount().unwrap();
            for (which, kernel) in looked.iter().enumerate() {
                let path = format!("papilio-{cache}-{which}");
                assert_eq!(look(&at(mounted.path(), &path)), *kernel, "{name}, {path}");
            }
            mounted.unmount().unwrap();
            assert_clean_for_both(&images, name);
        }
    }
}

/// A change of an attribute, and its errno.
type Change<'a> = &'a mut dyn FnMut(&str, &[u8], XattrSet) -> Result<(), i32>;

/// Sets attributes up to their limits, and returns the outcome of each.
fn fill(set: Change<'_>, node_size: usize) -> Vec<String> {
    let mut seen = Vec::new();
    let mut step = |name: &str, length: usize, how: XattrSet| {
        let result = set(name, &vec![b'v'; length], how);
        seen.push(format!("{name:.20} ({} bytes): {length} {how:?}: {result:?}", name.len()));
    };
    // Around the largest that a leaf holds, with short and with long names.
    let leaf = node_size - 101 - 25 - 30;
    for name in ["user.a", &format!("user.{}", "n".repeat(250))] {
        for length in leaf - name.len() - 2..=leaf - name.len() + 2 {
            step(name, length, XattrSet::Any);
        }
        step(name, leaf - name.len(), XattrSet::Replace);
        step(name, 10, XattrSet::Any);
        step(name, leaf - name.len(), XattrSet::Any);
    }
    for length in [65535, 65536, 65537, 100_000] {
        step("user.long", length, XattrSet::Any);
    }
    step(&format!("user.{}", "n".repeat(251)), 1, XattrSet::Any);
    step("user.", 1, XattrSet::Any);
    step("unknown.name", 1, XattrSet::Any);
    step("user.a", 1, XattrSet::Create);
    step("user.missing", 1, XattrSet::Replace);
    // Names with the same CRC-32C share an item: these differ in a multiple of its polynomial.
    for name in colliding_names() {
        step(&name, 300, XattrSet::Any);
    }
    for number in 0..3_000 {
        step(&format!("user.{number}"), number % 40, XattrSet::Any);
    }
    seen
}

/// Returns sixty-four names of one hash: six independent differences that leave the CRC as it is.
fn colliding_names() -> Vec<String> {
    let hash = papilio::format::checksum::name_hash;
    let wanted = hash(b"user.collision-000000000000");
    // Linear over GF(2): the effect of each bit in the low nibbles of the digits on the CRC.
    let base = b"user.collision-000000000000".to_vec();
    let bits: Vec<(usize, u8)> = (15..27).flat_map(|at| (0..4).map(move |bit| (at, 1 << bit))).collect();
    let mut rows: Vec<(u64, u64)> = Vec::new();
    let mut kernel = Vec::new();
    for (index, &(at, bit)) in bits.iter().enumerate() {
        let mut name = base.clone();
        name[at] ^= bit;
        let (mut effect, mut used) = (hash(&name) ^ wanted, 1_u64 << index);
        for &(row, mask) in &rows {
            if effect ^ row < effect {
                (effect, used) = (effect ^ row, used ^ mask);
            }
        }
        if effect == 0 {
            kernel.push(used);
        } else {
            rows.push((effect, used));
            rows.sort_by(|a, b| b.cmp(a));
        }
    }
    let names = (0_u32..64).map(|choice| {
        let chosen = kernel.iter().take(6).enumerate().filter(|(index, _)| choice >> index & 1 == 1);
        let mask = chosen.fold(0, |mask, (_, used)| mask ^ used);
        let mut name = base.clone();
        for (index, &(at, bit)) in bits.iter().enumerate() {
            if mask >> index & 1 == 1 {
                name[at] ^= bit;
            }
        }
        assert_eq!(hash(&name), wanted);
        String::from_utf8(name).unwrap()
    });
    names.collect()
}

#[test]
fn attributes_have_the_kernels_limits() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    for (name, node_size) in [("default", 16 << 10), ("node-4k", 4 << 10), ("node-64k", 64 << 10)] {
        let scratch = Scratch::new(2 << 30).unwrap();
        let images = preset(name).unwrap().make(&scratch).unwrap();
        let mounted = images.mount().unwrap();
        let path = mounted.path().join("kernel");
        std::fs::write(&path, b"").unwrap();
        let kernel = fill(
            &mut |name, value, how| {
                let flags = match how {
                    XattrSet::Any => XattrFlags::empty(),
                    XattrSet::Create => XattrFlags::CREATE,
                    XattrSet::Replace => XattrFlags::REPLACE,
                };
                rustix::fs::setxattr(&path, name, value, flags).map_err(|error| error.raw_os_error())
            },
            node_size,
        );
        mounted.unmount().unwrap();
        let fs = open(images.paths(), &writable()).unwrap();
        fs.create_file("/papilio").unwrap();
        let inode = fs.inode("/papilio").unwrap();
        let ours = fill(
            &mut |name, value, how| {
                inode.set_xattr(name.as_bytes(), value, how).map_err(|error: Error| error.errno())
            },
            node_size,
        );
        for (ours, kernel) in ours.iter().zip(&kernel) {
            assert_eq!(ours, kernel, "{name}");
        }
        let sorted = |path| {
            let mut all = fs.inode(path).unwrap().xattrs().unwrap();
            all.sort();
            all
        };
        let (ours, kernel) = (sorted("/papilio"), sorted("/kernel"));
        assert!(ours.len() > 1000, "{}", ours.len());
        assert!(ours == kernel, "{name}: the attributes differ");
        drop(inode);
        fs.close().unwrap();
        judge(name, &images);
    }
}

fn judge(name: &str, images: &ImageSet) {
    let report = compare_with_kernel(images);
    assert!(report.is_equal(), "{name}: {report}");
    assert_clean_for_both(images, name);
}
