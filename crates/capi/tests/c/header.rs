//! `papilio.h` and `papilio.map` are those of the sources, and the libraries export their
//! functions.

use crate::support::{Bench, Link, archive, folder, library, succeed, text};
use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

/// Compares a committed file with its generated text, or writes it if `PAPILIO_BLESS` is set.
fn compare(name: &str, text: &str) {
    let path = folder().join(name);
    if std::env::var_os("PAPILIO_BLESS").is_some() {
        fs::write(&path, text).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    let command = "PAPILIO_BLESS=1 cargo test -p papilio-capi header";
    assert!(text == committed, "{name} is out of date: {command}");
}

/// Returns the functions that the sources export.
fn functions() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(folder().join("src")).unwrap() {
        let source = fs::read_to_string(entry.unwrap().path()).unwrap();
        for part in source.split("extern \"C\" fn ").skip(1) {
            let name = part.split('(').next().unwrap();
            if name.starts_with("papilio_") {
                found.insert(name.to_owned());
            }
        }
    }
    found
}

#[test]
fn header_is_that_of_the_sources() {
    let config = cbindgen::Config::from_file(folder().join("cbindgen.toml")).unwrap();
    let made = cbindgen::Builder::new().with_crate(folder()).with_config(config).generate().unwrap();
    let mut header = Vec::new();
    made.write(&mut header);
    let header = text(&header);
    compare("include/papilio.h", &header);
    let names = functions();
    assert!(names.len() >= 150, "{}", names.len());
    for name in &names {
        assert!(header.contains(&format!("{name}(")), "the header lacks {name}");
    }
    let list: String = names.iter().map(|name| format!("        {name};\n")).collect();
    let map = format!("PAPILIO_0.1 {{\n    global:\n{list}    local:\n        *;\n}};\n");
    compare("papilio.map", &map);
}

#[test]
fn libraries_export_the_functions_and_nothing_else() {
    let wanted = functions();
    let symbols =
        succeed(Command::new("nm").arg("-D").arg("--defined-only").arg(library().join("libpapilio.so")));
    let exported: BTreeSet<String> = text(&symbols.stdout)
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .filter(|name| *name != "PAPILIO_0.1")
        .map(|name| name.strip_suffix("@@PAPILIO_0.1").expect("each symbol has the version").to_owned())
        .collect();
    assert_eq!(exported, wanted);
    let dynamic = succeed(Command::new("readelf").arg("-d").arg(library().join("libpapilio.so")));
    assert!(text(&dynamic.stdout).contains("Library soname: [libpapilio.so.0]"));
    let symbols = succeed(Command::new("nm").args(["-g", "--defined-only"]).arg(archive()));
    let symbols = text(&symbols.stdout);
    let archived: BTreeSet<_> = symbols.lines().filter_map(|line| line.split_whitespace().last()).collect();
    assert!(wanted.iter().all(|name| archived.contains(name.as_str())));
}

#[test]
fn each_function_is_called_by_a_program() {
    let mut programs = String::new();
    for folder in [folder().join("examples"), folder().join("tests/c/programs")] {
        for entry in fs::read_dir(folder).unwrap() {
            programs += &fs::read_to_string(entry.unwrap().path()).unwrap();
        }
    }
    let unused: Vec<_> =
        functions().into_iter().filter(|name| !programs.contains(&format!("{name}("))).collect();
    assert!(unused.is_empty(), "{unused:?}");
}

#[test]
fn a_cpp_program_takes_the_header() {
    let bench = Bench::new();
    let program = bench.compile("tests/c/programs/plus.cc", Link::Shared);
    assert_eq!(bench.run(&program, &[]), "plus: done\n");
}

#[test]
fn example_of_the_documentation_works() {
    let document = fs::read_to_string(folder().join("../../docs/c.md")).unwrap();
    let code = document.split("```c\n").nth(1).unwrap().split("```").next().unwrap();
    let bench = Bench::new();
    let source = bench.path("document.c");
    fs::write(&source, code).unwrap();
    let program = bench.compile(source.to_str().unwrap(), Link::Shared);
    assert!(bench.command(&[program.to_str().unwrap()]).output().unwrap().status.code() == Some(1));
    papilio::mkfs(bench.path("disk.img"), &papilio::MkfsOptions::new().size(256 << 20)).unwrap();
    assert_eq!(bench.run(&program, &[]), "hello\n");
}
