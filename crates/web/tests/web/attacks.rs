//! Attacks: on paths, headers, framing, the secret, origins, and time.

use crate::client::{Client, base64};
use crate::world::{Wish, World};
use papilio_web::Limits;
use std::time::{Duration, Instant};

#[test]
fn no_path_leads_out_or_breaks_the_server() {
    let world = World::new();
    for target in [
        "/..",
        "/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/folder/..%2f..%2fetc/passwd",
        "/folder/%2e%2e%2f",
        "/%00",
        "/hello.txt%00.png",
        "/%",
        "/%zz",
        "/a#b",
        "hello.txt",
        "http://evil.example/hello.txt",
        "//evil.example/hello.txt",
        "/%c0%ae%c0%ae/",
        "/\\..\\..\\etc",
        "/hello.txt/../hello.txt",
        "*",
    ] {
        for method in ["GET", "HEAD", "PROPFIND", "DELETE", "MKCOL"] {
            let mut client = world.client();
            let status = client.send(method, target, &[], b"").status;
            let made = method == "MKCOL" && status == 201;
            assert!((400..500).contains(&status) || made, "{method} {target}: {status}");
        }
    }
    let mut client = world.client();
    for (target, status) in [("//hello.txt", 200), ("/./hello.txt", 200), ("/folder//data.bin", 200)] {
        assert_eq!(client.get(target).status, status, "{target}");
    }
    let own = format!("http://{}/hello.txt", world.server().address());
    assert_eq!(client.get(&own).status, 200);
    assert_eq!(client.get(&"/a".repeat(4000)).status, 404);
    assert_eq!(client.get(&"/a".repeat(10_000)).status, 414);
    assert_eq!(world.client().get(&format!("/{}", "a".repeat(40_000))).status, 414);
    assert_eq!(client.get("/hello.txt").status, 200);
}

#[test]
fn requests_without_the_secret_learn_nothing() {
    let world = World::new();
    for (method, target) in [
        ("GET", "/"),
        ("GET", "/hello.txt"),
        ("GET", "/missing"),
        ("OPTIONS", "/"),
        ("PROPFIND", "/"),
        ("PUT", "/x"),
        ("DELETE", "/hello.txt"),
        ("GET", "/?view=usage"),
        ("POST", "/?view=check"),
    ] {
        let answer = world.stranger().send(method, target, &[], b"");
        assert_eq!(answer.status, 401, "{method} {target}");
        assert!(answer.header("www-authenticate").unwrap().starts_with("Basic realm="));
        assert!(!answer.text().contains(&world.token));
    }
    assert_eq!(world.stranger().get("/?view=style").status, 200);
    let wrong = [
        ("Authorization", format!("Basic {}", base64(b"any:wrong"))),
        ("Authorization", format!("Bearer {}", world.token)),
        ("Authorization", "Basic".to_owned()),
        ("Cookie", format!("papilio-{}=wrong", world.server().address().port())),
        ("Cookie", format!("papilio-1={}", world.token)),
    ];
    for (name, value) in wrong {
        assert_eq!(world.stranger().send("GET", "/", &[(name, &value)], b"").status, 401, "{value}");
    }
    assert_eq!(world.stranger().get("/?token=wrong").status, 401);
    // The token in the URL becomes a cookie, and leaves the address.
    let mut client = world.stranger();
    let answer = client.get(&format!("/folder/?token={}", world.token));
    assert_eq!((answer.status, answer.header("location")), (303, Some("/folder/")));
    let cookie = answer.header("set-cookie").unwrap().to_owned();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
    let pair = cookie.split(';').next().unwrap();
    assert_eq!(client.send("GET", "/hello.txt", &[("Cookie", pair)], b"").status, 200);
    assert_eq!(world.server().url(), format!("http://{}/?token={}", world.server().address(), world.token));
}

