//! The manual: tests, messages, links and files that it names exist.

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
fn docs_pages_name_tests_that_exist() {
    let tests = tests();
    let volumes = read("docs/volumes.md");
    let promise = volumes.split("### The promise").nth(1).and_then(|rest| rest.split("\n### ").next());
    let pages =
        [("docs/semantics.md", read("docs/semantics.md")), ("docs/volumes.md", promise.unwrap().to_owned())];
    for (page, text) in pages {
        for item in text.split("\n- ").skip(1) {
            let item = item.split("\n\n").next().unwrap();
            let named: Vec<_> = quoted(item).filter(|name| is_test_name(name)).collect();
            assert!(!named.is_empty(), "{page}: no test is named for: {item}");
            for name in named {
                assert!(tests.contains(name), "{page}: there is no test {name}");
            }
        }
    }
}

/// Tests have names of many words.
fn is_test_name(text: &str) -> bool {
    text.matches('_').count() >= 2
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

#[test]
fn troubleshooting_page_messages_are_those_of_the_program() {
    // As they are in the program: lines that go on are joined, quotes are not escaped.
    let joined = |source: &String| {
        let lines: Vec<_> = source.split("\\\n").collect();
        let rest = lines[1..].iter().map(|line| line.trim_start());
        std::iter::once(lines[0]).chain(rest).collect::<String>().replace("\\\"", "\"")
    };
    let sources: Vec<_> = sources().iter().map(joined).collect();
    let page = read("docs/troubleshooting.md");
    let rows: Vec<_> = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |")).collect();
    assert!(rows.len() > 50, "{} rows", rows.len());
    let missing: Vec<_> = rows
        .iter()
        // What differs each time stands as `…`.
        .filter(|(message, _)| {
            let mut parts = message.split('…').filter(|part| part.trim().len() > 3);
            !sources.iter().any(|source| parts.clone().all(|part| source.contains(part)))
                && parts.next().is_some()
        })
        .map(|(message, _)| message)
        .collect();
    assert!(
        missing.is_empty(),
        "docs/troubleshooting.md has messages that the program has not: {missing:#?}"
    );
}

#[test]
fn docs_pages_link_to_files_that_exist() {
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

#[test]
fn contributing_page_names_files_that_exist() {
    for name in quoted(&read("CONTRIBUTING.md")) {
        let is_path = name.contains('/') && !name.contains(' ') && !name.starts_with('/');
        assert!(!is_path || repository().join(name).exists(), "CONTRIBUTING.md: there is no {name}");
    }
}

#[test]
fn contributing_page_lists_every_script() {
    let page = read("CONTRIBUTING.md");
    for script in fs::read_dir(repository().join("scripts")).unwrap() {
        let name = format!("scripts/{}", script.unwrap().file_name().display());
        assert!(
            name.contains('.') || page.contains(&format!("| `{name}` |")),
            "CONTRIBUTING.md lacks {name}"
        );
    }
}

/// Files of other projects that a decision names.
const FOREIGN_FILES: [&str; 2] = ["src/client/s3.rs", "src/azure/client.rs"];

#[test]
fn decisions_name_files_that_exist() {
    for page in files(&repository().join("docs/decisions"), "md") {
        let text = fs::read_to_string(&page).unwrap();
        for name in quoted(&text).filter(|name| name.contains('/') && name.ends_with(".rs")) {
            assert!(
                FOREIGN_FILES.contains(&name) || repository().join(name).exists(),
                "{}: there is no {name}",
                page.display()
            );
        }
    }
}
