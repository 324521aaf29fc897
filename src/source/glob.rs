//! One file name pattern, with the meaning that Python's `fnmatch.fnmatchcase` gives it.
//!
//! `*` matches any run of characters, `/` among them, `?` any one character, `[seq]` one of a set, `[!seq]` one
//! that is not in it. There is no escape: a literal bracket is `[[]`. On top of that come two rules of the
//! `huggingface_hub` library (`filter_repo_objects`), so that patterns carry over: a backslash is read as `/`, in
//! patterns and in names, and a pattern that ends with `/` means all that is below it.

/// One character of a name: a Unicode scalar value, or [`INVALID_BYTE_BASE`] and above for a byte that is not UTF-8.
pub(super) type Unit = u32;

/// The offset of a byte that is not UTF-8: past the last Unicode scalar value, so that no character of a pattern equals it.
const INVALID_BYTE_BASE: Unit = 0x11_0000;

/// Negates a set when it is its first character.
const SET_NEGATION: Unit = '!' as Unit;

/// The characters of `name`, as patterns see them.
pub(super) fn units(name: &[u8]) -> Vec<Unit> {
    let mut units = Vec::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        units.extend(chunk.valid().chars().map(|c| if c == '\\' { '/' } else { c } as Unit));
        units.extend(chunk.invalid().iter().map(|b| INVALID_BYTE_BASE + Unit::from(*b)));
    }
    units
}

/// A parsed pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Glob {
    text: String,
    tokens: Vec<Token>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    /// Any run of characters.
    Star,
    /// Any one character.
    Any,
    /// The one character.
    One(Unit),
    /// One character in these ranges, or one outside of them all.
    Set { negated: bool, ranges: Vec<(Unit, Unit)> },
}

impl Token {
    fn matches(&self, unit: Unit) -> bool {
        match self {
            Self::Star => false,
            Self::Any => true,
            Self::One(one) => *one == unit,
            Self::Set { negated, ranges } => {
                ranges.iter().any(|(low, high)| (*low..=*high).contains(&unit)) != *negated
            }
        }
    }
}

impl Glob {
    /// Parses a pattern. Every text is one: a bracket that is never closed stands for itself.
    pub(super) fn new(text: &str) -> Self {
        let mut pattern = units(text.as_bytes());
        if pattern.last() == Some(&Unit::from('/')) {
            pattern.push('*'.into());
        }
        let mut tokens = Vec::new();
        let mut rest = &pattern[..];
        while let [first, after @ ..] = rest {
            rest = after;
            let token = match char::from_u32(*first) {
                Some('*') => Token::Star,
                Some('?') => Token::Any,
                Some('[') => match set(after) {
                    Some((token, after)) => {
                        rest = after;
                        token
                    }
                    None => Token::One(*first),
                },
                _ => Token::One(*first),
            };
            if token != Token::Star || tokens.last() != Some(&Token::Star) {
                tokens.push(token);
            }
        }
        Self { text: text.into(), tokens }
    }

    /// The pattern as it was given.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Whether the whole of `name` matches. Takes at most the product of the two lengths: on a mismatch only the
    /// last star is tried again, one character longer. An earlier one never needs to be, since the shortest match of
    /// what stands between two stars leaves the most for the rest.
    pub(super) fn matches(&self, name: &[Unit]) -> bool {
        let (mut token, mut at) = (0, 0);
        let mut star: Option<(usize, usize)> = None;
        while at < name.len() {
            match self.tokens.get(token) {
                Some(Token::Star) => {
                    token += 1;
                    star = Some((token, at));
                }
                Some(t) if t.matches(name[at]) => {
                    token += 1;
                    at += 1;
                }
                _ => match star {
                    None => return false,
                    Some((after, from)) => {
                        star = Some((after, from + 1));
                        (token, at) = (after, from + 1);
                    }
                },
            }
        }
        self.tokens[token..].iter().all(|t| *t == Token::Star)
    }
}

impl Glob {
    /// Whether every name that begins with `prefix` matches; false also where that can't be told easily.
    pub(super) fn covers(&self, prefix: &[Unit]) -> bool {
        self.tokens.last() == Some(&Token::Star) && self.matches(prefix)
    }

    /// Whether a longer name that begins with `prefix` may match; false only if none does.
    pub(super) fn may_match_below(&self, prefix: &[Unit]) -> bool {
        for (token, unit) in self.tokens.iter().zip(prefix) {
            match token {
                Token::Star => return true,
                token if !token.matches(*unit) => return false,
                _ => {}
            }
        }
        self.tokens.len() > prefix.len()
    }
}

