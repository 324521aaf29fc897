//! What YAML 1.1 doesn't take, as PyYAML reads it, though the parser does.

use std::collections::HashSet;

use saphyr_parser::{Event, Parser, ScalarStyle};

use super::{Broken, scalar};

/// Refuses a text that PyYAML refuses. What the parser itself refuses is left to it.
pub(super) fn judge(text: &str) -> Result<(), Broken> {
    let chars: Vec<char> = text.chars().collect();
    let mut between = Between { chars: &chars, anchors: HashSet::new(), at: 0 };
    if let Some(at) = chars.iter().position(|c| !is_printable(*c)) {
        return Err(between.broken(at, format!("holds {}", character(chars[at]))));
    }
    // Of each list or mapping that is not over, whether it is one in brackets or braces.
    let mut flow = Vec::new();
    for (event, span) in Parser::new_from_str(text).map_while(Result::ok) {
        let end = span.end.index();
        // It begins with the anchor and the tag that it has.
        let start = between.properties(span.start.index(), end);
        match event {
            Event::Scalar(text, style, ..) => {
                between.look(start)?;
                if scalar::is_plain(style) {
                    between.plain(start, end, flow.last() == Some(&true) && is_odd(&text))?;
                }
                between.at = between.last(start, end, style).max(between.at);
            }
            Event::SequenceStart(..) | Event::MappingStart(..) => {
                let bracket = start < end && matches!(chars[start], '[' | '{');
                flow.push(bracket || flow.last() == Some(&true));
            }
            Event::SequenceEnd | Event::MappingEnd => {
                flow.pop();
            }
            _ => {}
        }
    }
    between.look(chars.len())
}

/// Whether YAML 1.1 takes it, and it can be seen where a line ends.
fn is_printable(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\r' | ' '..='~' | '\u{a0}'..='\u{fffd}' | '\u{10000}'..)
        && !matches!(c, '\u{2028}' | '\u{2029}')
}

/// Whether a text without quotes is no such text within brackets or braces.
fn is_odd(text: &str) -> bool {
    text.contains('?') || text.starts_with(['|', '>', ':'])
}

fn character(c: char) -> String {
    let code = format!("U+{:04X}", u32::from(c));
    match c {
        '\u{85}' | '\u{2028}' | '\u{2029}' => {
            format!("{code}, a line break that editors don't show as one; replace it")
        }
        _ => format!("the character {code}, which YAML doesn't take"),
    }
}

/// What stands between the texts: brackets, dashes, anchors, tags, comments.
struct Between<'a> {
    chars: &'a [char],
    anchors: HashSet<String>,
    /// How far it has been looked at, in characters.
    at: usize,
}

impl Between<'_> {
    /// Looks at what stands before `end`.
    fn look(&mut self, end: usize) -> Result<(), Broken> {
        while self.at < end {
            let at = self.at;
            self.at += 1;
            match self.chars[at] {
                '#' if self.apart(at) => self.at = self.until(at, end, is_break),
                '%' if at == 0 || is_break(self.chars[at - 1]) => self.directive(at, end)?,
                '\t' => return Err(self.tab(at)),
                '\u{feff}' => {
                    return Err(self.broken(at, "has a byte order mark (U+FEFF) in its midst; delete it"));
                }
                '&' => self.anchor(at, end)?,
                '!' => self.tag(at, end)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Where the anchor and the tag end that stand from `start` on, before a value that ends at `end`.
    fn properties(&self, start: usize, end: usize) -> usize {
        let mut at = start;
        while at < end && matches!(self.chars[at], '&' | '!') {
            at = self.until(at, end, is_blank);
            at = self.until(at, end, |c| !is_blank(c));
        }
        at
    }

    /// Where a text ends that the parser lets end at `end`: one in quotes takes the blanks after it along there.
    fn last(&self, start: usize, end: usize, style: ScalarStyle) -> usize {
        let quote = match style {
            ScalarStyle::SingleQuoted => '\'',
            ScalarStyle::DoubleQuoted => '"',
            _ => return end,
        };
        self.chars[start..end].iter().rposition(|c| *c == quote).map_or(end, |at| start + at + 1)
    }

    /// Looks at a text without quotes, which may be an `odd` one.
    fn plain(&self, start: usize, end: usize, odd: bool) -> Result<(), Broken> {
        if odd {
            let what = "has a text with a '?', or with '|', '>' or ':' at its beginning, within brackets or braces; quote it";
            return Err(self.broken(start, what));
        }
        let tab = (start..end).find(|at| self.chars[*at] == '\t');
        tab.map_or(Ok(()), |at| Err(self.tab(at)))
    }

    fn tab(&self, at: usize) -> Broken {
        self.broken(at, "has a tab outside of quotes; write spaces")
    }

    fn directive(&mut self, at: usize, end: usize) -> Result<(), Broken> {
        self.at = self.until(at, end, is_break);
        let line: String = self.chars[at + 1..self.at].iter().collect();
        let (name, rest) = line.split_once([' ', '\t']).unwrap_or((&line, ""));
        if name.is_empty() || !name.chars().all(is_letter) {
            return Err(
                self.broken(at, "has a directive (%) whose name is not of letters, digits, '-' and '_'")
            );
        }
        if name == "YAML" && !rest.trim_start().starts_with("1.") {
            return Err(self.broken(at, "is not of version 1 of YAML"));
        }
        Ok(())
    }

    fn anchor(&mut self, at: usize, end: usize) -> Result<(), Broken> {
        self.at = self.until(at + 1, end, |c| !is_letter(c));
        let name: String = self.chars[at + 1..self.at].iter().collect();
        let after = self.chars.get(self.at).copied().unwrap_or('\n');
        if name.is_empty() || !(is_blank(after) || ",]}".contains(after)) {
            let what = "has an anchor (&) whose name is not of letters, digits, '-' and '_'; a text that begins with '&' has \
                        to be quoted";
            return Err(self.broken(at, what));
        }
        if self.anchors.contains(&name) {
            return Err(self.broken(at, format!("has the anchor &{name} twice")));
        }
        self.anchors.insert(name);
        Ok(())
    }

    fn tag(&mut self, at: usize, end: usize) -> Result<(), Broken> {
        let after = self.until(at, self.chars.len(), is_blank);
        self.at = after.min(end);
        let tag = &self.chars[at..after];
        let verbatim = tag.get(1) == Some(&'<');
        if !verbatim && tag.iter().any(|c| ",[]{}".contains(*c)) {
            return Err(self.broken(at, "has a tag (!) that no space follows"));
        }
        Ok(())
    }

    /// Whether nothing stands right before `at`.
    fn apart(&self, at: usize) -> bool {
        at == 0 || is_blank(self.chars[at - 1])
    }

    /// The first place from `at` where something is that `stops`, or `end`.
    fn until(&self, at: usize, end: usize, stops: impl Fn(char) -> bool) -> usize {
        self.chars[at..end].iter().position(|c| stops(*c)).map_or(end, |n| at + n)
    }

    fn broken(&self, at: usize, what: impl Into<String>) -> Broken {
        let before = self.chars[..at].iter().collect::<String>().replace("\r\n", "\n");
        Broken { line: 1 + before.matches(['\n', '\r']).count(), what: what.into() }
    }
}

fn is_break(c: char) -> bool {
    matches!(c, '\n' | '\r')
}

/// Whether the names of anchors and directives may have it.
fn is_letter(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_')
}

fn is_blank(c: char) -> bool {
    is_break(c) || matches!(c, ' ' | '\t')
}
