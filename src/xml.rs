//! XML that services answer with.

use quick_xml::Reader;
use quick_xml::events::Event;
use serde::de::DeserializeOwned;

/// The maximum depth of elements in an answer; none has more than five. To read them takes the square of the depth.
const MAX_XML_DEPTH: usize = 16;

/// Reads `text`, whose outermost element has one of the names `roots`. Says why it can't be.
pub(crate) fn read<T: DeserializeOwned>(
    roots: &[&str],
    text: &[u8],
) -> Result<T, Box<dyn std::error::Error + Send + Sync>> {
    let (mut reader, mut depth, mut begun) = (Reader::from_reader(text), 0usize, false);
    loop {
        let event = reader.read_event()?;
        if let Event::Start(tag) | Event::Empty(tag) = &event
            && !std::mem::replace(&mut begun, true)
            && !roots.iter().any(|root| tag.local_name().as_ref() == root.as_bytes())
        {
            return Err(format!("it does not begin with {}", roots.join(" or ")).into());
        }
        match event {
            Event::Start(_) if depth == MAX_XML_DEPTH => return Err("it is too deep".into()),
            Event::Start(_) => depth += 1,
            Event::End(_) => depth = depth.saturating_sub(1),
            Event::Eof if !begun => return Err("it is not XML".into()),
            Event::Eof => break,
            _ => {}
        }
    }
    Ok(quick_xml::de::from_reader(text)?)
}
