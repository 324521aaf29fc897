//! YAML, in the subset that Truss configurations use. Truss reads YAML 1.1 (PyYAML) and the parser here is one of YAML 1.2:
//! a scalar that the two read differently is refused.

mod scalar;

use std::collections::HashMap;

use bdnfs::source::DocumentPath;
use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, StrInput, Tag};
use serde_json::{Map, Value};

use super::{DUPLICATE_KEY_WARNING, Document, MAX_VALUES, ParseError, too_deep};

/// The key whose mappings are merged into its own.
const MERGE_KEY: &str = "<<";

pub(super) fn parse(text: &str) -> Result<Document, ParseError> {
    // The parser takes a NUL for the end of the text, and other line breaks than editors do.
    let control = |c: char| c.is_control() && !matches!(c, '\t' | '\n' | '\r');
    if let Some((at, c)) = text.char_indices().find(|(_, c)| control(*c)) {
        let line = 1 + text[..at].matches('\n').count();
        return Err(ParseError::new(line, format!("control character U+{:04X}; delete it", u32::from(c))));
    }
    let mut reader = YamlReader {
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
                return Err(ParseError::new(line, "a second document; only one is allowed"));
            }
            Event::DocumentStart(_) => documents += 1,
            Event::StreamStart | Event::StreamEnd | Event::DocumentEnd | Event::Nothing => {}
            event => value = reader.node(event, line, &DocumentPath::default(), super::MAX_CONFIG_DEPTH)?,
        }
    }
    if value.is_null() {
        value = Value::Object(Map::new());
    }
    Ok(Document { value, ..reader.document })
}

struct YamlReader<'a> {
    events: Parser<'a, StrInput<'a>>,
    /// The nodes that aliases repeat, by the parser's numbers.
    anchors: HashMap<usize, Value>,
    /// The number of values that aliases repeated: a few lines could ask for billions.
    repeated: usize,
    document: Document,
}

impl<'a> YamlReader<'a> {
    fn next(&mut self) -> Result<Option<(Event<'a>, usize)>, ParseError> {
        match self.events.next() {
            Some(Ok((event, span))) => Ok(Some((event, span.start.line().max(1)))),
            Some(Err(error)) => Err(invalid(&error)),
            None => Ok(None),
        }
    }

    /// The next event of a list or mapping that began on the line `start`.
    fn inner(&mut self, start: usize) -> Result<(Event<'a>, usize), ParseError> {
        self.next()?.ok_or_else(|| ParseError::new(start, "a list or mapping without an end"))
    }