/// The set that begins after its opening bracket at the start of `text`, and what comes after its closing one.
/// `None` where it is never closed.
fn set(text: &[Unit]) -> Option<(Token, &[Unit])> {
    let body = &text[usize::from(text.first() == Some(&SET_NEGATION))..];
    // A closing bracket in the first place is a member of the set.
    let end = 1 + body.get(1..)?.iter().position(|u| *u == Unit::from(']'))?;
    let (inside, after) = text.split_at(text.len() - body.len() + end);
    let mut chunks = chunks(inside);
    let negated = chunks[0].first() == Some(&SET_NEGATION);
    if negated {
        chunks[0].remove(0);
        if chunks[0].is_empty() && chunks.len() > 1 {
            // Nothing is left for the range to begin with, so its dash is a member.
            chunks.remove(0);
            chunks[0].insert(0, '-'.into());
        }
    }
    let mut ranges = Vec::new();
    for (at, chunk) in chunks.iter().enumerate() {
        // What begins and ends a range is no member by itself.
        let from = usize::from(at > 0);
        let to = chunk.len().saturating_sub(usize::from(at + 1 < chunks.len()));
        ranges.extend(chunk.get(from..to).unwrap_or_default().iter().map(|one| (*one, *one)));
    }
    let bounds = chunks.windows(2).filter_map(|pair| Some((*pair[0].last()?, *pair[1].first()?)));
    ranges.extend(bounds);
    Some((Token::Set { negated, ranges }, &after[1..]))
}

/// Splits the set `text` at the dashes that make ranges: each from the last character before
/// it to the first one after it. A range that runs backwards is dropped with both of its ends, as Python does it, before
/// anything else is read: so `[b-a!c]` is `[!c]`.
fn chunks(text: &[Unit]) -> Vec<Vec<Unit>> {
    let dash = |from: usize| Some(from + text.get(from..)?.iter().position(|u| *u == Unit::from('-'))?);
    let (mut chunks, mut start) = (Vec::new(), 0);
    let mut next = dash(if text.first() == Some(&SET_NEGATION) { 2 } else { 1 });
    while let Some(at) = next {
        chunks.push(text[start..at].to_vec());
        start = at + 1;
        next = dash(at + 3);
    }
    match (&text[start..], chunks.last_mut()) {
        // A dash in the last place is a member.
        ([], Some(last)) => last.push('-'.into()),
        (rest, _) => chunks.push(rest.to_vec()),
    }
    for at in (1..chunks.len()).rev() {
        if chunks[at - 1].last() > chunks[at].first() {
            let rest = chunks.remove(at);
            chunks[at - 1].pop();
            chunks[at - 1].extend_from_slice(&rest[1..]);
        }
    }
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, name: &[u8]) -> bool {
        Glob::new(pattern).matches(&units(name))
    }

    /// The answers of Python 3.11's `fnmatch.fnmatchcase`.
    #[test]
    fn glob_set_matches_as_in_python() {
        for (pattern, yes, no) in [
            ("[]a]", "]a", "b["),
            ("[!]a]", "b!", "]a"),
            ("[a-]", "a-", "b"),
            ("[-a]", "a-", "b"),
            ("[!-a]", "!b", "-a"),
            ("[a-c-e]", "abc-e", "d"),
            ("[c-a]", "", "abc-"),
            ("[!c-a]", "abc-", ""),
            ("[--/]", "-./", "a"),
            ("[[]", "[", "]"),
            ("[^a]", "^a", "b"),
            ("[a&&b]", "a&b", "c"),
            ("[z-a-c]", "-c", "zab"),
            ("[b-a!c]", "ab!", "c"),
            ("[b-a!]", "ab!", ""),
            ("[b-a]", "", "ab-"),
            ("?", "a]é", ""),
        ] {
            for c in yes.chars() {
                assert!(matches(pattern, c.to_string().as_bytes()), "{pattern} should match {c}");
            }
            for c in no.chars() {
                assert!(!matches(pattern, c.to_string().as_bytes()), "{pattern} should not match {c}");
            }
        }
        assert!(
            matches("[", b"[") && matches("[!", b"[!") && matches("[]", b"[]") && matches("x[!]", b"x[!]")
        );
    }

    #[test]
    fn glob_takes_a_stray_byte_for_one_character() {
        assert!(matches("a?b", b"a\xffb") && matches("a[!x]b", b"a\xffb") && matches("*", b"\xff\xfe"));
        assert!(!matches("a?b", b"a\xff\xfeb") && !matches("\u{fffd}", b"\xff"));
        assert!(matches("?", "é".as_bytes()) && !matches("??", "é".as_bytes()));
    }

    #[test]
    fn glob_with_many_stars_takes_linear_time() {
        let name = vec![b'a'; 4000];
        assert!(!matches(&"*a".repeat(200).replace("*a*a", "*a*b"), &name));
        assert!(matches(&"*a".repeat(200), &name));
    }
}
