//! YAML, as Truss reads it: PyYAML's, so version 1.1, where `on` is no text and `<<` merges. The parser here is one of version
//! 1.2: [`margin`] gives it what only that forbids, and [`older`] finds what only 1.1 does.

mod margin;
mod older;
mod scalar;

use std::collections::HashMap;

use bdnfs::source::Place;
use saphyr_parser::{Event, Parser, ScanError, Span, StrInput};
use serde_json::{Map, Value};

use super::{Broken, Document, MOST, too_deep};

/// The key that merges other mappings into its own.
const MERGE: &str = "<<";

pub(super) fn parse(text: &str) -> Result<Document, Broken> {
    let text = &*margin::widened(text)?;
    older::judge(text)?;
    let mut reader = Reader {
        events: Parser::new_from_str(text),
        anchors: HashMap::new(),
        repeated: 0,
        document: Document::default(),
    };
    let mut value = Value::Null;
    let mut documents = 0;
    while let Some((event, line)) = reader.next()? {
        match event {
            Event::DocumentStart(_) if documents > 0 => {
                return Err(Broken { line, what: "begins a second document; only one is read".into() });
            }
            Event::DocumentStart(_) => documents += 1,
            Event::StreamStart | Event::StreamEnd | Event::DocumentEnd | Event::Nothing => {}
            event => value = reader.node(event, line, &Place::default(), super::DEEPEST)?,
        }
    }
    if value.is_null() {
        value = Value::Object(Map::new());
    }
    Ok(Document { value, ..reader.document })
}

struct Reader<'a> {
    events: Parser<'a, StrInput<'a>>,
    /// What can be repeated, by the parser's numbers.
    anchors: HashMap<usize, Value>,
    /// How many values were repeated: a few lines could ask for billions.
    repeated: usize,
    document: Document,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<Option<(Event<'a>, usize)>, Broken> {
        match self.events.next() {
            Some(Ok((event, span))) => Ok(Some((event, line(&span)))),
            Some(Err(error)) => Err(broken(&error)),
            None => Ok(None),
        }
    }

    /// The next event of what is not finished yet.
    fn inner(&mut self, from: usize) -> Result<(Event<'a>, usize), Broken> {
        self.next()?.ok_or_else(|| Broken { line: from, what: "does not end".into() })
    }

    fn node(&mut self, event: Event<'a>, line: usize, place: &Place, depth: usize) -> Result<Value, Broken> {
        self.document.note(place, line)?;
        let depth = depth.checked_sub(1).ok_or_else(|| too_deep(line))?;
        let (anchor, value) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let value = scalar::value(&text, style, tag.as_deref());
                (anchor, value.map_err(|what| Broken { line, what })?)
            }
            Event::SequenceStart(anchor, tag) => {
                scalar::collection(tag.as_deref(), "seq").map_err(|what| Broken { line, what })?;
                (anchor, self.list(line, place, depth)?)
            }
            Event::MappingStart(anchor, tag) => {
                scalar::collection(tag.as_deref(), "map").map_err(|what| Broken { line, what })?;
                (anchor, self.mapping(line, place, depth)?)
            }
            Event::Alias(anchor) => (0, self.repeat(anchor, line)?),
            _ => return Err(Broken { line, what: "is not where a value can be".into() }),
        };
        // The parser counts anchors from 1.
        if anchor > 0 {
            self.anchors.insert(anchor, value.clone());
        }
        Ok(value)
    }

    fn list(&mut self, from: usize, place: &Place, depth: usize) -> Result<Value, Broken> {
        let mut items = Vec::new();
        loop {
            match self.inner(from)? {
                (Event::SequenceEnd, _) => return Ok(Value::Array(items)),
                (event, line) => {
                    let place = place.index(items.len());
                    items.push(self.node(event, line, &place, depth)?);
                }
            }
        }
    }

    fn mapping(&mut self, from: usize, place: &Place, depth: usize) -> Result<Value, Broken> {
        let mut map = Map::new();
        let mut merged = Vec::new();
        loop {
            let (event, line) = self.inner(from)?;
            if event == Event::MappingEnd {
                break;
            }
            let (key, merges) = self.key(event, line)?;
            let place = place.key(&key);
            let (event, at) = self.inner(line)?;
            let value = self.node(event, at, &place, depth)?;
            // A finding is sought where its key is.
            self.document.note(&place, line)?;
            if merges {
                merged.push((value, line));
            } else if map.insert(key, value).is_some() {
                self.document.findings.warn(&place, "is there twice; the last one counts");
            }
        }
        // Of several the last one counts, as everywhere; of a list of them the first.
        for (value, line) in merged.into_iter().rev() {
            self.merge(&mut map, value, line, place)?;
        }
        Ok(Value::Object(map))
    }

    /// A key, and whether it is the one that merges.
    fn key(&mut self, event: Event<'a>, line: usize) -> Result<(String, bool), Broken> {
        let none = "has something else than a text for a key; quote what is meant as one";
        let (value, anchor) = match event {
            Event::Scalar(text, style, ..) if text == MERGE && scalar::is_plain(style) => {
                return Ok((MERGE.into(), true));
            }
            Event::Scalar(text, style, anchor, tag) => {
                let value = scalar::value(&text, style, tag.as_deref());
                (value.map_err(|what| Broken { line, what })?, anchor)
            }
            Event::Alias(anchor) => (self.repeat(anchor, line)?, 0),
            _ => return Err(Broken { line, what: none.into() }),
        };
        let Value::String(key) = value else { return Err(Broken { line, what: none.into() }) };
        if anchor > 0 {
            self.anchors.insert(anchor, Value::from(&*key));
        }
        Ok((key, false))
    }

    /// Adds what `map` doesn't say itself.
    fn merge(
        &mut self,
        map: &mut Map<String, Value>,
        value: Value,
        line: usize,
        place: &Place,
    ) -> Result<(), Broken> {
        match value {
            Value::Array(items) => items.into_iter().try_for_each(|item| match item {
                Value::Array(_) => Err(Broken { line, what: "merges a list of lists".into() }),
                item => self.merge(map, item, line, place),
            }),
            Value::Object(other) => {
                for (key, value) in other {
                    if !map.contains_key(&key) {
                        self.document.note(&place.key(&key), line)?;
                        map.insert(key, value);
                    }
                }
                Ok(())
            }
            _ => Err(Broken { line, what: "merges (<<) something else than a mapping".into() }),
        }
    }

    fn repeat(&mut self, anchor: usize, line: usize) -> Result<Value, Broken> {
        let Some(value) = self.anchors.get(&anchor) else {
            return Err(Broken { line, what: "repeats what is not finished yet".into() });
        };
        self.repeated += count(value);
        if self.repeated > MOST {
            return Err(Broken { line, what: format!("repeats more than {MOST} values") });
        }
        Ok(value.clone())
    }
}

fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(count).sum::<usize>(),
        Value::Object(map) => map.values().map(count).sum::<usize>(),
        _ => 0,
    }
}

fn line(span: &Span) -> usize {
    span.start.line().max(1)
}

fn broken(error: &ScanError) -> Broken {
    let why = error.info();
    let hint =
        if why.contains("anchor") { "; a text that begins with '*' or '&' has to be quoted" } else { "" };
    Broken { line: error.marker().line().max(1), what: format!("is no YAML: {why}{hint}") }
}
