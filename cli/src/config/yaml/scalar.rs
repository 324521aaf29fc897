//! Values of YAML scalars, where every version of YAML reads them alike.

use saphyr_parser::{ScalarStyle, Tag};
use serde_json::{Number, Value};

use crate::config::number;

/// The value of a scalar.
///
/// # Errors
/// A message, for a tag other than `!!str` and for text without quotes that YAML's versions read differently.
pub(super) fn value(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Result<Value, String> {
    match tag {
        Some(tag) if tag.is_yaml_core_schema() && tag.suffix == "str" => Ok(Value::from(text)),
        Some(tag) => Err(unsupported(tag)),
        None if style == ScalarStyle::Plain => plain(text),
        None => Ok(Value::from(text)),
    }
}

pub(super) fn unsupported(tag: &Tag) -> String {
    let name = if tag.is_yaml_core_schema() { format!("!!{}", tag.suffix) } else { tag.to_string() };
    // What its %xx stand for may be a line break.
    format!("unsupported tag {}; only !!str can be used, for text", name.escape_debug())
}

fn plain(text: &str) -> Result<Value, String> {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Ok(Value::Null),
        "true" | "True" | "TRUE" => Ok(Value::Bool(true)),
        "false" | "False" | "FALSE" => Ok(Value::Bool(false)),
        _ if is_decimal(text) => Ok(number(text)),
        _ if is_ambiguous(text) => Err(format!(
            "ambiguous value {text:?}; quote it if it is text, else write true, false or a decimal number"
        )),
        _ => Ok(Value::from(text)),
    }
}

/// Whether `text` is a JSON number without an exponent: YAML 1.1 takes most of those for text.
fn is_decimal(text: &str) -> bool {
    !text.contains(['e', 'E']) && serde_json::from_str::<Number>(text).is_ok()
}

/// Whether some version of YAML reads it as anything but text. Some text that looks the same is refused with it.
fn is_ambiguous(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    let unsigned = text.trim_start_matches(['-', '+']);
    let all = |text: &str, others: &str| text.chars().all(|c| c.is_ascii_digit() || others.contains(c));
    let after_radix = ["0b", "0o", "0x"].iter().find_map(|radix| unsigned.strip_prefix(radix));
    matches!(&*text, "yes" | "no" | "on" | "off" | "=" | "<<")
        // In brackets a key, to YAML 1.1.
        || text.starts_with('?')
        || matches!(unsigned, ".inf" | ".nan")
        || after_radix.is_some_and(|digits| all(digits, "_abcdef"))
        // 010, 1_000, .5, 1e5, 1:30, 2024-01-01T10:00:00Z; but not 1.2.3
        || unsigned.trim_start_matches('.').starts_with(|c: char| c.is_ascii_digit())
            && unsigned.matches('.').count() < 2
            && all(unsigned, "_.:+-etz \t")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_scalar_read_alike_by_all_versions_is_accepted() {
        for text in
            ["1.2.3", "123abc", "py311", "16Gi", "-", "+", ".", "_1", "y", "nul", "/m", "127.0.0.1", "a:b"]
        {
            assert_eq!(plain(text), Ok(Value::from(text)), "{text}");
        }
        for text in ["0", "-12", "1.5", "-0.25", "123456789012345678901234567890"] {
            assert!(plain(text).is_ok_and(|value| value.is_number()), "{text}");
        }
        assert_eq!((plain("~"), plain("True")), (Ok(Value::Null), Ok(Value::Bool(true))));
    }

    #[test]
    fn plain_scalar_read_differently_by_versions_is_refused() {
        for text in [
            "No",
            "ON",
            "1e5",
            "08",
            "017",
            "0o17",
            "0x1F",
            "0b1_0",
            "+1",
            "1_000",
            "1.",
            ".5",
            "-.5",
            "1.5e3",
            "1.5e+3",
            ".inf",
            "-.INF",
            ".nan",
            "1:30",
            "1:30.5",
            "2024-01-01",
            "2024-1-1",
            "2024-01-01 10:00:00 +01:00",
            "?x",
            "=",
            "<<",
        ] {
            assert!(plain(text).is_err(), "{text}");
        }
    }
}
