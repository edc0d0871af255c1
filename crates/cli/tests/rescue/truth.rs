//! Success is never said over a wrong or empty answer: many faults, chosen at random, in the hands
//! of each command.
//!
//! A case breaks one item, field, block, superblock or device of a file system that the kernel
//! filled, and runs one command. If the command ends with 0, its answer has every file of the sound
//! image; or btrfs-progs and the kernel find no more files in it than the command did. A repair
//! that ends with 0 leaves at least the files that could be read before it.
//!
//! A second set of cases loses whole items, changes names, flags many inodes, and breaks logs and
//! the file extents of holes.
//!
//! `PAPILIO_TRUTH_CASES` sets the number of cases and `PAPILIO_TRUTH_FROM` the first;
//! `PAPILIO_TRUTH_SEED` runs one of them alone.

use crate::surgery::{Place, items, remove, scan, seal};
use crate::world::{Files, LARGEST, World, two_devices};
use papilio::device::{Access, Device, FileDevice};
use papilio::format::{ChecksumType, ItemType, PhysicalAddress, TreeId, objectid};
use papilio_oracle::{FileSystemSpec, ImageSet, Need, Scratch, require};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Cases of a run without a number.
const CASES: u64 = 24;

/// An image with its files and the copies of its tree blocks.
struct Subject {
    name: &'static str,
    images: Vec<PathBuf>,
    files: Files,
    /// By address: the tree, the level, and the offsets of the copies on each device.
    blocks: Vec<(TreeId, Vec<(usize, u64)>)>,
    node_size: usize,
    checksum: ChecksumType,
    _scratch: Scratch,
}

/// Returns every regular file below a directory of the host, by path.
fn files_below(top: &Path) -> Files {
    let mut files = Files::new();
    let mut folders = vec![top.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                Ok(kind) if kind.is_file() && entry.metadata().is_ok_and(|data| data.len() <= LARGEST) => {
                    let path = entry.path();
                    let name = path.strip_prefix(top).unwrap().as_os_str().as_bytes().to_vec();
                    files.insert(name, fs::read(path).unwrap_or_default());
                }
                _ => {}
            }
        }
    }
    files
}

impl Subject {
    fn new(name: &'static str, images: Vec<PathBuf>, files: Files, scratch: Scratch) -> Self {
        let mut blocks: BTreeMap<u64, (TreeId, Vec<(usize, u64)>)> = BTreeMap::new();
        let used = used_blocks(&images);
        let (mut node_size, mut checksum) = (0, ChecksumType::Crc32c);
        let generation = papilio::FoundDevice::read(&images[0]).unwrap().unwrap().generation.0;
        for (device, image) in images.iter().enumerate() {
            let found = scan(image);
            (node_size, checksum) = (found.node_size as usize, found.checksum_type);
            for block in found.blocks.iter().filter(|block| {
                let is_log = block.owner == objectid::TREE_LOG && block.generation.0 > generation;
                used.contains(&block.address.0) || is_log
            }) {
                let known = blocks.entry(block.address.0).or_insert((block.owner, Vec::new()));
                known.1.push((device, block.offset.0));
            }
        }
        let blocks = blocks.into_values().collect();
        Self { name, images, files, blocks, node_size, checksum, _scratch: scratch }
    }

    /// One device, with subvolumes, snapshots and clones.
    fn one_device() -> Self {
        let world = World::make(0, None);
        let scratch = Scratch::new(512 << 20).unwrap();
        let image = scratch.unique("one");
        world.device.write_image(&image).unwrap();
        Self::new("one device", vec![image], world.files, scratch)
    }

    /// Two devices, with single data.
    fn two_devices(profile: &'static str) -> Self {
        let scratch = Scratch::new(1 << 30).unwrap();
        let images = two_devices(profile).make(&scratch).unwrap();
        let mounted = images.mount().unwrap();
        for number in 0..40usize {
            let length = if number % 4 == 0 { 4 << 20 } else { 50 + number * 400 };
            fs::write(mounted.path().join(format!("f{number}")), vec![number as u8; length]).unwrap();
        }
        let files = files_below(mounted.path());
        mounted.unmount().unwrap();
        let paths = images.paths().to_vec();
        Self::new(profile, paths, files, scratch)
    }
}

