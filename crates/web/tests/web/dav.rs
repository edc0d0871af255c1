//! The methods of WebDAV, one by one.

use crate::client::{Answer, Client};
use crate::world::{Wish, World, make};
use papilio::{NewKind, PathError};

const BODY: &str = "<?xml version=\"1.0\"?><D:propfind xmlns:D=\"DAV:\">";

fn hrefs(answer: &Answer) -> Vec<String> {
    let text = answer.text();
    text.split("<D:response><D:href>")
        .skip(1)
        .map(|part| part.split('<').next().unwrap().to_owned())
        .collect()
}

fn propfind(client: &mut Client, target: &str, depth: &str, body: &str) -> Answer {
    client.send("PROPFIND", target, &[("Depth", depth)], body.as_bytes())
}

#[test]
fn a_server_for_reading_refuses_every_change() {
    let world = World::with(&Wish { writable: false, ..Wish::default() }, |_| ());
    let mut client = world.client();
    let options = client.send("OPTIONS", "/", &[], b"");
    assert_eq!((options.status, options.header("dav")), (200, Some("1, 2")));
    assert_eq!(options.header("allow"), Some("OPTIONS, GET, HEAD, PROPFIND"));
    for method in ["PUT", "DELETE", "MKCOL", "COPY", "MOVE", "LOCK", "UNLOCK", "PROPPATCH"] {
        let answer = client.send(method, "/hello.txt", &[("Destination", "/x")], b"");
        assert_eq!(answer.status, 403, "{method}");
        assert!(answer.text().contains("read-only"), "{answer:?}");
    }
    assert_eq!(client.send("POST", "/?do=upload", &[], b"").status, 403);
    assert_eq!(client.send("POST", "/", &[], b"").status, 405);
    let unknown = client.send("BREW", "/", &[], b"");
    assert!(unknown.status == 405 && unknown.header("allow").is_some());
    assert!(!client.get("/").text().contains("<form"));
    assert_eq!(world.fs.read("/hello.txt").unwrap(), b"hello, world\n");
}

#[test]
fn properties_are_found() {
    let world = World::with(&Wish::default(), |fs| {
        fs.symlink("data.bin", "/folder/link").unwrap();
        fs.symlink(".", "/folder/circle").unwrap();
        fs.symlink("nowhere", "/folder/dangling").unwrap();
        make(fs, b"/folder/pipe", NewKind::Fifo, 0o644, (0, 0));
        fs.create_dir("/folder/a b&c").unwrap();
        fs.set_xattr("/folder", b"user.webdav.#bad<name>", b"x").unwrap();
        fs.set_xattr("/folder", b"user.webdav.#broken", b"<not").unwrap();
        fs.set_xattr("/folder", b"user.webdav.urn%3Ax#good", b"<b xmlns=\"\">y</b>").unwrap();
    });
    let mut client = world.client();
    let all = propfind(&mut client, "/folder/", "1", "");
    assert_eq!(all.status, 207);
    assert_eq!(all.header("content-type"), Some("application/xml; charset=utf-8"));
    assert_eq!(hrefs(&all), ["/folder/", "/folder/data.bin", "/folder/link", "/folder/a%20b%26c/"]);
    let text = all.text();
    assert!(text.contains("<D:resourcetype><D:collection/></D:resourcetype>"), "{text}");
    assert!(text.contains("<D:getcontentlength>1000000</D:getcontentlength>"), "{text}");
    assert!(text.contains("<good xmlns=\"urn:x\"><b xmlns=\"\">y</b></good>"), "{text}");
    assert!(!text.contains("<not") && !text.contains("bad<"), "{text}");
    let zero = propfind(&mut client, "/folder", "0", "");
    assert_eq!(hrefs(&zero), ["/folder/"]);
    let body =
        format!("{BODY}<D:prop><D:getetag/><x xmlns=\"u\"/><D:quota-available-bytes/></D:prop></D:propfind>");
    let named = propfind(&mut client, "/folder/", "0", &body).text();
    assert!(
        named.contains("200 OK") && named.contains("<x xmlns=\"u\"/>") && named.contains("404 Not Found")
    );
    assert!(named.contains("<D:quota-available-bytes>"), "{named}");
    let names = propfind(&mut client, "/hello.txt", "0", &format!("{BODY}<D:propname/></D:propfind>")).text();
    assert!(names.contains("<D:getcontentlength/>"), "{names}");
    let infinite = propfind(&mut client, "/", "infinity", "");
    assert_eq!(infinite.status, 403);
    assert!(infinite.text().contains("<D:propfind-finite-depth>"), "{infinite:?}");
    assert_eq!(client.send("PROPFIND", "/", &[], b"").status, 403);
    assert_eq!(propfind(&mut client, "/", "2", "").status, 400);
    assert_eq!(propfind(&mut client, "/", "0", "<broken").status, 400);
    assert_eq!(propfind(&mut client, "/missing", "0", "").status, 404);
    let large = format!("{BODY}{}", "<!-- -->".repeat(100_000));
    assert_eq!(propfind(&mut client, "/", "0", &large).status, 413);
}

