//! Uploads: the content of a file while and after a client writes it.

use crate::client::Client;
use crate::world::{Wish, World, make, pattern};
use papilio::{FileSystem, NewKind, OpenOptions};
use std::time::{Duration, Instant};

#[test]
fn puts_replace_whole_files() {
    let world = World::with(&Wish::default(), |fs| {
        make(fs, b"/kept", NewKind::Regular, 0o640, (7, 8));
        fs.set_xattr("/kept", b"user.mark", b"m").unwrap();
        fs.symlink("kept", "/alias").unwrap();
    });
    let mut client = world.client();
    let data = pattern(3_000_001);
    let created = client.send("PUT", "/new.bin", &[], &data);
    assert_eq!(created.status, 201);
    let read = client.get("/new.bin");
    assert!(read.body == data && read.header("etag") == created.header("etag"));
    assert_eq!(client.send("PUT", "/alias", &[], b"through a link").status, 204);
    let kept = world.fs.inode("/kept").unwrap();
    let metadata = kept.metadata();
    assert_eq!((metadata.permissions(), metadata.uid(), metadata.gid()), (0o640, 7, 8));
    assert_eq!(kept.xattr(b"user.mark").unwrap().as_deref(), Some(&b"m"[..]));
    assert_eq!(world.fs.read("/kept").unwrap(), b"through a link");
    assert!(world.fs.symlink_metadata("/alias").unwrap().is_symlink());
    let etag = client.get("/kept").header("etag").unwrap().to_owned();
    for (name, value, status) in [
        ("If-Match", "\"other\"", 412),
        ("If-None-Match", "*", 412),
        ("If-Match", &etag[..], 204),
        ("Content-Range", "bytes 0-1/5", 400),
        ("X-OC-Mtime", "1000000000", 204),
    ] {
        assert_eq!(client.send("PUT", "/kept", &[(name, value)], b"x").status, status, "{name}");
    }
    assert_eq!(world.fs.metadata("/kept").unwrap().mtime().seconds, 1_000_000_000);
    assert_eq!(client.send("PUT", "/fresh", &[("If-None-Match", "*")], b"x").status, 201);
    let long = format!("/{}", "n".repeat(256));
    assert_eq!(client.send("PUT", &long, &[], b"x").status, 414);
}

#[test]
fn chunked_bodies_and_waiting_clients_are_served() {
    let world = World::new();
    let mut client = world.client();
    let chunked = [("Transfer-Encoding", "chunked")];
    let answer =
        client.send("PUT", "/c", &chunked, b"5;x=y\r\nhello\r\n0a\r\n, chunked!\r\n0\r\nTrailer: x\r\n\r\n");
    assert_eq!(answer.status, 201);
    assert_eq!(client.get("/c").text(), "hello, chunked!");
    for bad in ["5\r\nhello!\r\n0\r\n\r\n", "x\r\n", "-1\r\n", "10000000000000000\r\n", "5 \n", "\r\n"] {
        let mut client = world.client();
        let answer = client.send("PUT", "/bad", &chunked, bad.as_bytes());
        assert_eq!(answer.status, 400, "{bad:?}");
        assert!(client.is_closed());
    }
    assert!(world.fs.metadata("/bad").is_err());
    let authorization = client.credentials.clone().unwrap();
    let head = format!(
        "PUT /e HTTP/1.1\r\nHost: {}\r\nAuthorization: {authorization}\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n",
        world.server().address()
    );
    client.raw(head.as_bytes()).unwrap();
    // The body is sent without waiting here; `answer` skips the sign.
    client.raw(b"abc").unwrap();
    assert_eq!(client.answer(false).unwrap().status, 201);
    // Where the body is not wanted, no sign comes.
    let mut client = world.client();
    client.raw(head.replace("/e", "/missing/e").as_bytes()).unwrap();
    assert_eq!(client.answer(false).unwrap().status, 409);
}

fn begin(client: &mut Client, world: &World, target: &str, length: usize) {
    let head = format!(
        "PUT {target} HTTP/1.1\r\nHost: {}\r\nAuthorization: {}\r\nContent-Length: {length}\r\n\r\n",
        world.server().address(),
        client.credentials.clone().unwrap()
    );
    client.raw(head.as_bytes()).unwrap();
}

#[test]
fn a_client_that_goes_away_leaves_the_old_file() {
    let world = World::new();
    let mut reader = world.client();
    for cut in [0, 1, 100_000] {
        let mut client = world.client();
        begin(&mut client, &world, "/hello.txt", 1_000_000);
        client.raw(&vec![b'x'; cut]).unwrap();
        assert_eq!(reader.get("/hello.txt").text(), "hello, world\n");
        client.end();
        let answer = client.answer(false);
        assert!(answer.is_err() || answer.is_ok_and(|answer| answer.status == 400));
    }
    assert_eq!(reader.get("/hello.txt").text(), "hello, world\n");
    let (image, _folder) = world.close();
    let report =
        papilio::check(&image, &OpenOptions::new(), &papilio::CheckOptions::new().data_csum(true)).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
}

