//! Pairs of snapshots, made by the simulator's operations.

use papilio::{Compression, CompressionChoice, FileSystem, MkfsOptions, OpenOptions};
use papilio_oracle::Scratch;
use papilio_simulator::{Generator, Scope, Session};
use std::path::PathBuf;

/// Pairs of one image, at most.
pub const BATCH: u64 = 25;

/// Makes an image with pairs of snapshots; `otherN` is another snapshot of the state of `firstN`.
pub fn source(scratch: &Scratch, first_seed: u64, pairs: u64) -> PathBuf {
    let image = scratch.image("source", 2 << 30).unwrap();
    let seed = first_seed / BATCH;
    papilio::mkfs(&image, &MkfsOptions::new().node_size([16384, 4096][seed as usize % 2]).force(true))
        .unwrap();
    let compression = [Compression::Zstd, Compression::Lzo, Compression::None, Compression::Zlib];
    let mut options = OpenOptions::new().write(true).commit_interval(None);
    options = match compression[seed as usize % 4] {
        Compression::None => options,
        Compression::Lzo => options.compress(CompressionChoice::new(Compression::Lzo)),
        algorithm => options.compress_force(CompressionChoice::new(algorithm)),
    };
    let fs = FileSystem::open_with(&image, &options).unwrap();
    for pair in 0..pairs {
        let seed = first_seed + pair;
        let scope = Scope {
            inodes: 40 + (seed % 5) as usize * 20,
            file_bytes: 150_000,
            names: [12, 40][seed as usize % 2],
            moves: seed.is_multiple_of(3),
            remount_every: 0,
            capabilities: false,
            wide_links: false,
            ..Scope::default()
        };
        let base = format!("/work{pair}");
        fs.create_subvolume(&base).unwrap();
        let mut session = Session::shared(fs.clone(), base.as_bytes());
        let mut generator = Generator::new(seed, scope);
        let mut run = |operations| {
            session
                .run(&mut generator, operations)
                .unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
        };
        run(220);
        for name in ["first", "other"] {
            fs.snapshot(&base, format!("/{name}{pair}"), true).unwrap();
        }
        run([40, 120, 300][seed as usize % 3]);
        fs.snapshot(&base, format!("/second{pair}"), true).unwrap();
    }
    fs.close().unwrap();
    image
}