#[test]
fn properties_are_set_all_or_none() {
    let world = World::new();
    let mut client = world.client();
    let mut patch = |changes: &str| {
        let body =
            format!("<D:propertyupdate xmlns:D=\"DAV:\" xmlns:z=\"urn:z\">{changes}</D:propertyupdate>");
        client.send("PROPPATCH", "/hello.txt", &[], body.as_bytes())
    };
    let set = "<D:set><D:prop><z:one>1 &lt; 2</z:one><z:two xml:lang=\"en\"><z:in>x</z:in></z:two></D:prop></D:set>";
    assert_eq!(patch(set).status, 207);
    let stored = world.fs.inode("/hello.txt").unwrap().xattr(b"user.webdav.urn%3Az#one").unwrap();
    assert_eq!(stored.as_deref(), Some(&b"1 &lt; 2"[..]));
    let mixed = patch(
        "<D:remove><D:prop><z:one/></D:prop></D:remove><D:set><D:prop><D:getetag>x</D:getetag></D:prop></D:set>",
    );
    let text = mixed.text();
    assert!(text.contains("424 Failed Dependency") && text.contains("403 Forbidden"), "{text}");
    assert!(text.contains("<D:cannot-modify-protected-property/>"), "{text}");
    let huge = patch(&format!("<D:set><D:prop><z:one>{}</z:one></D:prop></D:set>", "x".repeat(20_000)));
    assert!(huge.text().contains("507 Insufficient Storage"), "{huge:?}");
    let long = patch(&format!("<D:set><D:prop><z:{}>x</z:{0}></D:prop></D:set>", "n".repeat(300)));
    assert!(long.text().contains("507 Insufficient Storage"), "{long:?}");
    assert_eq!(patch("<D:set><D:prop>").status, 400);
    let mut client = world.client();
    let body = format!("{BODY}<D:prop><one xmlns=\"urn:z\"/></D:prop></D:propfind>");
    // They stay over a replacement, a move and a copy.
    client.send("PUT", "/hello.txt", &[], b"new");
    client.send("MOVE", "/hello.txt", &[("Destination", "/moved")], b"");
    client.send("COPY", "/moved", &[("Destination", "/copied")], b"");
    for target in ["/moved", "/copied"] {
        let found = propfind(&mut client, target, "0", &body).text();
        assert!(found.contains("<one xmlns=\"urn:z\">1 &lt; 2</one>"), "{found}");
    }
    let removal = "<D:propertyupdate xmlns:D=\"DAV:\"><D:remove><D:prop><one xmlns=\"urn:z\"/></D:prop></D:remove></D:propertyupdate>";
    assert!(client.send("PROPPATCH", "/moved", &[], removal.as_bytes()).text().contains("200 OK"));
    assert!(propfind(&mut client, "/moved", "0", &body).text().contains("404 Not Found"));
}

