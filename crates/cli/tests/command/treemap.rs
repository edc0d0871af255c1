//! `papilio treemap`: pictures and pages of known trees, with names that try to leave their place.

use crate::common::{fail, succeed, succeed_json, succeed_text};
use crate::fixture::noise;
use papilio_oracle::{ImageSet, Need, Scratch, require};
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Makes directories of 24 and 6 MiB, a subvolume, and files with hostile names.
fn image(folder: &Path) -> PathBuf {
    let source = folder.join("source");
    for (number, (name, mib)) in [("large", 24), ("medium", 6)].into_iter().enumerate() {
        fs::create_dir_all(source.join(name)).unwrap();
        fs::write(source.join(name).join("file"), noise(number as u64, mib << 20)).unwrap();
    }
    let hostile: [&[u8]; 5] = [
        b"<script>document.title='bad'<",
        b"\"><img src=x onerror=alert(1)>",
        b"a\nb\x01",
        b"\xff\xfe",
        "]]>&amp;\u{202e}txt.exe\u{ffff}".as_bytes(),
    ];
    fs::create_dir(source.join("hostile")).unwrap();
    for (number, name) in hostile.into_iter().enumerate() {
        let path = source.join("hostile").join(OsString::from_vec(name.to_vec()));
        fs::write(path, noise(50 + number as u64, 1 << 20)).unwrap();
    }
    let image = folder.join("image");
    fs::File::create(&image).unwrap().set_len(400 << 20).unwrap();
    succeed(["mkfs".as_ref(), "--rootdir".as_ref(), source.as_os_str(), image.as_os_str()]);
    let at = |path: &str| format!("{}:{path}", image.display());
    succeed(["subvolume", "create", &at("/sub<vol>")]);
    let host = folder.join("host");
    fs::write(&host, noise(70, 3 << 20)).unwrap();
    succeed(["cp", host.to_str().unwrap(), &at("/sub<vol>/own")]);
    image
}

fn draw(folder: &Path, image: &Path, name: &str, more: &[&str]) -> String {
    let picture = folder.join(name);
    let arguments = ["treemap", image.to_str().unwrap(), picture.to_str().unwrap()];
    succeed_text(arguments.iter().chain(more));
    fs::read_to_string(picture).unwrap()
}

