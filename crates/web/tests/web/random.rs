//! Seeded random requests: none makes the server panic or hang.

use crate::world::World;
use fastrand::Rng;
use std::time::{Duration, Instant};

const METHODS: &[&str] = &[
    "GET",
    "HEAD",
    "PUT",
    "DELETE",
    "MKCOL",
    "COPY",
    "MOVE",
    "PROPFIND",
    "PROPPATCH",
    "LOCK",
    "UNLOCK",
    "OPTIONS",
    "POST",
    "X",
];
const TARGETS: &[&str] = &[
    "/",
    "/hello.txt",
    "/folder/",
    "/folder/data.bin",
    "/new",
    "/%ff",
    "/a/b/c",
    "*",
    "/..",
    "/?view=versions",
    "/hello.txt?view=versions",
    "/folder/?download=tar",
    "/?at=5",
    "/hello.txt?at=256",
    "/?do=upload",
    "/?from=3",
    "/%2e",
    "//",
    "/?view=usage",
    "http://x/",
];
const HEADERS: &[&str] = &[
    "Depth: 0",
    "Depth: 1",
    "Depth: infinity",
    "Depth: x",
    "Overwrite: F",
    "Destination: /moved",
    "Destination: /new/x",
    "Destination: ..",
    "If: (<urn:x>)",
    "If: (Not <a>)",
    "If: ((",
    "Range: bytes=0-5",
    "Range: bytes=-1,0-",
    "If-None-Match: *",
    "If-Match: \"x\"",
    "Timeout: Second-5",
    "Timeout: Infinite",
    "Lock-Token: <x>",
    "Expect: 100-continue",
    "Transfer-Encoding: chunked",
    "Content-Length: 5",
    "Content-Type: multipart/form-data; boundary=b",
    "Origin: null",
    "X-OC-Mtime: 5",
    "Cookie: a=b",
    "If-Range: x",
    "If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT",
    "Connection: close",
];
const XML: &[&str] = &[
    "<?xml version=\"1.0\"?>",
    "<D:propfind xmlns:D=\"DAV:\">",
    "<D:prop>",
    "<D:allprop/>",
    "<D:propname/>",
    "</D:prop>",
    "</D:propfind>",
    "<D:propertyupdate xmlns:D='DAV:'>",
    "<D:set>",
    "</D:set>",
    "<x xmlns='u'>v</x>",
    "</D:propertyupdate>",
    "<D:lockinfo xmlns:D='DAV:'>",
    "<D:lockscope><D:exclusive/></D:lockscope>",
    "<D:locktype><D:write/></D:locktype>",
    "<D:owner>me</D:owner>",
    "</D:lockinfo>",
    "&amp;",
    "&x;",
    "<!DOCTYPE a>",
    "<",
    ">",
    "\u{0}",
    "<![CDATA[",
    "]]>",
    "--b--",
    "\r\n--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\nx",
];

fn pick<'p>(random: &mut Rng, from: &[&'p str]) -> &'p str {
    from[random.usize(..from.len())]
}

fn request(random: &mut Rng, authority: &str, credentials: &str) -> Vec<u8> {
    let body: String = match random.u8(..4) {
        0 => String::new(),
        _ => (0..random.usize(1..9)).map(|_| pick(random, XML)).collect(),
    };
    let mut text = format!("{} {} HTTP/1.1\r\n", pick(random, METHODS), pick(random, TARGETS));
    text.push_str(&format!("Host: {authority}\r\nAuthorization: {credentials}\r\n"));
    for _ in 0..random.usize(..4) {
        text.push_str(pick(random, HEADERS));
        text.push_str("\r\n");
    }
    if random.u8(..5) > 0 {
        text.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    text.push_str("\r\n");
    text.push_str(&body);
    let mut bytes = text.into_bytes();
    // Some are damaged.
    if random.u8(..3) == 0 {
        for _ in 0..random.usize(1..4) {
            let at = random.usize(..bytes.len());
            match random.u8(..3) {
                0 => bytes[at] = random.u8(..),
                1 => drop(bytes.remove(at)),
                _ => bytes.insert(at, random.u8(..)),
            }
        }
    }
    bytes
}

#[test]
fn random_requests_are_answered() {
    let world = World::new();
    let authority = world.server().address().to_string();
    let credentials = world.client().credentials.unwrap();
    let mut random = Rng::with_seed(0x0070_6170_696c_696f);
    let (mut answered, mut ok) = (0, 0);
    let count = std::env::var("PAPILIO_WEB_REQUESTS").map_or(400, |text| text.parse().expect("a number"));
    for number in 0..count {
        let bytes = request(&mut random, &authority, &credentials);
        let mut client = world.client();
        // The server may have closed already.
        let _ = client.raw(&bytes);
        client.end();
        let begun = Instant::now();
        if let Ok(answer) = client.answer(bytes.starts_with(b"HEAD")) {
            assert!((200..=599).contains(&answer.status), "{answer:?}");
            let text = String::from_utf8_lossy(&bytes);
            assert!(answer.status != 500 || text.contains("view=usage"), "{number}: {text:?}: {answer:?}");
            answered += 1;
            ok += usize::from(answer.status < 300);
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{number}: {:?}", String::from_utf8_lossy(&bytes));
    }
    assert!(answered > count / 2 && ok > count / 40, "{answered} {ok}");
    // The server is as before.
    let mut client = world.client();
    assert_eq!(client.send("PUT", "/after", &[], b"x").status / 100, 2);
    world.fs.sync().unwrap();
    let report = world.fs.check(&papilio::CheckOptions::new().data_csum(true)).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
}