#[test]
fn folders_are_made_and_deleted() {
    let world = World::with(&Wish::default(), |fs| {
        fs.create_subvolume("/folder/sub").unwrap();
    });
    let mut client = world.client();
    for (method, target, status) in [
        ("MKCOL", "/new/", 201),
        ("MKCOL", "/new", 405),
        ("MKCOL", "/hello.txt", 405),
        ("MKCOL", "/missing/new", 409),
        ("MKCOL", "/hello.txt/new", 409),
        ("PUT", "/new/file", 201),
        ("PUT", "/new/file", 204),
        ("PUT", "/new", 405),
        ("PUT", "/new/", 409),
        ("PUT", "/missing/x", 409),
        ("DELETE", "/new/", 204),
        ("DELETE", "/new/", 404),
        ("DELETE", "/", 403),
        ("DELETE", "/folder/sub", 403),
    ] {
        assert_eq!(client.send(method, target, &[], b"").status, status, "{method} {target}");
    }
    assert_eq!(client.send("MKCOL", "/body", &[], b"<x/>").status, 415);
    // A subvolume stays, and says why.
    let partly = client.send("DELETE", "/folder", &[], b"");
    assert_eq!(partly.status, 207);
    assert!(partly.text().contains("<D:href>/folder/sub</D:href><D:status>HTTP/1.1 403"), "{partly:?}");
    assert!(world.fs.metadata("/folder/sub").is_ok());
    assert_eq!(client.send("DELETE", "/hello.txt", &[("Depth", "0")], b"").status, 204);
}

#[test]
fn deep_and_wide_trees_are_copied_moved_and_removed() {
    let world = World::with(&Wish::default(), |fs| {
        let mut path = String::from("/deep");
        for _ in 0..60 {
            fs.create_dir(&path).unwrap();
            fs.write(format!("{path}/file"), path.as_bytes()).unwrap();
            path.push_str("/d");
        }
        fs.create_dir("/deep/wide").unwrap();
        for number in 0..1200 {
            fs.write(format!("/deep/wide/{number}"), b"").unwrap();
        }
        fs.symlink("../hello.txt", "/deep/link").unwrap();
    });
    let mut client = world.client();
    let to = |target| [("Destination", target)];
    assert_eq!(client.send("COPY", "/deep", &to("/copy/"), b"").status, 201);
    assert_eq!(client.send("MOVE", "/deep/", &to("/moved"), b"").status, 201);
    let count = |path: &str| world.fs.walk(path).map_or(0, Iterator::count);
    assert_eq!((count("/copy"), count("/moved"), count("/deep")), (1322, 1322, 0));
    assert_eq!(world.fs.read_link("/copy/link").unwrap(), b"../hello.txt");
    assert_eq!(client.send("COPY", "/moved/", &[("Destination", "/flat"), ("Depth", "0")], b"").status, 201);
    assert_eq!(count("/flat"), 1);
    for (method, from, to, overwrite, status) in [
        ("COPY", "/copy", "/flat", "F", 412),
        ("COPY", "/copy", "/copy/d/inside", "T", 409),
        ("MOVE", "/copy", "/copy/inside", "T", 409),
        ("MOVE", "/copy/d", "/copy", "T", 409),
        ("COPY", "/copy", "/copy", "T", 403),
        ("COPY", "/missing", "/x", "T", 404),
        ("COPY", "/copy", "/missing/x", "T", 409),
        ("COPY", "/copy", "http://elsewhere.example/x", "T", 502),
        ("COPY", "/copy", "/../x", "T", 400),
        ("COPY", "/copy", "/x", "?", 201),
        ("MOVE", "/copy", "/", "T", 403),
        ("MOVE", "/copy", "/flat", "T", 204),
        ("COPY", "/hello.txt", "/flat", "T", 204),
        ("MOVE", "/moved", "/flat", "T", 204),
    ] {
        let headers: &[(&str, &str)] = match overwrite {
            "?" => &[("Destination", to)],
            overwrite => &[("Destination", to), ("Overwrite", overwrite)],
        };
        assert_eq!(client.send(method, from, headers, b"").status, status, "{method} {from} {to}");
    }
    assert_eq!(client.send("COPY", "/hello.txt", &[], b"").status, 400);
    assert_eq!(count("/flat"), 1322);
    assert_eq!(client.send("DELETE", "/flat/", &[], b"").status, 204);
    assert_eq!(count("/flat"), 0);
    // No temporary name is left.
    let left: Vec<_> =
        world.fs.read_dir("/").unwrap().map(|entry| entry.unwrap().file_name().to_vec()).collect();
    assert!(left.iter().all(|name| !name.starts_with(b".papilio")), "{left:?}");
}

