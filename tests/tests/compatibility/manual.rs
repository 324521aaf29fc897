//! The manual: tests, messages, links and files that it names exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use bdnfs_tests::machine::Machine;
use bdnfs_tests::repository;

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
        let items = text.split("\n- ").skip(1).map(|item| item.split("\n\n").next().unwrap());
        // The rows of errnos too.
        for item in items.chain(text.lines().filter(|line| line.starts_with("| E"))) {
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

/// The text of a source file as the program has it: lines that go on are joined, quotes are not escaped.
fn joined(source: &str) -> String {
    let lines: Vec<_> = source.split("\\\n").collect();
    let rest = lines[1..].iter().map(|line| line.trim_start());
    std::iter::once(lines[0]).chain(rest).collect::<String>().replace("\\\"", "\"")
}

/// The messages of the page, some of which share a row.
fn page_messages(page: &str) -> Vec<&str> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
    rows.flat_map(|(messages, _)| messages.split("`<br>`")).collect()
}

/// The parts of a message that are always the same; what differs each time stands as `…`.
fn fixed_parts(message: &str) -> Vec<&str> {
    message.split('…').map(str::trim).filter(|part| part.len() > 3).collect()
}

#[test]
fn troubleshooting_page_messages_are_those_of_the_program() {
    let sources: Vec<_> = sources().iter().map(|source| joined(source)).collect();
    let page = read("docs/troubleshooting.md");
    let messages = page_messages(&page);
    assert!(messages.len() > 300, "{} messages", messages.len());
    let missing: Vec<_> = messages
        .iter()
        .map(|message| (message, fixed_parts(message)))
        .filter(|(_, parts)| {
            let has = |source: &String| parts.iter().all(|part| source.contains(part));
            !parts.is_empty() && !sources.iter().any(has)
        })
        .map(|(message, _)| message)
        .collect();
    assert!(
        missing.is_empty(),
        "docs/troubleshooting.md has messages that the program has not: {missing:#?}"
    );
}

/// What an error's text stands behind in the sources: the macros and constructors, and the names that texts are given.
const ERROR_MARKS: &str = "bail!(|anyhow!(|#[error(|Error::new(|Error::other(|Failure::new(|Err(format!(|\
    InvalidAttribute::new(|Status::|\
    Kind::Invalid,|Kind::NotFound,|Kind::Refused,|Kind::Timeout,|Kind::Unavailable,|Kind::Changed,|Kind::Corrupt,|\
    Kind::Disk,|Kind::NoSpace,|Kind::Busy,|Kind::Interrupted,|Kind::Unsupported,|\
    invalid(|refuse(|refused(|reject(|failed(|unknown(|unsupported(|.advise(|text =|why =";

/// Those whose text can name what was attempted, `cannot …`, with the system's reason behind it: see the page's introduction.
const ATTEMPT_MARKS: [&str; 4] = [".context(", "with_context(", "Error::with(", "Error::disk("];

/// How far behind a mark its text begins at the most.
const MARK_DISTANCE: usize = 160;