#[test]
fn many_clients_upload_at_once() {
    let world = World::new();
    let address = world.server().address();
    std::thread::scope(|scope| {
        for writer in 0..8_usize {
            let token = world.token.clone();
            scope.spawn(move || {
                let mut client = Client::connect(address, Some(&token));
                for round in 0..10 {
                    let data = vec![(writer * 10 + round) as u8; 50_000 + writer * 1000];
                    let own = client.send("PUT", &format!("/own-{writer}"), &[], &data);
                    assert!(matches!(own.status, 201 | 204), "{own:?}");
                    assert_eq!(client.get(&format!("/own-{writer}")).body, data);
                    let shared = client.send("PUT", "/shared", &[], &data);
                    assert!(matches!(shared.status, 201 | 204), "{shared:?}");
                    // A reader sees one of the uploads, whole.
                    let seen = client.get("/shared");
                    assert!(seen.is_whole && seen.body.iter().all(|byte| *byte == seen.body[0]));
                    let rank = usize::from(seen.body[0]) / 10;
                    assert_eq!(seen.body.len(), 50_000 + rank * 1000);
                }
            });
        }
    });
    world.close();
}

#[test]
fn an_answered_upload_survives_the_end_of_the_machine() {
    let world = World::new();
    let data = pattern(300_000);
    let mut client = world.client();
    assert_eq!(client.send("PUT", "/durable", &[], &data).status, 201);
    assert_eq!(client.send("PUT", "/hello.txt", &[], b"replaced").status, 204);
    // The image as it is now, while nothing was closed.
    let copy = world.folder.path().join("copy");
    std::fs::copy(&world.image, &copy).unwrap();
    let fs = FileSystem::open(&copy).unwrap();
    assert_eq!(fs.read("/durable").unwrap(), data);
    assert_eq!(fs.read("/hello.txt").unwrap(), b"replaced");
    assert!(fs.read_dir("/").unwrap().all(|entry| !entry.unwrap().file_name().starts_with(b".papilio")));
}

#[test]
fn forms_upload_and_make_folders() {
    let world = World::new();
    let mut client = world.client();
    let origin = format!("http://{}", world.server().address());
    let kind = [("Content-Type", "multipart/form-data; boundary=AaB"), ("Origin", &origin[..])];
    let part = |name: &str, content: &str| {
        format!(
            "--AaB\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\r\n{content}\r\n"
        )
    };
    let body = format!(
        "{}{}{}--AaB--\r\n",
        part("one.txt", "1"),
        part("zwei ü", &"2".repeat(200_000)),
        part("", "")
    );
    let answer = client.send("POST", "/folder/?do=upload", &kind, body.as_bytes());
    assert_eq!((answer.status, answer.header("location")), (303, Some("/folder/")));
    assert_eq!(world.fs.read("/folder/one.txt").unwrap(), b"1");
    assert_eq!(world.fs.read("/folder/zwei ü").unwrap().len(), 200_000);
    let body = "--AaB\r\nContent-Disposition: form-data; name=\"name\"\r\n\r\nnew folder\r\n--AaB--\r\n";
    assert_eq!(client.send("POST", "/folder/?do=folder", &kind, body.as_bytes()).status, 303);
    assert!(world.fs.metadata("/folder/new folder").unwrap().is_dir());
    for name in ["..", ".", "../up", "/etc/x", "a/b"] {
        let body = format!("{}--AaB--\r\n", part(name, "x"));
        assert_eq!(
            world.client().send("POST", "/folder/?do=upload", &kind, body.as_bytes()).status,
            400,
            "{name}"
        );
    }
    // Without its end, nothing is stored.
    let broken = part("broken", "x").trim_end().to_owned();
    let answer = world.client().send("POST", "/folder/?do=upload", &kind, broken.as_bytes());
    assert_eq!(answer.status, 400);
    assert!(world.fs.metadata("/folder/broken").is_err());
    let foreign = [kind[0], ("Origin", "http://evil.example")];
    assert_eq!(world.client().send("POST", "/folder/?do=upload", &foreign, b"").status, 403);
    let plain = [("Content-Type", "application/x-www-form-urlencoded")];
    assert_eq!(world.client().send("POST", "/folder/?do=upload", &plain, b"a=b").status, 415);
}

#[test]
fn a_full_file_system_keeps_the_old_file() {
    let world = World::with(&Wish { size: 128 << 20, ..Wish::default() }, |_| ());
    let mut client = world.client();
    let large = vec![7; 200 << 20];
    begin(&mut client, &world, "/hello.txt", large.len());
    // The server answers before it has read everything.
    let _ = client.raw(&large);
    let answer = client.answer(false);
    assert!(answer.is_err() || answer.is_ok_and(|answer| answer.status == 507));
    let mut client = world.client();
    assert_eq!(client.get("/hello.txt").text(), "hello, world\n");
    let deadline = Instant::now() + Duration::from_secs(20);
    while client.send("PUT", "/after", &[], b"fits").status == 507 {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn the_end_of_the_server_lets_requests_end() {
    let mut world = World::new();
    let mut idle = world.client();
    assert_eq!(idle.get("/hello.txt").status, 200);
    let mut client = world.client();
    let data = pattern(500_000);
    begin(&mut client, &world, "/late", data.len());
    client.raw(&data[..100_000]).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let server = world.server.take().unwrap();
    let stopping = std::thread::spawn(move || server.stop().unwrap());
    std::thread::sleep(Duration::from_millis(200));
    assert!(idle.is_closed());
    client.raw(&data[100_000..]).unwrap();
    let answer = client.answer(false).unwrap();
    assert_eq!((answer.status, answer.header("connection")), (201, Some("close")));
    stopping.join().unwrap();
    assert_eq!(world.fs.read("/late").unwrap(), data);
}
