//! JSON, as Truss dumps training jobs. Each value is taken as the slice of text that it is, which tells its line.

use std::fmt;

use bdnfs::source::DocumentPath;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::{DUPLICATE_KEY_WARNING, Document, LineIndex, ParseError, too_deep};

pub(super) fn parse(text: &str) -> Result<Document, ParseError> {
    let mut reader = JsonReader { text, lines: LineIndex::new(text), document: Document::default() };
    let whole = serde_json::from_str::<&RawValue>(text)
        .map_err(|e| ParseError::new(e.line().max(1), format!("invalid JSON at column {}", e.column())))?;
    let value = reader.read(whole, &DocumentPath::default(), super::MAX_CONFIG_DEPTH)?;
    Ok(Document { value, ..reader.document })
}

struct JsonReader<'a> {
    text: &'a str,
    lines: LineIndex,
    document: Document,
}

impl<'a> JsonReader<'a> {
    fn read(&mut self, raw: &'a RawValue, place: &DocumentPath, depth: usize) -> Result<Value, ParseError> {
        // A raw value is a piece of the text that is being read.
        let line = self.lines.line(raw.get().as_ptr() as usize - self.text.as_ptr() as usize);
        let invalid =
            |e: serde_json::Error| ParseError::new(line + e.line().saturating_sub(1), "invalid JSON");
        let depth = depth.checked_sub(1).ok_or_else(|| too_deep(line))?;
        self.document.record_line(place, line)?;
        match raw.get().as_bytes().first() {
            Some(b'{') => {
                let JsonObject(pairs) = serde_json::from_str(raw.get()).map_err(invalid)?;
                let mut map = Map::new();
                for (key, value) in pairs {
                    let place = place.key(&key);
                    if map.contains_key(&key) {
                        self.document.findings.warn(&place, DUPLICATE_KEY_WARNING);
                    }
                    map.insert(key, self.read(value, &place, depth)?);
                }
                Ok(Value::Object(map))
            }
            Some(b'[') => {
                let items: Vec<&RawValue> = serde_json::from_str(raw.get()).map_err(invalid)?;
                let each = |(i, item)| self.read(item, &place.index(i), depth);
                Ok(Value::Array(items.into_iter().enumerate().map(each).collect::<Result<_, _>>()?))
            }
            _ => serde_json::from_str(raw.get()).map_err(invalid),
        }
    }
}

/// A JSON object as it is written: all its pairs, in their order.
struct JsonObject<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for JsonObject<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor;
        impl<'de> Visitor<'de> for ObjectVisitor {
            type Value = JsonObject<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = Vec::new();
                while let Some((key, value)) = map.next_entry::<String, &RawValue>()? {
                    pairs.push((key, value));
                }
                Ok(JsonObject(pairs))
            }
        }
        deserializer.deserialize_map(ObjectVisitor)
    }
}