impl Subject {
    /// One device whose holes have file extents, with sparse files and hard links.
    fn holes() -> Self {
        let scratch = Scratch::new(512 << 20).unwrap();
        let features = ["^no-holes"].map(str::to_owned).to_vec();
        let spec = FileSystemSpec {
            device_size: 128 << 20,
            nodesize: Some(4096),
            features,
            runtime_features: vec!["^free-space-tree".to_owned()],
            ..FileSystemSpec::default()
        };
        let images = spec.make(&scratch).unwrap();
        let mounted = images.mount().unwrap();
        for number in 0..60usize {
            let folder = mounted.path().join(format!("folder{}", number % 4));
            fs::create_dir_all(&folder).unwrap();
            let path = folder.join(format!("sparse{number}"));
            let file = fs::File::create(&path).unwrap();
            file.set_len(200_000 + number as u64).unwrap();
            file.write_all_at(&[number as u8; 5000], (number as u64 % 5) * 30_000).unwrap();
            if number % 3 == 0 {
                fs::hard_link(&path, mounted.path().join(format!("link{number}"))).unwrap();
            }
        }
        let files = files_below(mounted.path());
        mounted.unmount().unwrap();
        let paths = images.paths().to_vec();
        Self::new("holes", paths, files, scratch)
    }

    /// One device as it was while the kernel had it mounted, with a log of fsyncs.
    fn logged() -> Self {
        let scratch = Scratch::new(512 << 20).unwrap();
        let mount_options = vec!["commit=300".to_owned()];
        let device_size = 128 << 20;
        let spec = FileSystemSpec { device_size, mount_options, ..FileSystemSpec::default() };
        let images = spec.make(&scratch).unwrap();
        let mounted = images.mount().unwrap();
        let write = |number: usize, byte: u8| {
            let path = mounted.path().join(format!("file{number}"));
            fs::write(&path, vec![byte; 100 + number * 700]).unwrap();
            fs::File::open(path).unwrap()
        };
        (0..30).for_each(|number| drop(write(number, 1)));
        mounted.sync().unwrap();
        (20..40).for_each(|number| write(number, 2).sync_all().unwrap());
        let files = files_below(mounted.path());
        let image = scratch.unique("logged");
        fs::copy(&images.paths()[0], &image).unwrap();
        mounted.unmount().unwrap();
        Self::new("logged", vec![image], files, scratch)
    }
}

/// Returns the addresses of the tree blocks in use.
fn used_blocks(images: &[PathBuf]) -> std::collections::BTreeSet<u64> {
    let options = papilio::OpenOptions::new().replay_log(false);
    let options = images[1..].iter().fold(options, |open, image| open.device(image));
    let fs = papilio::FileSystem::open_with(&images[0], &options).unwrap();
    let roots = fs.tree_roots().unwrap();
    roots
        .iter()
        .flat_map(|root| fs.tree_blocks(root).flatten().map(|block| block.address().0).collect::<Vec<_>>())
        .collect()
}

/// Bytes of a device that a case changed, to set them back.
type Saved = Vec<(usize, u64, Vec<u8>)>;

/// One case.
struct Case<'a> {
    subject: &'a Subject,
    seed: u64,
    random: fastrand::Rng,
    /// The fault, in words.
    what: String,
    /// The devices that are there.
    present: Vec<usize>,
    saved: Saved,
}

