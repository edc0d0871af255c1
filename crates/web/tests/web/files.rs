//! GET and HEAD: files, ranges, conditions, folders, archives.

use crate::world::{Wish, World, make, pattern};
use papilio::NewKind;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;

#[test]
fn files_are_read_with_their_headers() {
    let world = World::new();
    let mut client = world.client();
    let answer = client.get("/hello.txt");
    assert_eq!((answer.status, &answer.body[..]), (200, &b"hello, world\n"[..]));
    assert_eq!(answer.header("content-type"), Some("text/plain; charset=utf-8"));
    assert_eq!(answer.header("accept-ranges"), Some("bytes"));
    assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(answer.header("referrer-policy"), Some("same-origin"));
    let disposition = "inline; filename=\"hello.txt\"; filename*=UTF-8''hello.txt";
    assert_eq!(answer.header("content-disposition"), Some(disposition));
    let etag = answer.header("etag").unwrap().to_owned();
    assert!(etag.starts_with('"') && etag.ends_with('"'), "{etag}");
    // Nothing out of the file system runs as a page of the server.
    let page = client.get("/page.html");
    assert!(page.header("content-security-policy").unwrap().starts_with("sandbox;"), "{page:?}");
    let download = client.get("/page.html?download=file");
    assert!(download.header("content-disposition").unwrap().starts_with("attachment;"));
    let head = client.send("HEAD", "/folder/data.bin", &[], b"");
    assert_eq!((head.status, head.header("content-length")), (200, Some("1000000")));
    let whole = client.get("/folder/data.bin");
    assert_eq!(whole.body, pattern(1_000_000));
    assert_eq!(client.get("/missing").status, 404);
    assert_eq!(client.get("/hello.txt/").status, 404);
    assert_eq!(client.get("/hello.txt/below").status, 404);
    // The ETag stays over a commit, and changes with the content.
    world.fs.sync().unwrap();
    assert_eq!(client.get("/hello.txt").header("etag"), Some(&etag[..]));
    client.send("PUT", "/hello.txt", &[], b"other");
    assert_ne!(client.get("/hello.txt").header("etag"), Some(&etag[..]));
}

#[test]
fn ranges_and_conditions_hold() {
    let world = World::new();
    let mut client = world.client();
    let data = pattern(1_000_000);
    let mut ranged = |range: &str, more: &[(&str, &str)]| {
        let headers = [&[("Range", range)], more].concat();
        client.send("GET", "/folder/data.bin", &headers, b"")
    };
    let part = ranged("bytes=10-19", &[]);
    assert_eq!((part.status, &part.body[..]), (206, &data[10..20]));
    assert_eq!(part.header("content-range"), Some("bytes 10-19/1000000"));
    assert_eq!(ranged("bytes=-5", &[]).body, &data[999_995..]);
    assert_eq!(ranged("bytes=999990-", &[]).body, &data[999_990..]);
    let none = ranged("bytes=1000000-", &[]);
    assert_eq!((none.status, none.header("content-range")), (416, Some("bytes */1000000")));
    assert_eq!(ranged("bytes=5-1", &[]).status, 200);
    assert_eq!(ranged("lines=1-2", &[]).body.len(), 1_000_000);
    let several = ranged("bytes=0-1,500000-500002", &[]);
    assert_eq!(several.status, 206);
    let kind = several.header("content-type").unwrap();
    let boundary = kind.strip_prefix("multipart/byteranges; boundary=").unwrap();
    let text = several.body.windows(boundary.len()).filter(|part| *part == boundary.as_bytes()).count();
    assert_eq!(text, 3);
    assert!(several.text().contains("Content-Range: bytes 500000-500002/1000000"));
    let etag = part.header("etag").unwrap();
    let modified = part.header("last-modified").unwrap();
    assert_eq!(ranged("bytes=0-0", &[("If-Range", etag)]).status, 206);
    assert_eq!(ranged("bytes=0-0", &[("If-Range", modified)]).status, 206);
    assert_eq!(ranged("bytes=0-0", &[("If-Range", "\"other\"")]).status, 200);
    assert_eq!(ranged("bytes=0-0", &[("If-Range", "Sun, 06 Nov 1994 08:49:37 GMT")]).status, 200);
    let mut conditional =
        |name: &str, value: &str| client.send("GET", "/folder/data.bin", &[(name, value)], b"");
    let same = conditional("If-None-Match", etag);
    assert_eq!((same.status, same.body.len(), same.header("etag")), (304, 0, Some(etag)));
    assert_eq!(conditional("If-Modified-Since", modified).status, 304);
    assert_eq!(conditional("If-Modified-Since", "Sun, 06 Nov 1994 08:49:37 GMT").status, 200);
    assert_eq!(conditional("If-Match", "\"other\"").status, 412);
    assert_eq!(conditional("If-Unmodified-Since", "Sun, 06 Nov 1994 08:49:37 GMT").status, 412);
}

