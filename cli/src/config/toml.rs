//! TOML, the language of configurations of bdnfs itself.

use bdnfs::source::DocumentPath;
use serde_json::{Map, Value};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{Document, LineIndex, ParseError, number, too_deep};

pub(super) fn parse(text: &str) -> Result<Document, ParseError> {
    let lines = LineIndex::new(text);
    let table = DeTable::parse(text).map_err(|e| {
        let line = e.span().map_or(1, |span| lines.line(span.start));
        ParseError::new(line, format!("invalid TOML: {}", e.message()))
    })?;
    let mut document = Document::default();
    document.value =
        tree(table.get_ref(), &DocumentPath::default(), &lines, &mut document, super::MAX_CONFIG_DEPTH)?;
    Ok(document)
}

fn tree(
    table: &DeTable<'_>,
    place: &DocumentPath,
    lines: &LineIndex,
    document: &mut Document,
    depth: usize,
) -> Result<Value, ParseError> {
    let mut map = Map::new();
    for (key, value) in table {
        let place = place.key(key.get_ref());
        document.record_line(&place, lines.line(key.span().start))?;
        map.insert(key.get_ref().to_string(), value_of(value, &place, lines, document, depth)?);
    }
    Ok(Value::Object(map))
}

fn value_of(
    value: &Spanned<DeValue<'_>>,
    place: &DocumentPath,
    lines: &LineIndex,
    document: &mut Document,
    depth: usize,
) -> Result<Value, ParseError> {
    let line = lines.line(value.span().start);
    let depth = depth.checked_sub(1).ok_or_else(|| too_deep(line))?;
    Ok(match value.get_ref() {
        DeValue::String(text) => Value::from(text.as_ref()),
        DeValue::Boolean(flag) => Value::from(*flag),
        DeValue::Integer(digits) => number(digits.as_str()),
        DeValue::Float(digits) => number(digits.as_str()),
        DeValue::Datetime(time) => number(&time.to_string()),
        DeValue::Table(table) => tree(table, place, lines, document, depth)?,
        DeValue::Array(items) => {
            let mut list = Vec::new();
            for (i, item) in items.iter().enumerate() {
                let place = place.index(i);
                document.record_line(&place, lines.line(item.span().start))?;
                list.push(value_of(item, &place, lines, document, depth)?);
            }
            Value::Array(list)
        }
    })
}
