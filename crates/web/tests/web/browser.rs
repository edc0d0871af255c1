//! The pages in a real browser: Chromium, driven through its pipe for debuggers.

use crate::world::{Wish, World};
use papilio_oracle::requirement::find_command;
use papilio_oracle::{Need, require};
use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A browser with one page.
struct Browser {
    child: Child,
    to: File,
    from: BufReader<File>,
    session: Option<String>,
    next: u64,
    /// The events that were not waited for.
    events: Vec<Value>,
}

impl Browser {
    fn start(folder: &Path) -> Self {
        let (to, from) = (folder.join("to"), folder.join("from"));
        for pipe in [&to, &from] {
            let made = Command::new("mkfifo").arg(pipe).status().unwrap();
            assert!(made.success());
        }
        let chromium = find_command("chromium").unwrap();
        let script = "exec \"$0\" --headless --no-sandbox --disable-gpu --no-first-run --disable-sync \
            --disable-background-networking --disable-component-update --remote-debugging-pipe \
            --user-data-dir=\"$1/profile\" about:blank 3<\"$1/to\" 4>\"$1/from\"";
        let child = Command::new("sh")
            .args(["-c", script])
            .arg(chromium)
            .arg(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(folder.join("log")).unwrap())
            .spawn()
            .unwrap();
        let to = OpenOptions::new().write(true).open(&to).unwrap();
        let from = BufReader::new(File::open(&from).unwrap());
        let mut browser = Self { child, to, from, session: None, next: 0, events: Vec::new() };
        let target = browser.call("Target.createTarget", &json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = browser.call("Target.attachToTarget", &attach);
        browser.session = Some(attached["sessionId"].as_str().unwrap().to_owned());
        for domain in ["Page", "Runtime", "Log", "DOM", "Accessibility"] {
            browser.call(&format!("{domain}.enable"), &json!({}));
        }
        browser
    }

    fn receive(&mut self) -> Value {
        let mut message = Vec::new();
        self.from.read_until(0, &mut message).unwrap();
        assert_eq!(message.pop(), Some(0), "the browser has ended");
        serde_json::from_slice(&message).unwrap()
    }

    fn call(&mut self, method: &str, parameters: &Value) -> Value {
        self.next += 1;
        let id = self.next;
        let mut message = json!({ "id": id, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        self.to.write_all(format!("{message}\0").as_bytes()).unwrap();
        loop {
            let mut answer = self.receive();
            if answer["id"] == id {
                let is_left =
                    answer["error"]["message"].as_str().is_some_and(|text| text.contains("context"));
                assert!(answer.get("error").is_none() || is_left, "{method}: {answer}");
                return answer["result"].take();
            }
            self.events.push(answer);
        }
    }

    /// Waits until something is so in a page that has loaded.
    fn until(&mut self, condition: &str) {
        let expression = format!("document.readyState == 'complete' && ({condition})");
        let question = json!({ "expression": expression, "returnByValue": true });
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            // A page that is being left gives no value.
            if self.call("Runtime.evaluate", &question)["result"]["value"] == json!(true) {
                return;
            }
            assert!(Instant::now() < deadline, "{condition}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn open(&mut self, url: &str) {
        self.call("Page.navigate", &json!({ "url": url }));
        let path = url.split("token=").next().unwrap().trim_end_matches('?');
        self.until(&format!("location.href == {}", json!(path)));
    }

    fn evaluate(&mut self, expression: &str) -> Value {
        let result =
            self.call("Runtime.evaluate", &json!({ "expression": expression, "returnByValue": true }));
        assert!(result.get("exceptionDetails").is_none(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    fn press(&mut self, key: &str, code: u32) {
        let text = if key == "Enter" { json!("\r") } else { json!("") };
        for kind in ["keyDown", "keyUp"] {
            self.call(
                "Input.dispatchKeyEvent",
                &json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text }),
            );
        }
    }

    /// Returns the messages of the console that tell of faults.
    fn faults(&self) -> Vec<String> {
        let is_fault = |event: &&Value| {
            event["method"] == "Runtime.exceptionThrown"
                || event["method"] == "Log.entryAdded"
                || event["method"] == "Runtime.consoleAPICalled"
        };
        self.events.iter().filter(is_fault).map(Value::to_string).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The elements that the keyboard reaches, in the order of the document.
const REACHABLE: &str =
    "JSON.stringify([...document.querySelectorAll('a[href], button, input')].map(e => e.outerHTML))";
const FOCUSED: &str = "document.activeElement.outerHTML";

/// Tab goes through everything in the order of the text, visibly; the first stop skips.
fn check_keyboard(browser: &mut Browser) {
    let reachable: Vec<String> = serde_json::from_str(browser.evaluate(REACHABLE).as_str().unwrap()).unwrap();
    assert!(reachable.len() > 20 && reachable[0].contains("Skip to the content"), "{reachable:?}");
    for (number, wanted) in reachable.iter().enumerate() {
        browser.press("Tab", 9);
        assert_eq!(browser.evaluate(FOCUSED), json!(wanted), "{number}");
        let outline = browser.evaluate("getComputedStyle(document.activeElement).outlineStyle");
        assert_ne!(outline, json!("none"), "{wanted}");
    }
    browser.evaluate("document.querySelector('.skip').focus()");
    browser.press("Enter", 13);
    assert_eq!(browser.evaluate("location.hash"), json!("#main"));
}

/// Screen readers have names for all links and fields, landmarks, and headers of columns.
fn check_screen_reader(browser: &mut Browser) {
    let tree = browser.call("Accessibility.getFullAXTree", &json!({}));
    let nodes: Vec<(String, String)> = tree["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|node| node["ignored"] == json!(false))
        .map(|node| {
            let text = |field: &str| node[field]["value"].as_str().unwrap_or_default().to_owned();
            (text("role"), text("name"))
        })
        .collect();
    let has = |role: &str, name: &str| nodes.iter().any(|node| node.0 == role && node.1 == name);
    for (role, name) in [
        ("navigation", "Breadcrumb"),
        ("navigation", "File system"),
        ("table", "5 entries"),
        ("columnheader", "Modified"),
        ("rowheader", "hello.txt"),
        ("link", "Versions of hello.txt"),
        ("heading", "Snapshots of this folder"),
        ("button", "Upload"),
        ("textbox", "New folder"),
    ] {
        assert!(has(role, name), "{role} {name}: {nodes:?}");
    }
    let unnamed = |node: &&(String, String)| {
        ["link", "button", "textbox"].contains(&node.0.as_str()) && node.1.trim().is_empty()
    };
    assert_eq!(nodes.iter().find(unnamed), None);
}

#[test]
fn pages_work_in_a_browser_and_by_keyboard() {
    if require(&[Need::Command("chromium")]).is_none() {
        return;
    }
    let world = World::with(&Wish::default(), |fs| {
        fs.write("/evil.html", b"<title>quiet</title><script>document.title='loud'; fetch('/x', {method: 'PUT', body: 'x'})</script>")
            .unwrap();
        fs.snapshot("/", "/before", true).unwrap();
    });
    let mut browser = Browser::start(world.folder.path());
    browser.open(&world.server().url());
    let root = format!("http://{}/", world.server().address());
    // The token is gone from the address, and no script could read the cookie.
    assert_eq!(browser.evaluate("location.href"), json!(root));
    assert_eq!(browser.evaluate("document.cookie"), json!(""));
    assert_eq!(browser.evaluate("document.title"), json!("image – image"));
    assert_eq!(
        browser.evaluate("getComputedStyle(document.querySelector('table')).borderCollapse"),
        json!("collapse")
    );

    check_keyboard(&mut browser);
    check_screen_reader(&mut browser);

    // A link works by Enter, and a form uploads a file.
    browser.evaluate("document.querySelector('a[href=\"/folder/\"]').focus()");
    browser.press("Enter", 13);
    browser.until("location.pathname == '/folder/'");
    let file = world.folder.path().join("from the browser.txt");
    std::fs::write(&file, b"uploaded").unwrap();
    let document = browser.call("DOM.getDocument", &json!({}));
    let input = json!({ "nodeId": document["root"]["nodeId"], "selector": "#upload" });
    let input = browser.call("DOM.querySelector", &input);
    browser.call("DOM.setFileInputFiles", &json!({ "files": [file], "nodeId": input["nodeId"] }));
    browser.evaluate("document.querySelector('form button').click()");
    browser.until("document.body.innerText.includes('from the browser.txt')");
    assert_eq!(world.fs.read("/folder/from the browser.txt").unwrap(), b"uploaded");

    // The past, the versions, the picture, and the check.
    browser.open(&root);
    browser.evaluate("[...document.querySelectorAll('a')].find(a => a.textContent == '/before').click()");
    browser.until("document.querySelector('.note')?.textContent.includes('The past')");
    browser.open(&format!("{root}hello.txt?view=versions"));
    assert_eq!(browser.evaluate("document.querySelectorAll('tbody tr').length"), json!(1));
    browser.open(&format!("{root}?view=usage"));
    assert_eq!(browser.evaluate("document.querySelector('img').complete"), json!(true));
    browser.open(&format!("{root}?view=check"));
    browser.evaluate("document.querySelector('form button').click()");
    browser.until("document.querySelector('[role=status]').textContent.includes('The check ended')");

    // Dark and narrow.
    browser.open(&root);
    let light = browser.evaluate("getComputedStyle(document.body).backgroundColor");
    let dark = json!({ "features": [{ "name": "prefers-color-scheme", "value": "dark" }] });
    browser.call("Emulation.setEmulatedMedia", &dark);
    assert_ne!(browser.evaluate("getComputedStyle(document.body).backgroundColor"), light);
    let narrow = json!({ "width": 320, "height": 600, "deviceScaleFactor": 1, "mobile": false });
    browser.call("Emulation.setDeviceMetricsOverride", &narrow);
    assert_eq!(browser.evaluate("document.documentElement.scrollWidth <= innerWidth"), json!(true));
    assert_eq!(browser.faults(), Vec::<String>::new());

    // A page out of the file system runs nothing.
    browser.open(&format!("{root}evil.html"));
    assert_eq!(browser.evaluate("document.title"), json!("quiet"));
    assert!(browser.faults().iter().any(|fault| fault.contains("sandboxed")), "{:?}", browser.faults());
    assert!(world.fs.metadata("/x").is_err());
}
