//! File systems that the kernel made, and the faults that are planted into them.
//!
//! Owns [`World`] and [`Plants`].

use papilio_oracle::{FileSystemSpec, ImageSet, Scratch};
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

pub const MIB: u64 = 1 << 20;
pub const SECTOR: u64 = 4096;

/// The profiles with copies or parity: name, devices, and the most copies.
pub const PROFILES: [(&str, usize); 6] =
    [("dup", 1), ("raid1", 2), ("raid1c3", 3), ("raid10", 4), ("raid5", 3), ("raid6", 4)];

/// A file system with files of all kinds, and the content that they had.
pub struct World {
    scratch: Scratch,
    pub images: ImageSet,
    pub files: BTreeMap<PathBuf, Vec<u8>>,
}

fn bytes(random: &mut fastrand::Rng, length: usize) -> Vec<u8> {
    (0..length).map(|_| random.u8(..)).collect()
}

impl World {
    /// Makes the file system on `devices` devices, with `profile` for data and tree blocks.
    pub fn new(profile: &str, devices: usize, csum: &str) -> Self {
        let size = 400 * MIB;
        let scratch = Scratch::new(3 * size * devices as u64 / 4).unwrap();
        let spec = FileSystemSpec {
            devices,
            device_size: size,
            csum: Some(csum.to_owned()),
            data_profile: Some(profile.to_owned()),
            metadata_profile: Some(profile.to_owned()),
            ..FileSystemSpec::default()
        };
        let images = spec.make(&scratch).unwrap();
        let mounted = images.mount().unwrap();
        let root = mounted.path();
        let mut random = fastrand::Rng::with_seed(17);
        for number in 0..400usize {
            let folder = root.join(format!("d{}", number % 10));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(format!("f{number}")), bytes(&mut random, 100 + number * 97)).unwrap();
        }
        fs::write(root.join("large"), bytes(&mut random, 12 << 20)).unwrap();
        fs::write(root.join("source"), bytes(&mut random, 3_000_000)).unwrap();
        let commands = format!(
            "cd {} && touch nocow && chattr +C nocow && cat source > nocow && rm source \
             && mkdir packed && btrfs property set packed compression zstd \
             && yes compressible | head -c 3000000 > packed/file",
            root.display()
        );
        assert!(Command::new("sh").args(["-ec", &commands]).status().unwrap().success());
        mounted.sync().unwrap();
        // Holes between the extents, and tree blocks of several generations.
        for number in (0..400usize).step_by(7) {
            fs::remove_file(root.join(format!("d{}/f{number}", number % 10))).unwrap();
        }
        let files = read_all(root).into_iter().map(|(path, read)| (path, read.unwrap())).collect();
        mounted.unmount().unwrap();
        Self { scratch, images, files }
    }

    /// Returns a copy of the images.
    pub fn copy(&self) -> ImageSet {
        copy(&self.scratch, &self.images)
    }

    /// Returns some of the images as a set of their own.
    pub fn set_of(&self, images: Vec<PathBuf>) -> ImageSet {
        ImageSet::open(&self.scratch, images)
    }

    /// Returns a copy of other images of this world.
    pub fn copy_of(&self, images: &ImageSet) -> ImageSet {
        copy(&self.scratch, images)
    }
}

fn copy(scratch: &Scratch, images: &ImageSet) -> ImageSet {
    let copies = images.paths().iter().map(|from| {
        let to = scratch.unique("copy");
        let done = Command::new("cp").arg("--sparse=always").arg(from).arg(&to).status().unwrap();
        assert!(done.success());
        to
    });
    ImageSet::open(scratch, copies.collect())
}

/// Reads all files below `root`. Folders that cannot be read are left out.
pub fn read_all(root: &Path) -> BTreeMap<PathBuf, std::io::Result<Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(folder) else { continue };
        for entry in entries.map_while(Result::ok) {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(entry.path());
            } else {
                let name = entry.path().strip_prefix(root).unwrap().to_owned();
                found.insert(name, fs::read(entry.path()));
            }
        }
    }
    found
}

/// The faults of one round.
pub struct Plants {
    random: fastrand::Rng,
    /// All sectors that are not zero, by image, and those with the same content.
    sectors: Vec<(usize, u64)>,
    same: HashMap<u64, Vec<(usize, u64)>>,
}