#[test]
fn copies_share_their_data_and_moves_cross_subvolumes() {
    let world = World::with(&Wish::default(), |fs| {
        fs.create_subvolume("/sub").unwrap();
    });
    let mut client = world.client();
    let extents = |path: &str| {
        let all = world.fs.open_file(path).unwrap().extents(0, 1000).unwrap();
        all.iter().map(|extent| extent.address).collect::<Vec<_>>()
    };
    assert_eq!(client.send("COPY", "/folder/data.bin", &[("Destination", "/sub/copy")], b"").status, 201);
    assert!(!extents("/sub/copy").is_empty());
    assert_eq!(extents("/sub/copy"), extents("/folder/data.bin"));
    assert_eq!(client.send("MOVE", "/folder", &[("Destination", "/sub/folder")], b"").status, 201);
    assert_eq!(extents("/sub/folder/data.bin"), extents("/sub/copy"));
    assert_eq!(
        world.fs.metadata("/folder").unwrap_err().kind(),
        papilio::ErrorKind::Path(PathError::NotFound)
    );
    assert_eq!(client.send("MOVE", "/sub", &[("Destination", "/renamed")], b"").status, 403);
}

fn lock(client: &mut Client, target: &str, depth: &str, scope: &str) -> Answer {
    let body = format!(
        "<D:lockinfo xmlns:D=\"DAV:\"><D:lockscope><D:{scope}/></D:lockscope><D:locktype><D:write/></D:locktype>\
         <D:owner><D:href>http://me/</D:href></D:owner></D:lockinfo>"
    );
    client.send("LOCK", target, &[("Depth", depth), ("Timeout", "Second-100, Infinite")], body.as_bytes())
}

fn token(answer: &Answer) -> String {
    answer.header("lock-token").unwrap().to_owned()
}

