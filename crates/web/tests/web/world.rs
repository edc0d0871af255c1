//! A file system with a server.

use crate::client::Client;
use papilio::{FileSystem, MkfsOptions, NewInode, NewKind, OpenOptions};
use papilio_web::{Export, Limits, Picture, Pictures, Secret, Server, Settings, listen};
use std::path::PathBuf;
use tempfile::TempDir;

pub struct World {
    pub server: Option<Server>,
    pub fs: FileSystem,
    pub token: String,
    pub image: PathBuf,
    pub folder: TempDir,
}

/// How a world differs from the usual one.
#[derive(Clone, Debug)]
pub struct Wish {
    pub writable: bool,
    pub user: Option<(u32, u32)>,
    pub path: &'static str,
    pub limits: Limits,
    pub size: u64,
}

impl Default for Wish {
    fn default() -> Self {
        Self { writable: true, user: None, path: "/", limits: Limits::default(), size: 256 << 20 }
    }
}

struct Drawn;

impl Pictures for Drawn {
    fn usage(&self, fs: &FileSystem) -> Result<Picture, String> {
        let svg = "<svg xmlns=\"http://www.w3.org/2000/svg\"/>".to_owned();
        Ok(Picture::new(svg, format!("<use> of {}", fs.uuid()))
            .table(&["Path", "Space"], vec![vec!["/a".into(), "1".into()]]))
    }

    fn heatmap(&self, _: &FileSystem) -> Result<Picture, String> {
        Err("no <heat>".to_owned())
    }
}

/// Bytes that tell where they are.
pub fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at / 7 + at / 251 * 3) as u8).collect()
}

impl World {
    pub fn new() -> Self {
        Self::with(&Wish::default(), |_| ())
    }

    /// A world with a file system that `fill` has filled.
    pub fn with(wish: &Wish, fill: impl FnOnce(&FileSystem)) -> Self {
        let parent = std::path::Path::new("/dev/shm");
        let folder =
            if parent.is_dir() { tempfile::tempdir_in(parent) } else { tempfile::tempdir() }.unwrap();
        let image = folder.path().join("image");
        papilio::mkfs(&image, &MkfsOptions::new().size(wish.size)).unwrap();
        let options = OpenOptions::new().write(true).cache_bytes(32 << 20);
        let fs = FileSystem::open_with(&image, &options).unwrap();
        fs.write("/hello.txt", b"hello, world\n").unwrap();
        fs.create_dir("/folder").unwrap();
        fs.write("/folder/data.bin", pattern(1_000_000)).unwrap();
        fs.write("/page.html", b"<script>alert(1)</script>").unwrap();
        fill(&fs);
        let (server, token) = Self::start(&fs, wish);
        Self { server: Some(server), fs, token, image, folder }
    }

    fn start(fs: &FileSystem, wish: &Wish) -> (Server, String) {
        let mut export = Export::new(fs.clone(), wish.path.as_bytes(), wish.writable, "image").unwrap();
        if let Some((uid, gid)) = wish.user {
            export = export.user(uid, gid);
        }
        let secret = Secret::random().unwrap();
        let token = secret.token().unwrap().to_owned();
        let mut settings = Settings::new(secret);
        settings.limits = wish.limits;
        settings.pictures = Some(Box::new(Drawn));
        let server = Server::start_on(listen("127.0.0.1:0").unwrap(), export, settings).unwrap();
        (server, token)
    }

    pub fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }

    pub fn client(&self) -> Client {
        Client::connect(self.server().address(), Some(&self.token))
    }

    pub fn stranger(&self) -> Client {
        Client::connect(self.server().address(), None)
    }

    /// Stops the server, and closes the file system.
    pub fn close(mut self) -> (PathBuf, TempDir) {
        self.server.take().unwrap().stop().unwrap();
        let Self { server, fs, image, folder, .. } = self;
        drop(server);
        fs.close().unwrap();
        (image, folder)
    }
}

/// Makes an entry of a kind.
pub fn make(fs: &FileSystem, path: &[u8], kind: NewKind<'_>, mode: u32, owner: (u32, u32)) {
    fs.create(path, &NewInode::new(kind, mode).owner(owner.0, owner.1)).unwrap();
}
