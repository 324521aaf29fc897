//! The sources in a job's comment: `bdnfs:NAME=SOURCE NAME=SOURCE`.

use std::collections::BTreeMap;
use std::ffi::OsStr;

use anyhow::{Context, Result, bail};
use bdnfs_agent::api::publication::SLURM_STATE_FILE;

use crate::source::Source;

/// The prefix of the sources in a comment; text before it is for people.
const COMMENT_PREFIX: &str = "bdnfs:";
/// The variable in which Slurm passes the job's comment.
const COMMENT_VARIABLE: &str = "SLURM_JOB_COMMENT";

/// The comment of this process's job, if it names sources.
pub fn of_job() -> Option<String> {
    with_sources(&std::env::var_os(COMMENT_VARIABLE)?)
}

/// The text of a comment, if it names sources. People write in any encoding beside them.
fn with_sources(comment: &OsStr) -> Option<String> {
    let text = comment.to_string_lossy();
    let is_named = text.split_whitespace().any(|word| word.starts_with(COMMENT_PREFIX));
    is_named.then(|| text.into_owned())
}

/// The sources that a comment names, by their names.
pub fn parse(comment: &str) -> Result<BTreeMap<String, Source>> {
    let words = comment.split_whitespace().skip_while(|word| !word.starts_with(COMMENT_PREFIX));
    let mut sources = BTreeMap::new();
    for (index, word) in words.enumerate() {
        let word = if index == 0 { word.trim_start_matches(COMMENT_PREFIX) } else { word };
        if word.is_empty() {
            continue;
        }
        let Some((name, source)) = word.split_once('=').filter(|(name, _)| is_name(name)) else {
            bail!(
                "comment of the job: {word:?}: expected NAME=SOURCE, with letters, digits and _ in the name"
            );
        };
        if name == SLURM_STATE_FILE {
            bail!(
                "comment of the job: {name} is a file that bdnfs writes beside the sources; choose another name"
            );
        }
        let mut others = sources.keys().filter(|other: &&String| *other != name);
        if let Some(other) = others.find(|other| variable(other) == variable(name)) {
            bail!("comment of the job: {other} and {name} would both be {}; rename one", variable(name));
        }
        let source = source.parse().with_context(|| format!("comment of the job: {name}"))?;
        if sources.insert(name.to_owned(), source).is_some() {
            bail!("comment of the job: {name} is named twice");
        }
    }
    Ok(sources)
}

/// The variable in which a task finds the path of the source `name`.
pub fn variable(name: &str) -> String {
    format!("BDNFS_{}", name.to_uppercase())
}

/// Whether `name` can be part of the name of a variable, and a directory.
fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn comment_with_leading_text_names_its_sources() {
        let sources = parse("run 7 of June bdnfs:m=hf://o/m@main data=s3://b/p?x=1").expect("valid");
        let shown: Vec<_> = sources.iter().map(|(name, source)| format!("{name} {}", source.uri())).collect();
        assert_eq!(shown[1], "m hf://models/o/m@main");
        assert!(shown[0].starts_with("data s3://b/p"), "{shown:?}");
        for plain in ["", "just a run", "see bdnfs"] {
            assert!(
                with_sources(plain.as_ref()).is_none() && parse(plain).expect("nothing").is_empty(),
                "{plain}"
            );
        }
        // In another encoding than UTF-8.
        for named in [&b"x bdnfs: m=hf://o/m"[..], b"caf\xe9 bdnfs:m=hf://o/m"] {
            let text = with_sources(OsStr::from_bytes(named)).expect("it names sources");
            assert_eq!(parse(&text).expect("one").len(), 1, "{text}");
        }
    }

    #[test]
    fn comment_with_a_bad_name_or_source_is_refused_by_its_word() {
        for (comment, words) in [
            ("bdnfs:hf://o/m", "hf://o/m"),
            ("bdnfs:../x=hf://o/m", "../x"),
            ("bdnfs:m=ftp://h/x", "m"),
            ("bdnfs:m=hf://o/m m=hf://o/n", "m is named twice"),
            ("bdnfs:m=hf://o/m M=hf://o/n", "m and M would both be BDNFS_M; rename one"),
            ("bdnfs:state=hf://o/m", "state is a file that bdnfs writes beside the sources"),
        ] {
            let error = format!("{:#}", parse(comment).expect_err(comment));
            assert!(error.starts_with("comment of the job: ") && error.contains(words), "{error}");
        }
    }
}