#[test]
fn other_hosts_and_origins_are_refused() {
    let world = World::new();
    let port = world.server().address().port();
    for host in [
        "evil.example".to_owned(),
        format!("evil.example:{port}"),
        "127.0.0.1".to_owned(),
        format!("127.0.0.1:{port}.evil"),
    ] {
        let answer = world.client().send("GET", "/hello.txt", &[("Host", &host)], b"");
        assert_eq!(answer.status, 421, "{host}");
    }
    let local = format!("localhost:{port}");
    assert_eq!(world.client().send("GET", "/hello.txt", &[("Host", &local)], b"").status, 200);
    let own = format!("http://127.0.0.1:{port}");
    for (headers, status) in [
        (vec![("Origin", "http://evil.example")], 403),
        (vec![("Origin", "null")], 403),
        (vec![("Sec-Fetch-Site", "cross-site")], 403),
        (vec![("Origin", &own[..]), ("Sec-Fetch-Site", "same-origin")], 201),
    ] {
        assert_eq!(world.client().send("PUT", "/csrf", &headers, b"x").status, status, "{headers:?}");
    }
    // Reading is for all pages that know the secret; browsers keep the answer from others.
    let read = world.client().send("GET", "/hello.txt", &[("Origin", "http://evil.example")], b"");
    assert!(read.status == 200 && read.header("access-control-allow-origin").is_none());
}

#[test]
fn ambiguous_requests_end_the_connection() {
    let world = World::new();
    let authorization = world.client().credentials.unwrap();
    let host = world.server().address().to_string();
    let smuggled = "GET /hello.txt HTTP/1.1\r\nHost: x\r\n\r\n";
    for (headers, body, status) in [
        (format!("Host: {host}\r\nHost: {host}\r\n"), String::new(), 400),
        (String::new(), String::new(), 400),
        (
            format!("Host: {host}\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n"),
            format!("0\r\n\r\n{smuggled}"),
            400,
        ),
        (
            format!("Host: {host}\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n"),
            smuggled.to_owned(),
            400,
        ),
        (format!("Host: {host}\r\nTransfer-Encoding: xchunked\r\n"), smuggled.to_owned(), 501),
        (format!("Host: {host}\r\nContent-Length: 1\r\nContent-Length: 2\r\n"), smuggled.to_owned(), 400),
        (format!("Host: {host}\r\nContent-Length : 5\r\n"), smuggled.to_owned(), 400),
        (format!("Host: {host}\r\nX: y\n\r\n"), smuggled.to_owned(), 400),
        (format!("Host: {host}\r\nX: {}\r\n", "y".repeat(40_000)), String::new(), 431),
        (format!("Host: {host}\r\n{}", "X: y\r\n".repeat(200)), String::new(), 431),
    ] {
        let mut client = world.stranger();
        let head = format!("PUT /smuggled HTTP/1.1\r\nAuthorization: {authorization}\r\n{headers}\r\n{body}");
        // The server may close before it has read everything.
        let _ = client.raw(head.as_bytes());
        let answer = client.answer(false).unwrap();
        assert_eq!((answer.status, answer.header("connection")), (status, Some("close")), "{headers:.200}");
        assert!(client.is_closed(), "{headers:.200}");
    }
    assert!(world.fs.metadata("/smuggled").is_err());
    // Two requests in one piece are two requests.
    let mut client = world.client();
    let head = format!("GET /hello.txt HTTP/1.1\r\nHost: {host}\r\nAuthorization: {authorization}\r\n\r\n");
    client.raw(head.repeat(3).as_bytes()).unwrap();
    for _ in 0..3 {
        assert_eq!(client.answer(false).unwrap().text(), "hello, world\n");
    }
    // A body that nobody wanted is no request.
    let body = "GET /hello.txt HTTP/1.1\r\nHost: x\r\n\r\n";
    let head = format!(
        "GET /missing HTTP/1.1\r\nHost: {host}\r\nAuthorization: {authorization}\r\nContent-Length: {}\r\n\r\n{body}{head}",
        body.len()
    );
    client.raw(head.as_bytes()).unwrap();
    assert_eq!(client.answer(false).unwrap().status, 404);
    assert_eq!(client.answer(false).unwrap().text(), "hello, world\n");
}