#[test]
fn names_are_bytes_and_stay_in_their_place() {
    let hostile: [&[u8]; 6] = [
        b"a\"b<script>&.txt",
        b"\xff\xfe.bin",
        b"line\r\nSet-Cookie: a=b",
        b"%41 %2e%2e",
        "ä ü.txt".as_bytes(),
        b"?view=usage#x",
    ];
    let world = World::with(&Wish::default(), |fs| {
        for name in hostile {
            fs.write([b"/folder/", name].concat(), name).unwrap();
        }
    });
    let mut client = world.client();
    let page = client.get("/folder/").text();
    assert!(!page.contains("<script"), "{page}");
    let mut links = 0;
    for link in page.split("<th scope=\"row\"><a href=\"").skip(1) {
        let link = link.split('"').next().unwrap();
        let answer = client.get(link);
        assert_eq!(answer.status, 200, "{link}");
        let shown = answer.header("content-disposition").unwrap_or_default();
        assert!(shown.is_ascii() && answer.header("set-cookie").is_none(), "{shown}");
        links += usize::from(hostile.contains(&&answer.body[..]));
    }
    assert_eq!(links, hostile.len());
}

#[test]
fn folders_are_pages_and_archives() {
    let world = World::with(&Wish::default(), |fs| {
        fs.create_dir("/folder/deep").unwrap();
        fs.write("/folder/deep/x", b"deep").unwrap();
        fs.symlink("deep/x", "/folder/link").unwrap();
        make(fs, b"/folder/socket", NewKind::Socket, 0o644, (0, 0));
    });
    let mut client = world.client();
    let moved = client.get("/folder");
    assert_eq!((moved.status, moved.header("location")), (301, Some("/folder/")));
    let page = client.get("/folder/");
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    let policy = page.header("content-security-policy").unwrap();
    for part in ["default-src 'none'", "style-src 'self'", "form-action 'self'", "frame-ancestors 'none'"] {
        assert!(policy.contains(part), "{policy}");
    }
    let text = page.text();
    for part in [
        "<html lang=\"en\">",
        "<a class=\"skip\" href=\"#main\">",
        "<nav aria-label=\"Breadcrumb\">",
        "aria-current=\"page\"",
        "<caption>4 entries</caption>",
        "<th scope=\"col\">Name</th>",
        "976.6 KiB",
        "→ deep/x",
        "drwxr-xr-x",
        "/folder/?download=tar",
        "aria-label=\"Versions of data.bin\"",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // A link is followed in the export.
    assert_eq!(client.get("/folder/link").text(), "deep");
    let tar = client.get("/folder/?download=tar");
    assert!(tar.is_whole && tar.status == 200);
    assert_eq!(tar.header("content-type"), Some("application/x-tar"));
    assert!(tar.header("content-disposition").unwrap().contains("filename=\"folder.tar\""));
    let mut archive = tar::Archive::new(&tar.body[..]);
    let mut names = Vec::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().into_owned();
        if name.as_os_str().as_bytes() == b"folder/data.bin" {
            let mut data = Vec::new();
            entry.read_to_end(&mut data).unwrap();
            assert_eq!(data, pattern(1_000_000));
        }
        names.push(name.to_string_lossy().into_owned());
    }
    names.sort();
    assert_eq!(names, ["folder/", "folder/data.bin", "folder/deep/", "folder/deep/x", "folder/link"]);
}

#[test]
fn an_archive_that_lacks_something_has_no_end() {
    let wish = Wish { writable: false, user: Some((1000, 1000)), ..Wish::default() };
    let world = World::with(&wish, |fs| {
        make(fs, b"/folder/secret", NewKind::Regular, 0o600, (0, 0));
        make(fs, b"/mine", NewKind::Directory, 0o700, (1000, 1000));
        make(fs, b"/mine/file", NewKind::Regular, 0o600, (1000, 1000));
    });
    let mut client = world.client();
    let tar = client.get("/folder/?download=tar");
    assert!(tar.status == 200 && !tar.is_whole);
    let tar = world.client().get("/mine/?download=tar");
    assert!(tar.is_whole);
    assert_eq!(tar::Archive::new(&tar.body[..]).entries().unwrap().count(), 2);
}

