//! Lines that begin further left than what they belong to. In brackets, braces and quotes YAML 1.1 lets them begin anywhere,
//! and a bracket that is closed right below its key is how most people write a list; 1.2, and the parser, want them indented.
//! They are moved to the right here, which in such places changes nothing.

use std::borrow::Cow;

use saphyr_parser::{Parser, ScanError};

use super::{Broken, broken};

/// How far a line is moved, in characters.
const FAR: usize = 256;
/// How much text is read for this at the most, in bytes: it is read once more for each line that is moved.
const MOST_READ: usize = 64 << 20;

/// What the parser says of such a line.
const FLOW: [&str; 3] =
    ["invalid indentation", "invalid indentation in flow construct", "tab cannot be used as indentation"];
/// What it says of a text in quotes with one; it tells where the text begins.
const QUOTED: &str = "invalid indentation in quoted scalar";

/// The text with these lines moved to the right. Each keeps its number.
pub(super) fn widened(text: &str) -> Result<Cow<'_, str>, Broken> {
    let (mut text, mut moved) = (Cow::Borrowed(text), 0);
    let turns = MOST_READ / text.len().max(1);
    for _ in 0..turns {
        let Some(error) = error(&text) else { return Ok(text) };
        let line = match error.info() {
            QUOTED => moved.max(error.marker().line()) + 1,
            what if FLOW.contains(&what) => error.marker().line(),
            _ => return Err(broken(&error)),
        };
        let begin = begin(&text, line).filter(|_| line > moved).ok_or_else(|| broken(&error))?;
        text.to_mut().insert_str(begin, &" ".repeat(FAR));
        moved = line;
    }
    error(&text).map_or(Ok(text), |error| Err(broken(&error)))
}

/// The first thing that is wrong with a text.
fn error(text: &str) -> Option<ScanError> {
    Parser::new_from_str(text).find_map(Result::err)
}

/// Where the line with this number begins, in bytes.
fn begin(text: &str, line: usize) -> Option<usize> {
    let bytes = text.as_bytes();
    let ends = |at: &usize| bytes[*at] == b'\n' || bytes[*at] == b'\r' && bytes.get(at + 1) != Some(&b'\n');
    match line.checked_sub(2) {
        None => Some(0),
        Some(before) => (0..bytes.len()).filter(ends).nth(before).map(|end| end + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_in_brackets_or_quotes_may_begin_anywhere() {
        for text in [
            "a:\n- b: [\n    x,\n  ]\n  c: d\n",
            "a: [\nx,\n{b: c,\nd: e}\n]\n",
            "a:\r\n- b: {\r\n  x: \"y\r\nz\r\n\r\n\"\r\n}\r\n",
            "a: 'b\n\tc'\n",
            "a:\n  - [b\nc]\n",
        ] {
            let widened = widened(text).unwrap_or_else(|e| panic!("{text:?}: {e:?}"));
            assert_eq!(widened.lines().count(), text.lines().count());
            assert_eq!(widened.replace(&" ".repeat(FAR), ""), text);
        }
        assert!(matches!(widened("a: [\n  b]\n"), Ok(Cow::Borrowed(_))));
    }

    #[test]
    fn what_is_wrong_stays_wrong_and_on_its_line() {
        for (text, line) in [("a:\n- b: [\n", 3), ("a: \"b\n", 1), ("a:\n - b: [\n]\n c: d\n", 4)] {
            assert_eq!(widened(text).expect_err(text).line, line, "{text:?}");
        }
        let many = format!("a: [\n{}]\n", "b,\n".repeat(40_000));
        assert!(widened(&many).is_err());
    }
}