/// Long enough for a client on a busy machine.
const CLIENT_LIMIT: Duration = Duration::from_secs(2);

fn hasty() -> Limits {
    let mut limits = Limits::default();
    limits.connections = 4;
    limits.head = CLIENT_LIMIT;
    limits.idle = CLIENT_LIMIT;
    limits.body = CLIENT_LIMIT;
    limits.send = CLIENT_LIMIT;
    limits
}

#[test]
fn slow_clients_are_given_up() {
    let world = World::with(&Wish { limits: hasty(), ..Wish::default() }, |fs| {
        fs.write("/large", vec![1; 64 << 20]).unwrap();
    });
    let started = Instant::now();
    // A head, byte by byte.
    let mut dripping = world.stranger();
    for byte in b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ".iter().cycle() {
        if dripping.raw(&[*byte]).is_err() || started.elapsed() > Duration::from_secs(25) {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(started.elapsed() < Duration::from_secs(25), "{:?}", started.elapsed());
    // Silence, before and after a request.
    assert!(world.stranger().is_closed());
    let mut idle = world.client();
    assert_eq!(idle.get("/hello.txt").status, 200);
    assert!(idle.is_closed());
    // A body that stops.
    let mut client = world.client();
    let head = format!(
        "PUT /slow HTTP/1.1\r\nHost: {}\r\nAuthorization: {}\r\nContent-Length: 100\r\n\r\nx",
        world.server().address(),
        client.credentials.clone().unwrap()
    );
    client.raw(head.as_bytes()).unwrap();
    assert_eq!(client.answer(false).unwrap().status, 408);
    assert!(world.fs.metadata("/slow").is_err());
    // An answer that nobody takes holds nothing that others need.
    let mut client = world.client();
    let head = format!(
        "GET /large HTTP/1.1\r\nHost: {}\r\nAuthorization: {}\r\n\r\n",
        world.server().address(),
        client.credentials.clone().unwrap()
    );
    client.raw(head.as_bytes()).unwrap();
    assert_eq!(world.client().send("PUT", "/meanwhile", &[], b"x").status, 201);
    std::thread::sleep(2 * CLIENT_LIMIT + Duration::from_millis(500));
    let answer = client.answer(false).unwrap();
    assert!(!answer.is_whole && answer.body.len() < 64 << 20);
    assert!(started.elapsed() < Duration::from_secs(120));
}

#[test]
fn connections_are_bounded() {
    let mut limits = hasty();
    limits.idle = Duration::from_secs(30);
    let world = World::with(&Wish { limits, ..Wish::default() }, |_| ());
    let mut clients: Vec<Client> = (0..4).map(|_| world.client()).collect();
    for client in &mut clients {
        assert_eq!(client.get("/hello.txt").status, 200);
    }
    assert!(world.stranger().is_closed());
    drop(clients.pop());
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let mut client = world.stranger();
        let request = format!("GET /hello.txt HTTP/1.1\r\nHost: {}\r\n\r\n", world.server().address());
        if client.raw(request.as_bytes()).is_ok() && client.answer(false).is_ok() {
            break;
        }
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn old_clients_get_no_archive_whose_end_they_cannot_tell() {
    let world = World::new();
    let request = |target: &str| {
        let mut client = world.client();
        let head = format!(
            "GET {target} HTTP/1.0\r\nHost: {}\r\nAuthorization: {}\r\n\r\n",
            world.server().address(),
            client.credentials.clone().unwrap()
        );
        client.raw(head.as_bytes()).unwrap();
        client.answer(false).unwrap()
    };
    assert_eq!(request("/hello.txt").text(), "hello, world\n");
    assert_eq!(request("/folder/").status, 200);
    assert_eq!(request("/folder/?download=tar").status, 505);
}