impl Case<'_> {
    fn write(&mut self, device: usize, offset: u64, bytes: &[u8]) {
        let target = FileDevice::open(&self.subject.images[device], Access::ReadWrite).unwrap();
        let mut old = vec![0; bytes.len()];
        target.read_at(&mut old, PhysicalAddress(offset)).unwrap();
        target.write_at(bytes, PhysicalAddress(offset)).unwrap();
        self.saved.push((device, offset, old));
    }

    fn read(&self, device: usize, offset: u64, length: usize) -> Vec<u8> {
        let target = FileDevice::open(&self.subject.images[device], Access::ReadOnly).unwrap();
        let mut bytes = vec![0; length];
        target.read_at(&mut bytes, PhysicalAddress(offset)).unwrap();
        bytes
    }

    /// Breaks something.
    fn plant(&mut self) {
        match self.random.u32(..10) {
            0 => self.lose_block(),
            1 => self.lose_superblocks(),
            2 | 3 if self.subject.images.len() > 1 => {
                let gone = self.random.usize(..self.subject.images.len());
                self.present.retain(|device| *device != gone);
                self.what = format!("device {gone} is gone");
                if self.random.bool() {
                    self.break_item();
                }
            }
            _ => self.break_item(),
        }
    }

    fn lose_block(&mut self) {
        let number = self.random.usize(..self.subject.blocks.len());
        self.lose(number);
    }

    /// Overwrites all copies of the block with this number.
    fn lose(&mut self, number: usize) {
        let (tree, copies) = self.subject.blocks[number].clone();
        for (device, offset) in copies {
            self.write(device, offset, &vec![0x55; self.subject.node_size]);
        }
        self.what = format!("block {number} of tree {} is lost", tree.0);
    }

    fn lose_superblocks(&mut self) {
        for device in 0..self.subject.images.len() {
            for offset in [64 << 10, 64 << 20] {
                self.write(device, offset, &[0; 4096]);
            }
        }
        self.what = "all superblocks are lost".to_owned();
    }

    /// Flips a bit of an item's key, place or data in all copies, with right checksums.
    fn break_item(&mut self) {
        let leaves: Vec<_> = self.subject.blocks.clone();
        loop {
            let (tree, copies) = self.random.choice(&leaves).unwrap().clone();
            let (device, offset) = copies[0];
            let mut block = self.read(device, offset, self.subject.node_size);
            let found = items(&block);
            let Some(item) = self.random.choice(&found).cloned() else { continue };
            let bit = 1u8 << self.random.u32(..8);
            let (part, at) = match self.random.u32(..8) {
                0 => ("key type", item.header + 8),
                1 => ("key objectid", item.header + self.random.usize(..8)),
                2 => ("key offset", item.header + 9 + self.random.usize(..8)),
                3 => ("place", item.header + 17 + self.random.usize(..8)),
                _ if item.data.is_empty() => continue,
                _ => ("data", self.random.usize(item.data.clone())),
            };
            // The content of an inline file has no checksum of its own: nothing tells.
            if part == "data" && item.key.item_type == ItemType::EXTENT_DATA && at >= item.data.start + 21 {
                continue;
            }
            block[at] ^= bit;
            seal(&mut block, self.subject.checksum);
            for (device, offset) in copies {
                self.write(device, offset, &block);
            }
            let within = at.saturating_sub(item.data.start);
            self.what +=
                &format!(" tree {}, item {}: {part} +{within} flipped by {bit:#x}", tree.0, item.key);
            return;
        }
    }

    /// Loses or changes items as a whole.
    fn plant_items(&mut self) {
        match self.random.u32(..8) {
            0 | 1 => self.lose_item(&[ItemType::DIR_ITEM, ItemType::DIR_INDEX]),
            2 => self.lose_item(&[ItemType::INODE_REF, ItemType::INODE_EXTREF]),
            3 => self.lose_item(&[ItemType::EXTENT_DATA, ItemType::EXTENT_CSUM]),
            4 => self.lose_item(&[ItemType::INODE_ITEM, ItemType::ROOT_REF, ItemType::ROOT_BACKREF]),
            5 => self.change_name(),
            6 => self.flag_inodes(),
            _ => self.break_item(),
        }
    }

    /// Changes a leaf that has an item of one of the types, in all copies.
    fn edit_leaf(&mut self, types: &[ItemType], edit: impl FnOnce(&mut Self, &mut Vec<u8>, &[Place])) {
        let mut leaves: Vec<_> = self.subject.blocks.clone();
        self.random.shuffle(&mut leaves);
        for (tree, copies) in leaves {
            let (device, offset) = copies[0];
            let mut block = self.read(device, offset, self.subject.node_size);
            let found: Vec<_> =
                items(&block).into_iter().filter(|item| types.contains(&item.key.item_type)).collect();
            if found.is_empty() {
                continue;
            }
            self.what += &format!(" tree {}:", tree.0);
            edit(self, &mut block, &found);
            seal(&mut block, self.subject.checksum);
            for (device, offset) in copies {
                self.write(device, offset, &block);
            }
            return;
        }
        self.what += " nothing, as no leaf has such an item";
    }

    fn lose_item(&mut self, types: &[ItemType]) {
        self.edit_leaf(types, |case, block, found| {
            let item = case.random.choice(found).unwrap();
            remove(block, item);
            case.what += &format!(" item {} is lost", item.key);
        });
    }

    /// Changes the last byte of a name in an entry or a reference.
    fn change_name(&mut self) {
        let types = [ItemType::DIR_ITEM, ItemType::DIR_INDEX, ItemType::INODE_REF];
        let kind = [*self.random.choice(&types).unwrap()];
        self.edit_leaf(&kind, |case, block, found| {
            let item = case.random.choice(found).unwrap();
            block[item.data.end - 1] ^= 1;
            case.what += &format!(" the name in item {} is changed", item.key);
        });
    }

    /// Sets an unknown flag of all inodes of a leaf.
    fn flag_inodes(&mut self) {
        self.edit_leaf(&[ItemType::INODE_ITEM], |case, block, found| {
            // The flags are 64 bits at 64.
            found.iter().for_each(|item| block[item.data.start + 64 + 3] |= 0x40);
            case.what += &format!(" {} inodes with an unknown flag", found.len());
        });
    }

    fn set_back(&self) {
        for (device, offset, old) in self.saved.iter().rev() {
            let target = FileDevice::open(&self.subject.images[*device], Access::ReadWrite).unwrap();
            target.write_at(old, PhysicalAddress(*offset)).unwrap();
        }
    }

    /// The arguments that name the devices which are there.
    fn devices(&self) -> (Vec<String>, String) {
        let name = |device: &usize| self.subject.images[*device].to_str().unwrap().to_owned();
        let mut options = Vec::new();
        if self.present.len() < self.subject.images.len() {
            options.push("--degraded".to_owned());
        }
        for device in &self.present[1..] {
            options.extend(["--device".to_owned(), name(device)]);
        }
        (options, name(&self.present[0]))
    }

    /// Runs `restore`. Returns whether it says success, and the files.
    fn restore(&self, folder: &Path, further: &[&str]) -> (bool, Files, String) {
        let out = folder.join("out");
        let _ = fs::remove_dir_all(&out);
        let (mut arguments, image) = self.devices();
        arguments.extend(further.iter().map(ToString::to_string));
        arguments.extend(["restore", "-s", "--no-progress", &image].map(str::to_owned));
        arguments.push(out.to_str().unwrap().to_owned());
        let output = crate::common::papilio(&arguments);
        let errors = crate::common::text(&output.stderr);
        assert!(output.status.code().is_some(), "{}: {errors}", self.name());
        (output.status.success(), files_below(&out), errors)
    }

    fn clone(&self, folder: &Path) -> (bool, Files, String) {
        let out = folder.join("clone");
        let _ = fs::remove_file(&out);
        let (mut arguments, image) = self.devices();
        arguments.extend(["rescue", "clone", &image, out.to_str().unwrap()].map(str::to_owned));
        let output = crate::common::papilio(&arguments);
        let errors = crate::common::text(&output.stderr);
        assert!(output.status.code().is_some(), "{}: {errors}", self.name());
        let files = papilio::FileSystem::open(&out).map(|fs| crate::world::contents(&fs));
        (output.status.success(), files.unwrap_or_default(), errors)
    }

    /// Lists with a scan: names without content.
    fn list(&self) -> (bool, Vec<Vec<u8>>, String) {
        let (mut arguments, image) = self.devices();
        arguments.extend(["--scan", "find", "-type", "f", "-print0"].map(str::to_owned));
        arguments.push(format!("{image}:/"));
        let output = crate::common::papilio(&arguments);
        let prefix = format!("{image}:/").into_bytes();
        let names = output.stdout.split(|byte| *byte == 0);
        let names = names.filter_map(|name| Some(name.strip_prefix(&prefix[..])?.to_vec())).collect();
        (output.status.success(), names, crate::common::text(&output.stderr))
    }

    fn name(&self) -> String {
        format!("{} seed {}: {}", self.subject.name, self.seed, self.what)
    }

    /// The files that btrfs-progs and the kernel find at best.
    fn elsewhere(&self, folder: &Path) -> usize {
        let mut best = 0;
        let out = folder.join("stock");
        let _ = fs::remove_dir_all(&out);
        fs::create_dir(&out).unwrap();
        let right = |found: &Files| {
            let same = |(path, content): &(&Vec<u8>, &Vec<u8>)| found.get(*path) == Some(content);
            self.subject.files.iter().filter(same).count()
        };
        if self.present.len() == 1 {
            let image = &self.subject.images[self.present[0]];
            let script = "ulimit -t 20; exec btrfs restore -s -i \"$0\" \"$1\" >/dev/null 2>&1 </dev/null";
            let _ = std::process::Command::new("sh").args(["-c", script]).arg(image).arg(&out).status();
            best = best.max(right(&files_below(&out)));
        }
        let images: Vec<PathBuf> =
            self.present.iter().map(|device| self.subject.images[*device].clone()).collect();
        let scratch = Scratch::new(0).unwrap();
        let set = ImageSet::open(&scratch, images);
        if let Ok(mounted) = set.mount_with(&["rescue=all,degraded".to_owned()], true) {
            best = best.max(right(&files_below(mounted.path())));
        }
        best
    }

    /// Fails if success was said and something is missing that others find.
    fn judge(&self, command: &str, said: bool, right: usize, errors: &str, folder: &Path) {
        let all = self.subject.files.len();
        if !said || right == all {
            return;
        }
        let elsewhere = self.elsewhere(folder);
        assert!(
            right >= elsewhere,
            "{}: {command} says success and has {right} of {all} files, others {elsewhere}: {errors}",
            self.name()
        );
    }

    fn run(&mut self, folder: &Path) {
        let right = |found: &Files| {
            let same = |(path, content): &(&Vec<u8>, &Vec<u8>)| found.get(*path) == Some(content);
            self.subject.files.iter().filter(same).count()
        };
        match self.seed % 5 {
            0 => {
                let (said, found, errors) = self.restore(folder, &[]);
                self.judge("restore", said, right(&found), &errors, folder);
            }
            1 => {
                let (said, found, errors) = self.restore(folder, &["--scan"]);
                self.judge("restore --scan", said, right(&found), &errors, folder);
            }
            2 => {
                let (said, found, errors) = self.clone(folder);
                self.judge("rescue clone", said, right(&found), &errors, folder);
            }
            3 => {
                let (said, names, errors) = self.list();
                let found = names
                    .iter()
                    .filter(|name| self.subject.files.contains_key(OsStr::from_bytes(name).as_bytes()))
                    .count();
                self.judge("find --scan", said, found, &errors, folder);
            }
            _ => self.repair(folder),
        }
    }

    /// A repair that says success keeps what could be read before, by us and by others.
    fn repair(&mut self, folder: &Path) {
        let right = |found: &Files| {
            let same = |(path, content): &(&Vec<u8>, &Vec<u8>)| found.get(*path) == Some(content);
            self.subject.files.iter().filter(same).count()
        };
        let (_, files_before, _) = self.restore(folder, &[]);
        let before = right(&files_before).max(self.elsewhere(folder));
        let undo = folder.join("undo");
        let (mut arguments, image) = self.devices();
        arguments.extend(["check", "--repair", "--yes", "--undo"].map(str::to_owned));
        arguments.extend([undo.to_str().unwrap().to_owned(), image]);
        let output = crate::common::papilio(&arguments);
        let (said, errors) = (output.status.success(), crate::common::text(&output.stderr));
        let (_, files_after, _) = self.restore(folder, &[]);
        let after = right(&files_after).max(if said { self.elsewhere(folder) } else { 0 });
        let sound = |found: &Files, path: &Vec<u8>| found.get(path) == self.subject.files.get(path);
        let paths = self.subject.files.keys();
        let lost = paths.filter(|path| sound(&files_before, path) && !sound(&files_after, path));
        let lost: Vec<_> = lost
            .map(|path| {
                let length = |files: &Files| files.get(path).map(Vec::len);
                let lengths = [&self.subject.files, &files_after].map(length);
                format!("{}: {lengths:?}", String::from_utf8_lossy(path))
            })
            .collect();
        if undo.exists() {
            let images = self.present.iter().map(|device| self.subject.images[*device].as_os_str());
            let undone = [OsStr::new("rescue"), OsStr::new("undo"), undo.as_os_str()];
            let undone = crate::common::papilio(undone.into_iter().chain(images));
            assert!(undone.status.success(), "{}: {}", self.name(), crate::common::text(&undone.stderr));
            fs::remove_file(&undo).unwrap();
        }
        assert!(
            !said || (after >= before && lost.is_empty()),
            "{}: the repair says success; {before} files could be read before, {after} can be now; \
             no longer {lost:#?}: {errors}{}",
            self.name(),
            crate::common::text(&output.stdout)
        );
    }
}

