//! Errors of the agent's configuration, in a line that names the key: the parser's own texts name its types.

use bdnfs::source::DocumentPath;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Error};

/// The message for `error`, which the parser has for the configuration `text`.
pub fn explain(text: &str, error: &Error) -> String {
    let start = error.span().map_or(0, |span| span.start);
    let line = 1 + text[..start].matches('\n').count();
    match DeTable::parse(text) {
        Ok(table) => {
            let place = find(table.get_ref(), start, &DocumentPath::default()).unwrap_or_default();
            format!("line {line}: {}", finding(&place, error.message()))
        }
        Err(_) => format!("line {line}: invalid TOML: {}", error.message()),
    }
}

/// The innermost key whose name or value is at `start`.
fn find(table: &DeTable<'_>, start: usize, place: &DocumentPath) -> Option<DocumentPath> {
    table.iter().find_map(|(key, value)| {
        let place = place.key(key.get_ref());
        let is_here = key.span().contains(&start);
        find_in_value(value, start, &place).or_else(|| is_here.then_some(place))
    })
}

fn find_in_value(value: &Spanned<DeValue<'_>>, start: usize, place: &DocumentPath) -> Option<DocumentPath> {
    let inner = match value.get_ref() {
        DeValue::Table(table) => find(table, start, place),
        DeValue::Array(items) => {
            items.iter().enumerate().find_map(|(i, item)| find_in_value(item, start, &place.index(i)))
        }
        _ => None,
    };
    inner.or_else(|| value.span().contains(&start).then(|| place.clone()))
}

/// The message of the parser about the value at `place`, in the words of `bdnfs check`.
fn finding(place: &DocumentPath, message: &str) -> String {
    let quoted = |text: &str| text.split('`').skip(1).step_by(2).collect::<Vec<_>>().join(", ");
    if let Some(rest) = message.strip_prefix("missing field ") {
        return format!("{}: is missing", place.key(&quoted(rest)));
    }
    let (said, expected) = message.split_once(", expected ").unwrap_or((message, ""));
    let text = match said.split_once(' ') {
        Some(("unknown", what)) if what.starts_with("field ") => {
            format!("is not a known key; known keys are {}", quoted(expected))
        }
        Some(("unknown", what)) if what.starts_with("variant ") => {
            format!("must be one of {}, not {:?}", quoted(expected), quoted(what))
        }
        Some(("invalid", what)) if what.starts_with("type: ") || what.starts_with("value: ") => {
            let value = what.split_once(": ").map_or(what, |(_, value)| value);
            format!("must be {}, not {}", type_name(expected), value_name(value))
        }
        _ if said == "invalid socket address syntax" => {
            "must be an IP address with a port, such as 127.0.0.1:9464".to_owned()
        }
        _ => message.to_owned(),
    };
    format!("{place}: {text}")
}

/// The user's word for a type that the parser calls `expected`.
fn type_name(expected: &str) -> &str {
    match expected {
        "path string" => "a path",
        "a sequence" => "a list",
        "a boolean" => "true or false",
        "u32" => "a whole number from 0 to 4294967295",
        // Of sizes.
        "parsable string" | "integer overflow" => "a size such as 200G",
        section if section.starts_with("struct ") || section == "a map" => "a section",
        other => other,
    }
}

/// The user's word for what the parser calls `value`: its type and often the value itself.
fn value_name(value: &str) -> &str {
    match value.split_once(' ') {
        Some(("string", text)) => text,
        Some(("integer" | "boolean", text)) => text.trim_matches('`'),
        Some(("floating", text)) => text.trim_start_matches("point ").trim_matches('`'),
        _ if value == "sequence" => "a list",
        _ if value == "map" => "a section",
        _ => value,
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::ConfigFile;

    #[test]
    fn configuration_error_names_the_key_in_one_line() {
        for (text, said) in [
            (
                "\ncache_sise = \"2T\"",
                "line 2: cache_sise: is not a known key; known keys are cache_dir, cache_size, ",
            ),
            (
                "[tenants.a]\nqouta = \"5G\"",
                "line 2: tenants.a.qouta: is not a known key; known keys are quota",
            ),
            ("cache_size = \"many\"", "line 1: cache_size: must be a size such as 200G, not \"many\""),
            ("cache_size = -1", "line 1: cache_size: must be a size such as 200G, not -1"),
            ("cache_dir = 5", "line 1: cache_dir: must be a path, not 5"),
            ("secrets = \"/run\"", "line 1: secrets: must be a list, not \"/run\""),
            ("secrets = [\"/a\", 1]", "line 1: secrets[1]: must be a path, not 1"),
            ("via = \"smb\"", "line 1: via: must be one of fuse, native, auto, not \"smb\""),
            ("hold = 1.5", "line 1: hold: must be a string, not 1.5"),
            ("mirror = \"s3://x\"", "line 1: mirror: must be a section, not \"s3://x\""),
            ("[mirror]\nregion = \"x\"", "line 1: mirror.url: is missing"),
            ("[cluster]\nlisten = \"here\"", "line 2: cluster.listen: must be an IP address with a port, "),
            (
                "[sources.x]\nsource = \"hf://o/r\"\nuid = -5",
                "line 3: sources.x.uid: must be a whole number from 0 to ",
            ),
            ("[tenants]\nalice = true", "line 2: tenants.alice: must be a section, not true"),
            ("tenant = [\"a\"]", "line 1: tenant: must be a string, not a list"),
            ("cache_size = \"2T", "line 1: invalid TOML: "),
        ] {
            let error = ConfigFile::parse(text).expect_err(text).to_string();
            assert!(error.starts_with(said) && !error.contains('\n'), "{error}");
        }
    }
}
