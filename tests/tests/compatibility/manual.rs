//! The manual: what it names is there.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The files below `directory` whose names end in `.suffix`, but for what is built.
fn files(directory: &Path, suffix: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            found.extend(files(&path, suffix));
        } else if path.extension().is_some_and(|extension| extension == suffix) {
            found.push(path);
        }
    }
    found
}

/// The sources of all crates, but for this file.
fn sources() -> Vec<String> {
    let files =
        files(&repository(), "rs").into_iter().filter(|path| !path.ends_with("compatibility/manual.rs"));
    files.map(|path| fs::read_to_string(path).unwrap()).collect()
}

/// The functions that are tests.
fn tests() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for source in sources() {
        let mut attributed = false;
        for line in source.lines().map(str::trim) {
            if line.starts_with("#[test") || line.starts_with("#[tokio::test") {
                attributed = true;
            } else if let Some((_, rest)) = line.split_once("fn ").filter(|_| attributed) {
                names.insert(rest.split('(').next().unwrap().to_owned());
                attributed = false;
            }
        }
    }
    names
}

/// What stands in backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

fn read(page: &str) -> String {
    fs::read_to_string(repository().join(page)).unwrap()
}

#[test]
fn semantics_page_items_name_tests_that_exist() {
    let tests = tests();
    for item in read("docs/semantics.md").split("\n- ").skip(1) {
        let item = item.split("\n\n").next().unwrap();
        let named: Vec<_> = quoted(item).filter(|name| is_test_name(name)).collect();
        assert!(!named.is_empty(), "no test is named for: {item}");
        for name in named {
            assert!(tests.contains(name), "docs/semantics.md: there is no test {name}");
        }
    }
}

/// Tests have names of many words.
fn is_test_name(text: &str) -> bool {
    text.matches('_').count() >= 2
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

#[test]
fn pages_link_to_files_that_exist() {
    for page in files(&repository(), "md") {
        let text = fs::read_to_string(&page).unwrap();
        let links = text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link);
        for link in links.filter(|link| !link.contains("://")) {
            let path = link.split('#').next().unwrap();
            assert!(
                page.parent().unwrap().join(path).exists(),
                "{} links to {link}, which is not there",
                page.display()
            );
        }
    }
}