#[test]
fn locks_keep_others_out() {
    let world = World::with(&Wish::default(), |fs| drop(fs.symlink("hello.txt", "/alias").unwrap()));
    let mut client = world.client();
    let locked = lock(&mut client, "/hello.txt", "0", "exclusive");
    assert_eq!(locked.status, 200);
    assert!(locked.text().contains("<D:timeout>Second-"), "{locked:?}");
    let own = token(&locked);
    let with = format!("({own})");
    for (method, target) in [
        ("PUT", "/hello.txt"),
        ("DELETE", "/hello.txt"),
        ("MOVE", "/hello.txt"),
        // A link is no way around.
        ("PUT", "/alias"),
    ] {
        let answer = client.send(method, target, &[("Destination", "/x")], b"");
        assert_eq!(answer.status, 423, "{method} {target}");
        assert!(answer.text().contains("<D:lock-token-submitted><D:href>/hello.txt</D:href>"), "{answer:?}");
    }
    let copied_over = client.send("COPY", "/page.html", &[("Destination", "/hello.txt")], b"");
    assert_eq!(copied_over.status, 423);
    assert_eq!(lock(&mut client, "/hello.txt", "0", "exclusive").status, 423);
    assert_eq!(lock(&mut client, "/", "infinity", "shared").status, 423);
    assert_eq!(client.get("/hello.txt").status, 200);
    assert_eq!(client.send("PUT", "/hello.txt", &[("If", &with)], b"mine").status, 204);
    assert_eq!(client.send("PUT", "/hello.txt", &[("If", "(<urn:uuid:wrong>)")], b"x").status, 412);
    assert_eq!(client.send("PUT", "/hello.txt", &[("If", "(Not <DAV:no-lock>)")], b"x").status, 423);
    assert_eq!(client.send("PUT", "/hello.txt", &[("If", "nonsense")], b"x").status, 400);
    let refreshed = client.send("LOCK", "/hello.txt", &[("If", &with), ("Timeout", "Second-500")], b"");
    assert!(refreshed.status == 200 && refreshed.header("lock-token").is_none(), "{refreshed:?}");
    let found = propfind(&mut client, "/hello.txt", "0", "").text();
    assert!(found.contains("<D:activelock>") && found.contains(own.trim_matches(['<', '>'])), "{found}");
    assert_eq!(client.send("UNLOCK", "/page.html", &[("Lock-Token", &own)], b"").status, 409);
    assert_eq!(client.send("UNLOCK", "/hello.txt", &[], b"").status, 400);
    assert_eq!(client.send("UNLOCK", "/hello.txt", &[("Lock-Token", &own)], b"").status, 204);
    assert_eq!(client.send("PUT", "/hello.txt", &[], b"free").status, 204);
}

#[test]
fn locks_of_folders_cover_what_is_in_them() {
    let world = World::new();
    let mut client = world.client();
    let deep = token(&lock(&mut client, "/folder/", "infinity", "exclusive"));
    assert_eq!(client.send("PUT", "/folder/new", &[], b"x").status, 423);
    assert_eq!(client.send("MKCOL", "/folder/new", &[], b"").status, 423);
    assert_eq!(client.send("DELETE", "/folder", &[], b"").status, 423);
    let tagged = format!("</folder/> ({deep})");
    assert_eq!(client.send("PUT", "/folder/new", &[("If", &tagged)], b"x").status, 201);
    client.send("UNLOCK", "/folder/new", &[("Lock-Token", &deep)], b"");
    let flat = token(&lock(&mut client, "/folder/", "0", "exclusive"));
    assert_eq!(client.send("PUT", "/folder/new", &[], b"y").status, 204);
    assert_eq!(client.send("PUT", "/folder/newer", &[], b"y").status, 423);
    assert_eq!(client.send("DELETE", "/folder/new", &[], b"").status, 423);
    client.send("UNLOCK", "/folder", &[("Lock-Token", &flat)], b"");
    // A lock of a free name makes an empty file.
    let made = lock(&mut client, "/reserved", "0", "exclusive");
    assert_eq!(made.status, 201);
    assert_eq!(world.fs.read("/reserved").unwrap(), b"");
    let with = format!("({})", token(&made));
    assert_eq!(client.send("DELETE", "/reserved", &[("If", &with)], b"").status, 204);
    assert_eq!(client.send("PUT", "/reserved", &[], b"").status, 201);
    let one = lock(&mut client, "/hello.txt", "0", "shared");
    let two = lock(&mut client, "/hello.txt", "0", "shared");
    assert_eq!((one.status, two.status), (200, 200));
    let with = format!("({})", token(&two));
    assert_eq!(client.send("PUT", "/hello.txt", &[("If", &with)], b"").status, 204);
    assert_eq!(lock(&mut client, "/missing/x", "0", "shared").status, 409);
    assert_eq!(lock(&mut client, "/hello.txt", "1", "shared").status, 400);
    assert_eq!(client.send("LOCK", "/hello.txt", &[], b"<x/>").status, 400);
    assert_eq!(client.send("LOCK", "/hello.txt", &[], b"<lockinfo xmlns='DAV:'/>").status, 422);
}
