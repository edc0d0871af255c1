//! A repository of backups in a bucket.

use crate::common::{check_failure, command, text};
use papilio_oracle::object_server::{ObjectServer, PROGRAM, Proxy};
use papilio_oracle::{Need, require};
use std::fs;
use std::process::Output;
use std::time::Duration;

fn papilio(proxy: &Proxy, arguments: &[&str]) -> Output {
    let mut command = command();
    command.env("AWS_ENDPOINT", proxy.url()).env("AWS_ACCESS_KEY_ID", "test");
    command.env("AWS_SECRET_ACCESS_KEY", "test").env("AWS_REGION", "us-east-1");
    command.args(arguments).output().unwrap()
}

fn succeed(proxy: &Proxy, arguments: &[&str]) -> String {
    let output = papilio(proxy, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn backups_in_a_bucket_are_restored() {
    if require(&[Need::Command(PROGRAM)]).is_none() {
        return;
    }
    let server = ObjectServer::start().unwrap();
    server.make_bucket("bucket").unwrap();
    let proxy = server.proxy(Duration::ZERO).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (image, repository) = (at("fs.img"), "s3://bucket/some/place");
    succeed(&proxy, &["mkfs", "-q", "--size", "128M", &image]);
    succeed(&proxy, &["subvolume", "create", &format!("{image}:/data")]);
    succeed(&proxy, &["backup", "init", repository]);
    for (name, content) in [("a", "first"), ("b", "second")] {
        fs::write(at(name), content.repeat(1000)).unwrap();
        succeed(&proxy, &["cp", &at(name), &format!("{image}:/data/{name}")]);
        let snapshot = format!("{image}:/snapshot-{name}");
        succeed(&proxy, &["subvolume", "snapshot", "-r", &format!("{image}:/data"), &snapshot]);
        succeed(&proxy, &["backup", "create", repository, &snapshot]);
    }
    assert!(succeed(&proxy, &["backup", "list", repository]).contains("  incremental  "));
    assert!(
        succeed(&proxy, &["backup", "verify", repository]).contains("2 backups, 4 objects, 4 of them read")
    );
    fs::create_dir(at("out")).unwrap();
    succeed(&proxy, &["backup", "restore", repository, "latest", &at("out")]);
    assert_eq!(fs::read_to_string(at("out/snapshot-b/a")).unwrap(), "first".repeat(1000));
    assert_eq!(fs::read_to_string(at("out/snapshot-b/b")).unwrap(), "second".repeat(1000));
    let pruned = succeed(&proxy, &["backup", "prune", "--keep-last", "1", "--merge", repository]);
    assert!(pruned.contains("\n1 backups and "), "{pruned}");
    assert!(succeed(&proxy, &["backup", "verify", repository]).contains("1 backups, 2 objects"));
    check_failure(&papilio(&proxy, &["backup", "init", repository]), 1, "needs an empty place");
    check_failure(&papilio(&proxy, &["backup", "list", "s3://bucket/none"]), 1, "no backup repository");
    check_failure(&papilio(&proxy, &["backup", "list", "https://host/x"]), 2, "s3, gs and az only");
}