#[test]
fn pictures_show_sizes_and_are_well_formed() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let svg = draw(folder.path(), &image, "out.svg", &["--exact"]);
    for part in [
        "<title>/large/file: 24.00MiB, ",
        "<title>/sub&lt;vol&gt;/own: 3.00MiB, ",
        "metadata: tree blocks",
        ">/sub&lt;vol&gt;</text>",
        r"a\nb\001",
        r"\377\376",
        r"\u{202e}txt.exe\u{ffff}",
        "(every extent)",
        "prefers-color-scheme:dark",
    ] {
        assert!(svg.contains(part), "{part}: {svg}");
    }
    // Areas are in proportion: the width and height that follow a title.
    let area = |title: &str| {
        let rest = svg.split(&format!("<title>{title}:")).nth(1).unwrap();
        let side = |name: &str| -> f64 {
            let value = rest.split(&format!(" {name}=\"")).nth(1).unwrap();
            value.split('"').next().unwrap().parse().unwrap()
        };
        side("width") * side("height")
    };
    let ratio = area("/large/file") / area("/medium/file");
    assert!((3.0..5.0).contains(&ratio), "{ratio}");
    let few = draw(folder.path(), &image, "few.svg", &["--exact", "--rectangles", "4"]);
    assert!(few.contains("smaller entries of /") && !few.contains("/sub&lt;vol&gt;/own"), "{few}");
    let ages = draw(folder.path(), &image, "ages.svg", &["--colour", "age"]);
    assert!(ages.contains("modified within a day</text>") && ages.contains("samples)"), "{ages}");
    let pressed = draw(folder.path(), &image, "pressed.svg", &["--colour", "compression"]);
    assert!(pressed.contains(">not compressed</text>"), "{pressed}");
    let own = format!("{}:/large", image.display());
    fs::write(folder.path().join("zeros"), vec![b'x'; 20 << 20]).unwrap();
    succeed(["cp", folder.path().join("zeros").to_str().unwrap(), &format!("{own}/x")]);
    succeed(["filesystem", "defragment", "-czstd", &format!("{own}/x")]);
    let pressed = draw(folder.path(), &image, "pressed.svg", &["--exact", "--colour", "compression"]);
    assert!(pressed.contains("to less than a quarter</text>"), "{pressed}");
    let same = |name| draw(folder.path(), &image, name, &["--samples", "300", "--seed", "4"]);
    assert_eq!(same("one.svg"), same("two.svg"));
    fail(2, "ends in .svg or .html", ["treemap", image.to_str().unwrap(), "/tmp/out.png"]);
    fail(1, "nowhere", ["treemap", image.to_str().unwrap(), "/nowhere/out.svg"]);

    if require(&[Need::Command("python3")]).is_none() {
        return;
    }
    for name in ["out.svg", "few.svg", "ages.svg", "pressed.svg"] {
        let parse = "import sys, xml.dom.minidom; xml.dom.minidom.parse(sys.argv[1])";
        let output =
            Command::new("python3").args(["-c", parse]).arg(folder.path().join(name)).output().unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Returns the document that a browser makes of a page, after its script ran.
fn document(folder: &Path, page: &str) -> String {
    let output = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=3000", "--dump-dom"])
        .arg(format!("--user-data-dir={}", folder.join("browser").display()))
        .arg(page)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn pages_zoom_in_a_browser() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let page = draw(folder.path(), &image, "out.html", &["--exact"]);
    // Nothing is loaded from elsewhere.
    for part in ["src=\"", "href=", "url(", "@import", "http-equiv=\"refresh"] {
        assert!(!page.contains(part), "{part}");
    }
    assert!(page.contains("default-src 'none'") && page.contains("script-src 'sha256-"));
    assert_eq!(page.matches("<script").count(), 1);
    if require(&[Need::Command("chromium")]).is_none() {
        return;
    }
    // The node of the directory, and its rectangle.
    let node = page.split("<title>/large: ").next().unwrap().rsplit("id=\"").next().unwrap();
    let node = node.split('"').next().unwrap();
    let rect = page.split("<title>/large: ").nth(1).unwrap().split("/>").next().unwrap();
    let side = |name: &str| rect.split(&format!(" {name}=\"")).nth(1).unwrap().split('"').next().unwrap();
    let zoomed = ["x", "y", "width", "height"].map(side).join(" ");
    let address = format!("file://{}", folder.path().join("out.html").display());
    let whole = document(folder.path(), &address);
    assert!(whole.contains("viewBox=\"0 0 1200 800\""), "{whole}");
    // The script ran: it told what is looked at. That of a name did not.
    assert!(whole.contains("aria-live=\"polite\">all that is used: "), "{whole}");
    assert!(!whole.contains("<title>bad"), "{whole}");
    assert!(!whole.contains("<img") && whole.matches("<script").count() == 1, "{whole}");
    let inside = document(folder.path(), &format!("{address}#{node}"));
    assert!(inside.contains(&format!("viewBox=\"{zoomed}\"")), "{zoomed}: {inside}");
    assert!(inside.contains("aria-live=\"polite\">/large: 24.00MiB"), "{inside}");
}

#[test]
fn a_kernel_mount_is_drawn_alike() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let scratch = Scratch::new(500 << 20).unwrap();
    let image = image(scratch.path());
    let titles = |svg: String| {
        let of_files = |title: &&str| title.starts_with('/');
        let mut titles: Vec<String> = svg
            .split("<title>")
            .filter(of_files)
            .map(|part| part.split("</title>").next().unwrap().rsplit_once(',').unwrap().0.to_owned())
            .collect();
        titles.sort();
        titles
    };
    let of_image = titles(draw(scratch.path(), &image, "image.svg", &["--exact"]));
    let images = ImageSet::open(&scratch, vec![image]);
    let mounted = images.mount().unwrap();
    let of_mount = draw(scratch.path(), mounted.path(), "mount.svg", &["--exact", "--colour", "age"]);
    assert!(of_mount.contains("modified within a day</text>"), "{of_mount}");
    assert_eq!(titles(of_mount), of_image);
    assert!(of_image.len() > 8, "{of_image:?}");
    let exact = succeed_json(["usage", "--tree", "--exact", "--json", mounted.path().to_str().unwrap()]);
    let bytes = exact["tree"]["entries"][0]["bytes"].as_u64().unwrap();
    assert!(bytes > 0);
    mounted.unmount().unwrap();
}
