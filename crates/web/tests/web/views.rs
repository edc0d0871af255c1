//! The views of the whole file system.

use crate::world::{Wish, World};
use std::time::{Duration, Instant};

#[test]
fn pictures_have_a_page_and_words() {
    let world = World::new();
    let mut client = world.client();
    let page = client.get("/?view=usage").text();
    for part in [
        "<img src=\"/?view=usage.svg\" alt=\"&lt;use&gt; of ",
        "<th scope=\"row\">/a</th>",
        "<th scope=\"col\">Space</th>",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let svg = client.get("/?view=usage.svg");
    assert_eq!(svg.header("content-type"), Some("image/svg+xml"));
    assert!(svg.header("content-security-policy").unwrap().starts_with("sandbox"));
    let failed = client.send("GET", "/?view=heatmap", &[("Accept", "text/html")], b"");
    assert_eq!(failed.status, 500);
    assert!(failed.text().contains("no &lt;heat&gt;"), "{failed:?}");
    assert_eq!(client.get("/?view=nothing").status, 404);
}

#[test]
fn a_check_runs_when_it_is_asked_for() {
    let world = World::with(&Wish { writable: false, ..Wish::default() }, |fs| fs.sync().unwrap());
    let mut client = world.client();
    assert!(client.get("/?view=check").text().contains("No check has run yet."));
    let foreign = client.send("POST", "/?view=check", &[("Origin", "http://evil.example")], b"");
    assert_eq!(foreign.status, 403);
    let started = client.send("POST", "/?view=check", &[], b"");
    assert_eq!((started.status, started.header("location")), (303, Some("/?view=check")));
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let page = client.get("/?view=check").text();
        if page.contains("The check ended") {
            assert!(page.contains("No error found.") && page.contains("subvolumes,"), "{page}");
            break;
        }
        assert!(Instant::now() < deadline, "{page}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
