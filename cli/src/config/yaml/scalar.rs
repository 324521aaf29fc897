//! What a scalar of YAML 1.1 is, by the rules of PyYAML's resolver.

use chrono::NaiveDate;
use saphyr_parser::{ScalarStyle, Tag};
use serde_json::Value;

use crate::config::number;

/// Whether it was written without quotes.
pub(super) fn is_plain(style: ScalarStyle) -> bool {
    style == ScalarStyle::Plain
}

/// Where the tags of YAML itself stand, when they are written out.
const CORE: &str = "tag:yaml.org,2002:";

/// What a tag says: the name of one of YAML's own, `Some("")` for the `!` by itself, which says nothing.
fn named(tag: &Tag) -> Option<&str> {
    match (&*tag.handle, &*tag.suffix) {
        ("", "!") | ("!", "") => Some(""),
        (CORE, suffix) => Some(suffix).filter(|name| !name.is_empty()),
        ("", whole) => whole.strip_prefix(CORE).filter(|name| !name.is_empty()),
        _ => None,
    }
}

/// Its value, or what is wrong with it.
pub(super) fn value(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Result<Value, String> {
    let value = match tag.map(named) {
        None if !is_plain(style) => Some(Value::from(text)),
        None | Some(Some("")) if matches!(text, "=" | "<<") => {
            return Err(format!("has {text:?} by itself, which is no text; quote it"));
        }
        None | Some(Some("")) if is_impossible(text) => {
            return Err(format!("has {text:?}, which looks like a number or time and is none; quote it"));
        }
        None | Some(Some("")) => Some(plain(text)),
        Some(Some("str")) => Some(Value::from(text)),
        Some(Some("null")) => Some(Value::Null),
        Some(Some("bool")) => Some(plain(&text.to_ascii_lowercase())).filter(Value::is_boolean),
        Some(Some("int" | "float")) => is_number(text).then(|| number(text)),
        Some(Some("timestamp")) => is_time(text).then(|| number(text)),
        _ => None,
    };
    value.ok_or_else(unknown)
}

/// Says so where a list (`seq`) or mapping (`map`) has the tag of something else.
pub(super) fn collection(tag: Option<&Tag>, own: &str) -> Result<(), String> {
    match tag.map(named) {
        None => Ok(()),
        Some(Some(name)) if name.is_empty() || name == own => Ok(()),
        Some(_) => Err(unknown()),
    }
}

fn unknown() -> String {
    "has a tag that is not known, or not for such a value".into()
}

fn plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => Value::Bool(true),
        "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => Value::Bool(false),
        _ if is_number(text) || is_time(text) => number(text),
        _ => Value::from(text),
    }
}

fn is_number(text: &str) -> bool {
    let (signed, text) = text.strip_prefix(['+', '-']).map_or((false, text), |rest| (true, rest));
    if matches!(text, ".inf" | ".Inf" | ".INF" | ".nan" | ".NaN" | ".NAN") {
        return true;
    }
    if let Some(rest) = text.strip_prefix("0b") {
        return all(rest, |c| matches!(c, '0' | '1'));
    }
    if let Some(rest) = text.strip_prefix("0x") {
        return all(rest, |c| c.is_ascii_hexdigit());
    }
    match text.split_once('.') {
        None => is_whole(text) || (!text.starts_with('0') && is_sixties(text)),
        // One without a digit before its point has no sign, to PyYAML.
        Some(("", fraction)) => !signed && fraction.starts_with(digit) && is_fraction(fraction),
        Some((whole, fraction)) => {
            (begins(whole) && is_fraction(fraction)) || (is_sixties(whole) && is_digits(fraction))
        }
    }
}

/// What comes after a point: digits, perhaps none, and perhaps an exponent with a sign.
fn is_fraction(text: &str) -> bool {
    let Some((digits, exponent)) = text.split_once(['e', 'E']) else { return is_digits(text) };
    is_digits(digits)
        && exponent.strip_prefix(['+', '-']).is_some_and(|e| !e.is_empty() && e.chars().all(digit))
}

fn is_digits(text: &str) -> bool {
    text.is_empty() || all(text, digit)
}

/// An integer, with octal ones after a zero.
fn is_whole(text: &str) -> bool {
    match text.strip_prefix('0') {
        Some("") => true,
        Some(octal) => all(octal, |c| c.is_digit(8)),
        None => begins(text),
    }
}

