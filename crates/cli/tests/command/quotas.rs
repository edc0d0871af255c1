//! `papilio quota` and `papilio qgroup` on images.

use crate::common::{fail, papilio, succeed_text as succeed};
use serde_json::Value;

#[test]
fn quotas_of_an_image_are_shown_and_changed() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("quotas.img");
    let image = image.to_str().unwrap();
    let at = |path: &str| format!("{image}:{path}");
    succeed(["mkfs", "--size", "300M", image]);
    assert!(succeed(["quota", "status", image]).contains("no"));
    fail(1, "quotas are not enabled", ["qgroup", "show", image]);
    succeed(["quota", "enable", image]);
    let status: Value = serde_json::from_str(&succeed(["quota", "status", "--json", image])).unwrap();
    assert_eq!((&status["enabled"], &status["inconsistent"]), (&true.into(), &false.into()));

    succeed(["subvolume", "create", &at("/a")]);
    succeed(["qgroup", "create", "1/100", image]);
    fail(1, "exists already", ["qgroup", "create", "1/100", image]);
    assert_eq!(papilio(["qgroup", "create", "x", image]).status.code(), Some(2));
    fail(1, "level above 0", ["qgroup", "create", "0/300", image]);
    succeed(["qgroup", "assign", "0/256", "1/100", image]);
    succeed(["qgroup", "limit", "1M", &at("/a")]);
    succeed(["qgroup", "limit", "-e", "5G", "1/100", image]);
    succeed(["subvolume", "snapshot", "-i", "1/100", &at("/a"), &at("/b")]);
    let host = folder.path().join("large");
    std::fs::write(&host, vec![1; 2 << 20]).unwrap();
    let error = fail(1, "disk quota exceeded: qgroup 0/256", ["cp", host.to_str().unwrap(), &at("/a/large")]);
    assert!(error.contains("1048576"), "{error}");

    let shown = succeed(["qgroup", "show", "-prce", "--raw", image]);
    let lines: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        lines[0].join(" "),
        "Qgroupid Referenced Exclusive Max referenced Max exclusive Parent Child Path"
    );
    assert_eq!(lines[2].join(" "), "0/5 16384 16384 none none - - <toplevel>");
    assert_eq!(lines[3][3..], ["1048576", "none", "1/100", "-", "a"]);
    assert_eq!(lines[4][5..], ["1/100", "-", "b"]);
    assert_eq!(lines[5][3..], ["none", "5368709120", "-", "0/256,0/257", "<2", "member", "qgroups>"]);
    let of_a = succeed(["qgroup", "show", "-F", "--sort=-qgroupid", &at("/a")]);
    let ids: Vec<&str> = of_a.lines().skip(2).map(|line| line.split_whitespace().next().unwrap()).collect();
    assert_eq!(ids, ["1/100", "0/256"]);
    assert_eq!(succeed(["qgroup", "show", "-f", &at("/a")]).lines().count(), 3);
    fail(2, "is no column", ["qgroup", "show", "--sort", "size", image]);
    let rows: Value = serde_json::from_str(&succeed(["qgroup", "show", "--json", image])).unwrap();
    assert_eq!(rows[1]["max_referenced"], 1 << 20);
    assert_eq!(rows[3]["children"].as_array().unwrap().len(), 2);

    let report = succeed(["check", "-Q", image]);
    assert!(report.contains("Counts for qgroup id: 1/100") && !report.contains("different"), "{report}");
    assert!(succeed(["quota", "rescan", "-s", image]).contains("no rescan operation in progress"));
    succeed(["quota", "rescan", "-w", image]);
    fail(1, "in use", ["qgroup", "destroy", "1/100", image]);
    succeed(["qgroup", "remove", "0/256", "1/100", image]);
    fail(1, "is not a member", ["qgroup", "remove", "0/256", "1/100", image]);
    succeed(["qgroup", "limit", "none", "0/256", image]);
    succeed(["cp", host.to_str().unwrap(), &at("/a/large")]);
    succeed(["qgroup", "clear-stale", image]);
    succeed(["check", image]);
    succeed(["quota", "disable", image]);
    fail(1, "quotas are not enabled", ["quota", "rescan", image]);
}
