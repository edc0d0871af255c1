//! Travel in time.

use crate::world::{Wish, World};
use papilio::FileSystem;

/// Lets the next change have another time.
fn wait() {
    std::thread::sleep(std::time::Duration::from_millis(30));
}

fn fill(fs: &FileSystem) {
    fs.create_subvolume("/home").unwrap();
    fs.create_dir("/home/docs").unwrap();
    fs.write("/home/docs/a", b"first").unwrap();
    fs.write("/home/docs/gone", b"gone").unwrap();
    fs.snapshot("/home", "/home-1", true).unwrap();
    wait();
    fs.write("/home/docs/a", b"second version").unwrap();
    fs.remove_file("/home/docs/gone").unwrap();
    fs.snapshot("/home", "/home-2", true).unwrap();
    wait();
    fs.rename("/home/docs/a", "/home/docs/b").unwrap();
    fs.write("/home/docs/b", b"third, with another name").unwrap();
    fs.write("/home/secret", b"outside").unwrap();
    fs.snapshot("/home", "/home-3", true).unwrap();
    fs.create_subvolume("/other").unwrap();
    fs.create_dir("/other/docs").unwrap();
    fs.write("/other/docs/a", b"of others").unwrap();
}

fn id(fs: &FileSystem, path: &str) -> u64 {
    fs.inode(path).unwrap().tree().0
}

#[test]
fn folders_lead_to_their_snapshots_and_files_to_their_versions() {
    let world = World::with(&Wish::default(), fill);
    let mut client = world.client();
    let page = client.get("/home/docs/").text();
    assert!(page.contains("4 subvolumes have this folder"), "{page}");
    let first = id(&world.fs, "/home-1");
    for path in ["home-1", "home-2", "home-3"] {
        let link = format!("/home/docs/?at={}", id(&world.fs, &format!("/{path}")));
        assert!(page.contains(&format!("<a href=\"{link}\">/{path}</a>")), "{page}");
        assert_eq!(client.get(&link).status, 200);
    }
    let past = client.get(&format!("/home/docs/?at={first}")).text();
    assert!(
        past.contains("The past") && past.contains(&format!("href=\"/home/docs/gone?at={first}\"")),
        "{past}"
    );
    assert_eq!(client.get(&format!("/home/docs/gone?at={first}")).text(), "gone");
    assert_eq!(client.get(&format!("/home/docs/a?at={first}")).text(), "first");
    assert_eq!(client.get("/home/docs/a").status, 404);
    let versions = client.get("/home/docs/b?view=versions").text();
    assert!(versions.contains("3 different versions"), "{versions}");
    assert!(versions.contains("as home/docs/a"), "{versions}");
    let mut contents = Vec::new();
    for link in versions.split("<td><a href=\"").skip(1) {
        let link = link.split('"').next().unwrap().replace("&amp;", "&");
        let answer = client.get(&link);
        assert_eq!(answer.status, 200, "{link}");
        contents.push(answer.text());
    }
    assert_eq!(contents, ["third, with another name", "second version", "first"]);
    let tar = client.get(&format!("/home/docs/?download=tar&at={first}"));
    assert!(tar.is_whole);
    assert_eq!(tar::Archive::new(&tar.body[..]).entries().unwrap().count(), 3);
}

#[test]
fn the_past_ends_where_the_export_ends() {
    let wish = Wish { path: "/home/docs", ..Wish::default() };
    let world = World::with(&wish, fill);
    let mut client = world.client();
    let (first, third) = (id(&world.fs, "/home-1"), id(&world.fs, "/home-3"));
    assert_eq!(client.get(&format!("/gone?at={first}")).text(), "gone");
    assert_eq!(client.get(&format!("/secret?at={third}")).status, 404);
    assert_eq!(client.get(&format!("/docs/a?at={first}")).status, 404);
    // A subvolume that is no snapshot of this one.
    assert_eq!(client.get(&format!("/a?at={}", id(&world.fs, "/other"))).status, 404);
    assert_eq!(client.get("/a?at=5").status, 404);
    for (at, status) in
        [("", 400), ("x", 400), ("-1", 400), ("7", 400), ("99999", 404), ("99999999999999999999999", 400)]
    {
        assert_eq!(client.get(&format!("/a?at={at}")).status, status, "{at}");
    }
    // Nobody changes it.
    for method in ["PUT", "DELETE", "MKCOL", "PROPPATCH", "LOCK", "POST", "PROPFIND"] {
        let answer = client.send(method, &format!("/a?at={first}"), &[], b"x");
        assert_eq!(answer.status, 403, "{method}");
    }
}