/// A number to the base of sixty: `190:20:30`.
fn is_sixties(text: &str) -> bool {
    let Some((first, rest)) = text.split_once(':') else { return false };
    begins(first)
        && rest
            .split(':')
            .all(|part| part.len() <= 2 && part.chars().all(digit) && part.parse().is_ok_and(|n: u8| n < 60))
}

/// A date, or a date with a time to the second, perhaps with a fraction and a zone.
fn is_time(text: &str) -> bool {
    let lengths = |part: &str, separator| -> Vec<_> {
        part.split(separator).map(|n| if n.chars().all(digit) { n.len() } else { 0 }).collect()
    };
    let Some(end) = text.find(|c| !digit(c) && c != '-') else { return lengths(text, '-') == [4, 2, 2] };
    let (date, rest) = text.split_at(end);
    let blank = [' ', '\t'];
    let time = rest.strip_prefix(['T', 't']).unwrap_or_else(|| rest.trim_start_matches(blank));
    let end = time.find(|c| !digit(c) && c != ':').unwrap_or(time.len());
    let (time, rest) = time.split_at(end);
    let zone = rest.strip_prefix('.').map_or(rest, |fraction| fraction.trim_start_matches(digit));
    let zone = zone.trim_start_matches(blank);
    let offset = zone.strip_prefix(['+', '-']).map(|offset| lengths(offset, ':'));
    matches!(lengths(date, '-')[..], [4, 1..=2, 1..=2])
        && matches!(lengths(time, ':')[..], [1..=2, 2, 2])
        && (zone == "Z"
            || rest.trim_start_matches('.').chars().all(digit) && zone.is_empty()
            || matches!(offset.as_deref(), Some([1..=2] | [1..=2, 2])))
}

/// Whether it has the form of a number or time, and can't be one.
fn is_impossible(text: &str) -> bool {
    if is_time(text) {
        let parts: Vec<u32> = text.split(|c| !digit(c)).filter_map(|part| part.parse().ok()).collect();
        let date = NaiveDate::from_ymd_opt(parts[0] as i32, parts[1], parts[2]);
        let below = |at: usize, limit| parts.get(at).is_none_or(|part| *part < limit);
        return parts[0] == 0 || date.is_none() || !below(3, 24) || !below(4, 60) || !below(5, 60);
    }
    let digits = text.trim_start_matches(['+', '-']);
    is_number(text)
        && digits
            .strip_prefix("0b")
            .or(digits.strip_prefix("0x"))
            .is_some_and(|d| d.chars().all(|c| c == '_'))
}

/// Digits, with `_` between them.
fn begins(text: &str) -> bool {
    text.starts_with(digit) && all(text, digit)
}

fn all(text: &str, fits: fn(char) -> bool) -> bool {
    !text.is_empty() && text.chars().all(|c| c == '_' || fits(c))
}

fn digit(c: char) -> bool {
    c.is_ascii_digit()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_a_text_is_as_pyyaml_has_it() {
        for text in [
            "1e5",
            "08",
            "0o17",
            "1.2.3",
            "123abc",
            "0b2",
            "1:99",
            "0:1",
            "1:001",
            "-.5",
            "2024-1",
            "-",
            "+",
            ".",
            "_1",
            "y",
            "nul",
            "/m",
            "2024-1-1",
            "2024-1-1 1:2:3",
            "2024-1-1T1:02",
            "2024-01-01 10:00:00 X",
            "2024-01-01 10:00:00 ",
            "2024-01-01T10:00:00+100",
            "2024-01-01-01",
            "2024-01-01x",
        ] {
            assert_eq!(plain(text), Value::from(text), "{text}");
        }
        for text in [
            "0",
            "-12",
            "+1_000",
            "017",
            "0x1F",
            "0b1_0",
            "1.",
            "1.5",
            ".5",
            "1.5e+3",
            ".inf",
            "-.INF",
            ".nan",
            "1:30",
            "1:30.5",
            "2024-01-01",
            "2024-01-01 10:00:00",
            "2024-01-01T10:00:00Z",
            "2024-1-1 1:02:03.",
            "2024-1-1t1:02:03.5 Z",
            "2024-01-01  10:00:00 -7:30",
        ] {
            assert!(plain(text).is_number(), "{text}");
        }
        assert_eq!(
            (plain("~"), plain("No"), plain("ON")),
            (Value::Null, Value::Bool(false), Value::Bool(true))
        );
    }
}