/// Texts that the page need not have: the file, a part of the text (none: all of the file), the reason.
const UNLISTED_TEXTS: [(&str, &str, &str); 43] = [
    ("agent/src/telemetry.rs", "", "help of metrics"),
    ("agent/src/telemetry/process.rs", "", "help of metrics"),
    ("agent/src/jobs/deployment.rs", "", "events of a job that goes on"),
    ("agent/src/jobs/run.rs", "its commands run", "an event of a job that goes on"),
    ("agent/src/jobs/supervisor/namespace.rs", "{what}", "composed of parts, which the page has"),
    ("agent/src/mounts/manager.rs", "disk does not answer", "the end of a line of the log"),
    ("agent/src/server/routes/health.rs", "cannot write", "cannot happen: metrics are written to memory"),
    ("agent/src/saver.rs", "order is invalid", "cannot happen: the same program writes it"),
    ("agent/src/saver/process.rs", "no pipes", "cannot happen: it is given pipes"),
    ("agent/src/fdstore/process.rs", "the agent has ended", "a part of a line of the log"),
    ("agent/src/jobs/process.rs", "no pipes", "cannot happen: it is given pipes"),
    ("agent/src/jobs/supervisor.rs", "request is invalid", "cannot happen: the same program writes it"),
    ("agent/src/jobs/supervisor/commands.rs", "without an id", "cannot happen: it was just started"),
    ("agent/src/jobs/validation.rs", "the variable {name}", "the beginning of texts, which the page has"),
    ("agent/src/container_volumes/container_volume.rs", "volume {}: ", "a line of the log, with the reason"),
    ("agent/src/publications/bind.rs", "cannot ", "the system's reason follows"),
    ("agent/src/publications/publishing.rs", "unpublished {}", "a line of the log"),
    ("agent/src/publications/publication/end.rs", "cannot unpublish", "a line of the log, with the reason"),
    ("agent/src/volumes/trash.rs", "is full", "cannot happen: it is emptied all the time"),
    ("cli/src/commands/cluster/issue.rs", "invalid host name", "cannot happen: the id was checked before"),
    ("cli/src/commands/job/follow.rs", "job {} is", "composed of words that change"),
    ("csi/src/locality.rs", "does not list them", "a part of a line of the log"),
    ("fs/src/files/handles/restore.rs", "not a file", "a part of a line of the log"),
    ("fs/src/ops.rs", "a request failed", "a line of the log, with the reason"),
    ("fs/src/session.rs", "first request", "no kernel does that"),
    ("src/auth/load.rs", "the secret", "the beginning of texts, which the page has"),
    ("src/content/proof.rs", "nothing to prove", "cannot happen: only what has a SHA-256 is proved"),
    ("src/manifest/decoder.rs", "", "the reason in `is damaged (…)`"),
    ("src/mirror/catalog.rs", "cannot be a ref", "cannot happen: what is written was checked before"),
    ("src/mirror/frames.rs", "cannot compress", "cannot happen: zstd compresses all bytes"),
    ("src/mirror/index.rs", "cannot be an entry", "cannot happen: what is written was checked before"),
    ("src/mirror/store.rs", "cannot {action}", "the service's reason follows"),
    ("src/native/image.rs", "than it was measured", "cannot happen: each part is measured first"),
    ("src/origin/hub/hub_error.rs", "", "composed of parts, which the page has"),
    ("src/origin/local.rs", "cannot read", "the system's reason follows"),
    ("src/origin/web/directory_index.rs", "has {what}", "composed of parts"),
    ("src/peer/client/connection.rs", "GET", "a request, not an error"),
    ("src/peer/membership/gossip.rs", "", "cannot happen: a node gossips once"),
    ("src/peer_service.rs", "", "told to another node, which asks elsewhere"),
    ("src/source/credentials/secret_json.rs", "{how}", "composed of parts, which the page has"),
    ("src/tier/conformance.rs", "", "a tier of tests"),
    ("src/tier/memory.rs", "", "a tier of tests"),
    ("src/xml.rs", "it does not begin with", "a part of texts, which the page has"),
];

/// The texts of errors in the source of a product.
fn error_texts(source: &str) -> BTreeSet<&str> {
    let (mut texts, mut attempts) = (BTreeSet::new(), BTreeSet::new());
    for mark in ERROR_MARKS.split('|').chain(ATTEMPT_MARKS) {
        for (at, _) in source.match_indices(mark) {
            let behind = &source[at + mark.len()..];
            let Some((head, rest)) = behind.split_once('"') else { continue };
            if head.len() < MARK_DISTANCE && !head.contains(';') && !head.contains("fn ") {
                let escaped = |end: usize| rest[..end].ends_with('\\');
                let end = rest.match_indices('"').map(|(end, _)| end).find(|end| !escaped(*end));
                let text = &rest[..end.unwrap()];
                let is_attempt = ATTEMPT_MARKS.contains(&mark) && text.starts_with("cannot ");
                let found = if is_attempt { &mut attempts } else { &mut texts };
                found.insert(text);
            }
        }
    }
    texts.retain(|text| text.trim().matches(' ').count() >= 2 && !attempts.contains(text));
    texts
}

/// Whether `message` of the page is the one whose text in the program is `text`.
fn is_message_of(message: &str, text: &str) -> bool {
    let parts = fixed_parts(message);
    let Some(first) = parts.first() else { return false };
    let fixed: usize = text.split('{').map(|part| part.rsplit('}').next().unwrap().len()).sum();
    let has_all = parts.iter().all(|part| text.contains(part));
    // Either it has a good part of the text, or says that it is just the beginning.
    let begins = message.ends_with('…') && message.starts_with(first) && text.starts_with(first);
    has_all && (begins || 3 * parts.iter().map(|part| part.len()).sum::<usize>() >= fixed)
}

#[test]
fn troubleshooting_page_has_the_errors_of_the_program() {
    let page = read("docs/troubleshooting.md");
    let messages = page_messages(&page);
    let (mut missing, mut unused) = (Vec::new(), UNLISTED_TEXTS.to_vec());
    let product = ["src", "fs/src", "agent/src", "cli/src", "csi/src"];
    for path in product.iter().flat_map(|place| files(&repository().join(place), "rs")) {
        let path = path.strip_prefix(repository()).unwrap().to_str().unwrap().to_owned();
        if path.contains("/tests") {
            continue;
        }
        let source = read(&path);
        let source = source.split("\n#[cfg(test)]\nmod ").next().unwrap();
        let lines: Vec<_> = source.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
        for text in error_texts(&lines.join("\n")) {
            let text = joined(text);
            let unlisted = |(file, part, _): &(&str, &str, &str)| path == *file && text.contains(part);
            unused.retain(|entry| !unlisted(entry));
            if !UNLISTED_TEXTS.iter().any(unlisted) && !messages.iter().any(|m| is_message_of(m, &text)) {
                missing.push(format!("{path}: {text}"));
            }
        }
    }
    assert!(missing.is_empty(), "docs/troubleshooting.md lacks errors of the program: {missing:#?}");
    assert!(unused.is_empty(), "no text is left out for these: {unused:#?}");
}