    fn node(
        &mut self,
        event: Event<'a>,
        line: usize,
        place: &DocumentPath,
        depth: usize,
    ) -> Result<Value, ParseError> {
        self.document.record_line(place, line)?;
        let depth = depth.checked_sub(1).ok_or_else(|| too_deep(line))?;
        let (anchor, value) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                return self.scalar(&text, style, anchor, tag.as_deref(), line);
            }
            Event::SequenceStart(_, Some(tag)) | Event::MappingStart(_, Some(tag)) => {
                return Err(ParseError::new(line, scalar::unsupported(&tag)));
            }
            Event::SequenceStart(anchor, None) => (anchor, self.list(line, place, depth)?),
            Event::MappingStart(anchor, None) => (anchor, self.mapping(line, place, depth)?),
            Event::Alias(anchor) => (0, self.alias(anchor, line)?),
            _ => return Err(ParseError::new(line, "a value was expected")),
        };
        self.record_anchor(anchor, &value);
        Ok(value)
    }

    fn scalar(
        &mut self,
        text: &str,
        style: ScalarStyle,
        anchor: usize,
        tag: Option<&Tag>,
        line: usize,
    ) -> Result<Value, ParseError> {
        let value = scalar::value(text, style, tag).map_err(|message| ParseError::new(line, message))?;
        self.record_anchor(anchor, &value);
        Ok(value)
    }

    fn record_anchor(&mut self, anchor: usize, value: &Value) {
        // The parser counts anchors from 1.
        if anchor > 0 {
            self.anchors.insert(anchor, value.clone());
        }
    }

    fn list(&mut self, start: usize, place: &DocumentPath, depth: usize) -> Result<Value, ParseError> {
        let mut items = Vec::new();
        loop {
            match self.inner(start)? {
                (Event::SequenceEnd, _) => return Ok(Value::Array(items)),
                (event, line) => {
                    let place = place.index(items.len());
                    items.push(self.node(event, line, &place, depth)?);
                }
            }
        }
    }

    fn mapping(&mut self, start: usize, place: &DocumentPath, depth: usize) -> Result<Value, ParseError> {
        let mut map = Map::new();
        let mut merged = Vec::new();
        loop {
            let (event, line) = self.inner(start)?;
            if event == Event::MappingEnd {
                break;
            }
            let key = self.key(event, line)?;
            let place = place.key(key.as_deref().unwrap_or(MERGE_KEY));
            let (event, value_line) = self.inner(line)?;
            let value = self.node(event, value_line, &place, depth)?;
            // A finding is sought where its key is.
            self.document.record_line(&place, line)?;
            match key {
                None => merged.push((value, line)),
                Some(key) => {
                    if map.insert(key, value).is_some() {
                        self.document.findings.warn(&place, DUPLICATE_KEY_WARNING);
                    }
                }
            }
        }
        // Of several merge keys the last one counts, as everywhere; of a list of mappings the first.
        for (value, line) in merged.into_iter().rev() {
            self.merge(&mut map, value, line, place)?;
        }
        Ok(Value::Object(map))
    }

    /// The text of a key; `None` for the merge key.
    fn key(&mut self, event: Event<'a>, line: usize) -> Result<Option<String>, ParseError> {
        let value = match event {
            Event::Scalar(text, ScalarStyle::Plain, _, None) if text == MERGE_KEY => return Ok(None),
            Event::Scalar(text, style, anchor, tag) => {
                self.scalar(&text, style, anchor, tag.as_deref(), line)?
            }
            Event::Alias(anchor) => self.alias(anchor, line)?,
            _ => Value::Null,
        };
        match value {
            Value::String(key) => Ok(Some(key)),
            _ => Err(ParseError::new(line, "a key that is not text; quote it")),
        }
    }

    /// Adds what `map` does not have itself.
    fn merge(
        &mut self,
        map: &mut Map<String, Value>,
        value: Value,
        line: usize,
        place: &DocumentPath,
    ) -> Result<(), ParseError> {
        match value {
            Value::Array(items) if !items.iter().any(Value::is_array) => {
                items.into_iter().try_for_each(|item| self.merge(map, item, line, place))
            }
            Value::Object(other) => {
                for (key, value) in other {
                    if !map.contains_key(&key) {
                        self.document.record_line(&place.key(&key), line)?;
                        map.insert(key, value);
                    }
                }
                Ok(())
            }
            _ => Err(ParseError::new(line, "the merge key (<<) needs a mapping, or a list of them")),
        }
    }

    fn alias(&mut self, anchor: usize, line: usize) -> Result<Value, ParseError> {
        let Some(value) = self.anchors.get(&anchor) else {
            return Err(ParseError::new(line, "an alias within the value that it repeats"));
        };
        self.repeated += count(value);
        if self.repeated > MAX_VALUES {
            return Err(ParseError::new(line, format!("aliases repeat more than {MAX_VALUES} values")));
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

fn invalid(error: &ScanError) -> ParseError {
    let hint = match error.info() {
        why if why.contains("anchor") => "; quote text that begins with '*' or '&'",
        why if why.contains("indentation") => "; indent a list, mapping or text further than its key",
        _ => "",
    };
    ParseError::new(error.marker().line().max(1), format!("invalid YAML: {}{hint}", error.info()))
}