impl Plants {
    /// Looks for the places in use.
    pub fn new(images: &ImageSet, seed: u64) -> Self {
        let mut sectors = Vec::new();
        let mut same: HashMap<u64, Vec<(usize, u64)>> = HashMap::new();
        for (number, path) in images.paths().iter().enumerate() {
            let file = File::open(path).unwrap();
            let mut buffer = vec![0; MIB as usize];
            for start in (MIB..file.metadata().unwrap().len()).step_by(MIB as usize) {
                file.read_exact_at(&mut buffer, start).unwrap();
                for (index, sector) in buffer.chunks(SECTOR as usize).enumerate() {
                    let at = start + index as u64 * SECTOR;
                    let is_superblock = at == 64 * MIB;
                    if !is_superblock && sector.iter().any(|byte| *byte != 0) {
                        sectors.push((number, at));
                        same.entry(hash(sector)).or_default().push((number, at));
                    }
                }
            }
        }
        Self { random: fastrand::Rng::with_seed(seed), sectors, same }
    }

    /// Plants `count` faults into the images, only in sectors that `chosen` accepts.
    pub fn plant_where(&mut self, images: &ImageSet, count: usize, chosen: impl Fn(&[u8]) -> bool) {
        let all = std::mem::take(&mut self.sectors);
        let files: Vec<File> = images.paths().iter().map(|path| File::open(path).unwrap()).collect();
        let mut sector = vec![0; SECTOR as usize];
        self.sectors = all
            .into_iter()
            .filter(|(image, at)| {
                files[*image].read_exact_at(&mut sector, *at).unwrap();
                chosen(&sector)
            })
            .collect();
        self.plant(images, count);
    }

    /// Overwrites up to `count` sectors, each on the first image only, and none of a row twice.
    /// Returns how many there were.
    pub fn lose_first_copies(&mut self, images: &ImageSet, count: usize) -> usize {
        let file = File::options().write(true).open(&images.paths()[0]).unwrap();
        let mut rows = std::collections::BTreeSet::new();
        let first: Vec<u64> =
            self.sectors.iter().filter(|(image, _)| *image == 0).map(|(_, at)| *at).collect();
        for _ in 0..count {
            let at = first[self.random.usize(..first.len())];
            // The two copies of DUP have the same content: one of them stays.
            let row = at / (64 << 10);
            let content = self.same.values().position(|same| same.contains(&(0, at))).unwrap();
            if rows.insert((0, row as usize)) & rows.insert((1, content)) {
                file.write_all_at(&vec![0x77; SECTOR as usize], at).unwrap();
            }
        }
        rows.len() / 2
    }

    /// Plants `count` faults into the images.
    pub fn plant(&mut self, images: &ImageSet, count: usize) {
        let files: Vec<File> = images
            .paths()
            .iter()
            .map(|path| File::options().read(true).write(true).open(path).unwrap())
            .collect();
        for _ in 0..count {
            let (image, at) = self.sectors[self.random.usize(..self.sectors.len())];
            let mut sector = vec![0; SECTOR as usize];
            files[image].read_exact_at(&mut sector, at).unwrap();
            match self.random.u8(..20) {
                // A flipped bit.
                0..=7 => {
                    sector[self.random.usize(..SECTOR as usize)] ^= 1 << self.random.u8(..8);
                    files[image].write_all_at(&sector, at).unwrap();
                }
                // A misdirected write.
                8..=12 => {
                    let (other, from) = self.sectors[self.random.usize(..self.sectors.len())];
                    files[other].read_exact_at(&mut sector, from).unwrap();
                    files[image].write_all_at(&sector, at).unwrap();
                }
                // A lost block.
                13..=17 => {
                    let length = SECTOR * self.random.u64(1..=8);
                    let length = length.min(MIB - at % MIB);
                    if !(at..at + length).contains(&(64 * MIB)) {
                        files[image].write_all_at(&vec![0; length as usize], at).unwrap();
                    }
                }
                // All copies of a sector.
                _ => {
                    for &(image, at) in self.same.get(&hash(&sector)).map_or(&[][..], Vec::as_slice) {
                        files[image].write_all_at(&vec![0x5a; SECTOR as usize], at).unwrap();
                    }
                }
            }
        }
    }
}

fn hash(bytes: &[u8]) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}