#[test]
fn no_command_says_success_over_a_wrong_answer() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let subjects = [Subject::one_device(), Subject::two_devices("single"), Subject::two_devices("raid0")];
    let subject_of = |seed: u64| if seed % 4 == 3 { 1 + (seed / 4 % 2) as usize } else { 0 };
    run_cases(&subjects, subject_of, |case| case.plant());
}

#[test]
fn no_command_says_success_over_a_lost_item() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let subjects = [Subject::one_device(), Subject::holes(), Subject::logged()];
    run_cases(&subjects, |seed| (seed / 5 % 3) as usize, |case| case.plant_items());
}

/// Snapshots share leaves with a subvolume that lost others.
#[test]
fn a_repair_of_one_subvolume_takes_nothing_from_its_snapshot() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let subject = Subject::one_device();
    let of_subvolumes = |(tree, _): &(TreeId, _)| objectid::is_subvolume(*tree);
    let numbers: Vec<_> =
        (0..subject.blocks.len()).filter(|number| of_subvolumes(&subject.blocks[*number])).collect();
    assert!(numbers.len() > 4, "{} blocks", numbers.len());
    let step = if std::env::var_os("PAPILIO_TRUTH_CASES").is_some() { 1 } else { 3 };
    for number in numbers.into_iter().step_by(step) {
        let folder = tempfile::tempdir().unwrap();
        let random = fastrand::Rng::with_seed(0);
        let (what, saved) = Default::default();
        let mut case = Case { subject: &subject, seed: 0, random, what, present: vec![0], saved };
        case.lose(number);
        case.repair(folder.path());
        case.set_back();
    }
}

/// Runs the cases that the environment asks for.
fn run_cases(subjects: &[Subject], subject_of: impl Fn(u64) -> usize, plant: impl Fn(&mut Case<'_>)) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let seeds = match number("PAPILIO_TRUTH_SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let from = number("PAPILIO_TRUTH_FROM").unwrap_or(0);
            from..from + number("PAPILIO_TRUTH_CASES").unwrap_or(CASES)
        }
    };
    let goes_on = number("PAPILIO_TRUTH_CASES").is_some();
    let mut failed = Vec::new();
    for seed in seeds {
        let folder = tempfile::tempdir().unwrap();
        let subject = &subjects[subject_of(seed)];
        let random = fastrand::Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let present = (0..subject.images.len()).collect();
        let what = String::new();
        let mut case = Case { subject, seed, random, what, present, saved: Vec::new() };
        plant(&mut case);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| case.run(folder.path())));
        case.set_back();
        if let Err(cause) = result {
            failed.push(case.name());
            if !goes_on {
                std::panic::resume_unwind(cause);
            }
        }
    }
    assert!(failed.is_empty(), "{} cases failed: {failed:#?}", failed.len());
}