#[test]
fn users_see_what_they_may() {
    let wish = Wish { user: Some((1000, 1000)), ..Wish::default() };
    let world = World::with(&wish, |fs| {
        make(fs, b"/private", NewKind::Directory, 0o700, (0, 0));
        fs.write("/private/x", b"secret").unwrap();
        make(fs, b"/folder/secret", NewKind::Regular, 0o600, (0, 0));
        make(fs, b"/mine", NewKind::Directory, 0o755, (1000, 1000));
        make(fs, b"/drop", NewKind::Directory, 0o733, (0, 0));
        fs.symlink("/private/x", "/mine/link").unwrap();
    });
    let mut client = world.client();
    for (method, target, status) in [
        ("GET", "/private/", 403),
        ("GET", "/private/x", 403),
        ("GET", "/private/y", 403),
        ("GET", "/mine/link", 403),
        ("GET", "/folder/secret", 403),
        ("GET", "/hello.txt", 200),
        ("GET", "/?view=usage", 403),
        ("GET", "/?view=check", 403),
        ("PUT", "/new", 403),
        ("PUT", "/hello.txt", 403),
        ("PUT", "/folder/new", 403),
        ("MKCOL", "/folder/new", 403),
        ("DELETE", "/hello.txt", 403),
        ("DELETE", "/folder/", 403),
        ("PROPPATCH", "/hello.txt", 400),
        ("PUT", "/mine/new", 201),
        ("PUT", "/drop/new", 201),
        ("GET", "/drop/", 403),
    ] {
        assert_eq!(client.send(method, target, &[], b"").status, status, "{method} {target}");
    }
    let copy = client.send("COPY", "/folder/secret", &[("Destination", "/mine/copy")], b"");
    assert_eq!(copy.status, 403);
    let rename = client.send("MOVE", "/hello.txt", &[("Destination", "/mine/moved")], b"");
    assert_eq!(rename.status, 403);
    assert_eq!(client.send("COPY", "/hello.txt", &[("Destination", "/mine/copy")], b"").status, 201);
    let made = world.fs.metadata("/mine/new").unwrap();
    assert_eq!((made.uid(), made.gid()), (1000, 1000));
}

#[test]
fn a_directory_below_is_the_whole_world() {
    let wish = Wish { path: "/folder", ..Wish::default() };
    let world = World::with(&wish, |fs| {
        fs.symlink("../hello.txt", "/folder/up").unwrap();
        fs.symlink("/hello.txt", "/folder/absolute").unwrap();
        fs.symlink("/data.bin", "/folder/inside").unwrap();
        fs.symlink("loop", "/folder/loop").unwrap();
        fs.symlink("..", "/folder/parent").unwrap();
    });
    let mut client = world.client();
    for (target, status) in [
        ("/data.bin", 200),
        ("/inside", 200),
        ("/parent/data.bin", 200),
        ("/parent/hello.txt", 404),
        ("/up", 404),
        ("/absolute", 404),
        ("/loop", 508),
        ("/hello.txt", 404),
        ("/folder/data.bin", 404),
    ] {
        assert_eq!(client.get(target).status, status, "{target}");
    }
    // Nor can anything be written through them.
    assert_eq!(client.send("PUT", "/up", &[], b"x").status, 201);
    assert_eq!(world.fs.read("/hello.txt").unwrap(), b"hello, world\n");
    assert_eq!(world.fs.read("/folder/hello.txt").unwrap(), b"x");
    assert_eq!(client.send("DELETE", "/", &[], b"").status, 403);
    let moved = client.send("MOVE", "/data.bin", &[("Destination", "/parent/parent/moved")], b"");
    assert_eq!(moved.status, 201);
    assert!(world.fs.metadata("/folder/moved").is_ok() && world.fs.metadata("/moved").is_err());
}

#[test]
fn large_folders_have_several_pages() {
    let world = World::with(&Wish::default(), |fs| {
        let root = fs.inode("/folder").unwrap();
        for number in 0..5100 {
            let new = papilio::NewInode::new(NewKind::Regular, 0o644);
            root.create(format!("file-{number:05}").as_bytes(), &new).unwrap();
        }
    });
    let mut client = world.client();
    let first = client.get("/folder/").text();
    let next = first.split("There are more. <a href=\"").nth(1).unwrap().split('"').next().unwrap();
    let second = client.get(next).text();
    let count = |page: &str| page.matches("<th scope=\"row\"><a href=\"/folder/").count();
    assert_eq!((count(&first), count(&second)), (5000, 101));
    assert!(!second.contains("There are more"));
}
