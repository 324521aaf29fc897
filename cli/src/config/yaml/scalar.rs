//! What a scalar of YAML 1.1 is, by the rules of PyYAML's resolver.

use saphyr_parser::{ScalarStyle, Tag};
use serde_json::Value;

use crate::config::number;

/// Whether it was written without quotes.
pub(super) fn is_plain(style: ScalarStyle) -> bool {
    style == ScalarStyle::Plain
}

/// Its value; `None` for a tag that is not known.
pub(super) fn value(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Option<Value> {
    match tag {
        None if is_plain(style) => Some(plain(text)),
        None => Some(Value::from(text)),
        Some(tag) if tag.is_yaml_core_schema() => match tag.suffix.as_str() {
            "str" => Some(Value::from(text)),
            "null" | "bool" | "int" | "float" | "timestamp" => Some(plain(text)),
            _ => None,
        },
        Some(_) => None,
    }
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

/// A date, or a date with a time to the second.
fn is_time(text: &str) -> bool {
    let split = text.split_once(['T', 't', ' ']);
    let (date, time) = split.map_or((text, None), |(date, time)| (date, Some(time)));
    let length = |part: &str| if part.chars().all(digit) { part.len() } else { 0 };
    let lengths: Vec<_> = date.split('-').map(length).collect();
    let stamp = |c| digit(c) || matches!(c, ':' | '.' | 'Z' | '+' | '-' | ' ');
    match time {
        None => lengths == [4, 2, 2],
        Some(time) => {
            matches!(lengths[..], [4, 1..=2, 1..=2])
                && time.matches(':').count() >= 2
                && time.chars().all(stamp)
        }
    }
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
            "1e5", "08", "0o17", "1.2.3", "123abc", "0b2", "1:99", "0:1", "1:001", "-.5", "2024-1", "-", "+",
            ".", "_1", "y", "nul", "/m",
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
        ] {
            assert!(plain(text).is_number(), "{text}");
        }
        assert_eq!(
            (plain("~"), plain("No"), plain("ON")),
            (Value::Null, Value::Bool(false), Value::Bool(true))
        );
    }
}
