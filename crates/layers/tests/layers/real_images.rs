//! Arrays, groups and encrypted volumes that the real tools made: `PAPILIO_LAYERS_DIR` has them, as
//! `scripts/layer-images.sh` makes them in a guest kernel. `btrfs check` judges what is read.

use papilio_device::{Access, Device, ImageOptions, OpenOptions, PhysicalAddress};
use papilio_layers::{KeySource, LayerOptions, install};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// Copies a device to a file, and lets `btrfs check` read all of it.
fn judge(device: &Arc<dyn Device>, folder: &Path) -> Result<(), String> {
    let path = folder.join("copy");
    let mut bytes = vec![0; usize::try_from(device.size()).unwrap()];
    device.read_at(&mut bytes, PhysicalAddress(0)).map_err(|error| error.to_string())?;
    std::fs::write(&path, &bytes).unwrap();
    let checked = Command::new("btrfs").args(["check", "--check-data-csum"]).arg(&path).output().unwrap();
    std::fs::remove_file(&path).unwrap();
    match checked.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&checked.stderr).into_owned()),
    }
}

fn open(path: &Path) -> Result<Arc<dyn Device>, String> {
    let options = OpenOptions::new(Access::ReadOnly);
    options.open_image(path, &ImageOptions::default()).map_err(|error| error.to_string())
}

/// Returns the members of the array or group that `first` belongs to.
fn members(first: &Path) -> Vec<PathBuf> {
    let name = first.to_str().unwrap().strip_suffix(".0.img").unwrap();
    (0..)
        .map(|number| PathBuf::from(format!("{name}.{number}.img")))
        .take_while(|path| path.exists())
        .collect()
}

#[test]
fn images_of_the_real_tools_are_read() {
    let Some(folder) = std::env::var_os("PAPILIO_LAYERS_DIR").map(PathBuf::from) else {
        eprintln!("skipped: PAPILIO_LAYERS_DIR is not set");
        return;
    };
    install(LayerOptions { key: KeySource::File(folder.join("luks.key")), ..LayerOptions::default() });
    let work = tempfile::tempdir().unwrap();
    let mut faults = Vec::new();
    let mut good = 0;
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    let mut note = |what: String, judged: Result<(), String>| match judged {
        Ok(()) => good += 1,
        Err(error) => faults.push(format!("{what}: {error}")),
    };
    for path in entries {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if name.starts_with("luks.")
            && name.ends_with(".img")
            && !name.contains("det")
            && !name.contains("serp")
        {
            note(name, open(&path).and_then(|device| judge(&device, work.path())));
        } else if name == "st.0.img" || (name.starts_with("md.") && name.ends_with(".0.img")) {
            note(name.clone(), open(&path).and_then(|device| judge(&device, work.path())));
            let all = members(&path);
            let may_miss = match () {
                () if name.contains("raid6") => 2,
                () if name.contains("raid0") || name.contains("linear") || name.contains("stale") => 0,
                () => 1,
            };
            for one in 0..all.len() {
                for two in one..all.len() {
                    if may_miss == 0 || (one != two && may_miss < 2) {
                        continue;
                    }
                    let part = tempfile::tempdir().unwrap();
                    let left = all.iter().enumerate().filter(|(at, _)| *at != one && *at != two);
                    let mut first = None;
                    for (_, member) in left {
                        let link = part.path().join(member.file_name().unwrap());
                        symlink(member, &link).unwrap();
                        first.get_or_insert(link);
                    }
                    let opened = open(&first.unwrap()).and_then(|device| judge(&device, work.path()));
                    note(format!("{name} without {one} and {two}"), opened);
                }
            }
        }
    }
    for volume in [
        "lvm.lin.0.img@vglin/one",
        "lvm.lin.1.img@vglin/two",
        "lvm.str.0.img@vgstr/s",
        "lvm.mir.0.img@vgmir/m",
        "lvm.r1.1.img@vgr1/m",
    ] {
        note(volume.to_owned(), open(&folder.join(volume)).and_then(|device| judge(&device, work.path())));
    }
    eprintln!("{good} good\n{}", faults.join("\n"));
    assert!(faults.is_empty());
}