/// The pages of container runtimes, each with the tests that run its blocks, and fail for one that they don't know.
const RUNTIME_PAGES: [(&str, &[&str]); 7] = [
    ("cdi.md", &["cdi_page_blocks_run_from_nothing_to_a_container"]),
    ("containers.md", &["containers_page_blocks_run_on_an_agent"]),
    ("docker.md", &["docker_page_blocks_run_from_nothing_to_containers"]),
    ("fstab.md", &["fstab_page_blocks_run_from_nothing_to_a_mount"]),
    (
        "kubernetes.md",
        &[
            "kubernetes_page_commands_run_or_are_exempt_by_name",
            "kubernetes_page_objects_are_valid",
            "kubernetes_page_volumes_are_taken_by_driver_and_agent",
        ],
    ),
    ("oci-hook.md", &["oci_hook_page_blocks_run_from_nothing_to_a_container"]),
    ("slurm.md", &["slurm_page_blocks_run_from_nothing_to_a_job"]),
];

#[test]
fn runtime_pages_have_tests_that_run_their_blocks() {
    let tests = tests();
    for (page, names) in RUNTIME_PAGES {
        let missing: Vec<_> = names.iter().filter(|name| !tests.contains(**name)).collect();
        assert!(missing.is_empty(), "docs/{page}: there is no test {missing:?}");
        let text = read(&format!("docs/{page}"));
        let prose = text.split("```").step_by(2);
        // Those tests see blocks with fences only.
        let indented: Vec<_> =
            prose.flat_map(|prose| prose.split("\n\n").filter(|part| part.starts_with("    "))).collect();
        assert!(indented.is_empty(), "docs/{page} has blocks without fences: {indented:?}");
    }
}

/// The words of `command` and of each command below it, with their help.
fn helps(machine: &Machine, command: &[String]) -> Vec<(Vec<String>, String)> {
    let words: Vec<_> = command.iter().map(String::as_str).chain(["--help"]).collect();
    let help = machine.run(&words).succeeds();
    let list = help.split("\nCommands:\n").nth(1).map(|rest| rest.split("\n\n").next().unwrap());
    let names =
        list.unwrap_or_default().lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let below = names.filter(|name| !["", "help"].contains(name)).flat_map(|name| {
        let words: Vec<_> = command.iter().cloned().chain([name.to_owned()]).collect();
        // `bench` runs another program, which has a page of its own.
        if name == "bench" { Vec::new() } else { helps(machine, &words) }
    });
    let below: Vec<_> = below.collect();
    [(command.to_vec(), help)].into_iter().chain(below).collect()
}

/// The long options that a help lists.
fn long_options(help: &str) -> impl Iterator<Item = &str> {
    // Text that goes on in the next line is indented more.
    let options =
        help.lines().filter(|line| line.find('-').is_some_and(|at| at <= 6 && line[..at].trim().is_empty()));
    let names = options.filter_map(|line| line.split([' ', ',']).find(|word| word.starts_with("--")));
    // What may be repeated has dots behind it.
    names.map(|name| name.trim_end_matches('.'))
}

/// Whether `text` has the option, and not only a longer one.
fn has_option(text: &str, option: &str) -> bool {
    let is_end = |rest: &str| !rest.starts_with(|letter: char| letter.is_ascii_lowercase() || letter == '-');
    text.match_indices(option).any(|(at, _)| is_end(&text[at + option.len()..]))
}

#[test]
fn commands_page_has_every_option_of_every_command() {
    let page = read("docs/commands.md");
    let (introduction, sections) = page.split_once("\n## ").unwrap();
    let section = |command: &str| {
        let of_command = |text: &&str| {
            let head = text.lines().next().unwrap();
            head.split_once("bdnfs ").is_some_and(|(_, rest)| rest.split(' ').next() == Some(command))
        };
        sections.split("\n## ").filter(of_command).collect::<Vec<_>>().join("\n")
    };
    // A section that refers to those of `mount` and `mirror` has their options, too.
    let text = |command: &str| {
        let own = section(command);
        let has_mirror = own.contains("`bdnfs mirror`") || own.contains("(#bdnfs-mirror)");
        let has_mount = has_mirror || own.contains("`mount`");
        let others = [("mirror", has_mirror), ("mount", has_mount)].into_iter().filter(|(_, has)| *has);
        others.fold(format!("{introduction}\n{own}"), |text, (other, _)| text + &section(other))
    };
    let helps = helps(&Machine::new(), &[]);
    assert!(helps.len() > 50, "{} commands", helps.len());
    let mut missing = Vec::new();
    for (words, help) in &helps {
        let text = text(words.first().map_or("", String::as_str));
        let options = long_options(help).filter(|option| *option != "--help" && !has_option(&text, option));
        missing.extend(options.map(|option| format!("{} {option}", words.join(" "))));
    }
    assert!(missing.is_empty(), "docs/commands.md lacks options: {missing:#?}");
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
