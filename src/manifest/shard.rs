//! Shards: the files of one model, numbered by their names, which loaders read in that order.

use super::{Manifest, Node, Slice};
use crate::error::Result;

/// The formats of weights that are kept in shards: all of them are loaded. Shards of data sets have such names too, with `bin` as
/// well, and may be read in any order, or by other nodes.
const WEIGHTS_EXTENSIONS: [&[u8]; 2] = [b"safetensors", b"gguf"];

impl Manifest {
    /// The file that follows file `index` in the order of their numbers, if both are shards of one model.
    ///
    /// # Errors
    /// [`Corrupt`](crate::error::Kind::Corrupt) when the manifest is.
    pub fn next_shard(&self, index: u32) -> Result<Option<(u32, Slice)>> {
        let entry = self.entry(index)?;
        let Some(name) = next_name(entry.name) else { return Ok(None) };
        let Some(next) = self.lookup(entry.parent, &name)? else { return Ok(None) };
        Ok(match self.entry(next)?.node {
            Node::File(slice) => Some((next, slice)),
            _ => None,
        })
    }
}

/// The name of the shard after `name`: `model-00002-of-00004.gguf` for the first of four.
fn next_name(name: &[u8]) -> Option<Vec<u8>> {
    let extension = name.rsplit(|byte| *byte == b'.').next()?;
    let of = name.windows(4).rposition(|part| part == b"-of-")?;
    let digits = name[..of].iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let (stem, number) = name[..of].split_at(of - digits);
    let number: u32 = str::from_utf8(number).ok()?.parse().ok()?;
    let next = format!("{:0digits$}", number.checked_add(1)?);
    WEIGHTS_EXTENSIONS.contains(&extension).then(|| [stem, next.as_bytes(), &name[of..]].concat())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn next_name_of_a_shard_has_the_next_number() {
        for (name, next) in [
            ("model-00001-of-00004.safetensors", Some("model-00002-of-00004.safetensors")),
            ("model-00009-of-000163.safetensors", Some("model-00010-of-000163.safetensors")),
            ("q4-of-x-00001-of-00002.gguf", Some("q4-of-x-00002-of-00002.gguf")),
            ("x-99-of-100.gguf", Some("x-100-of-100.gguf")),
            ("train-00000-of-00010.parquet", None),
            ("train-00000-of-00010.bin", None),
            ("model.safetensors", None),
            ("model-of-4.safetensors", None),
            ("model-4294967295-of-4.safetensors", None),
            ("-of-", None),
        ] {
            assert_eq!(next_name(name.as_bytes()).as_deref(), next.map(str::as_bytes), "{name}");
        }
    }

    proptest! {
        #[test]
        fn next_name_of_any_bytes_is_bounded(name in proptest::collection::vec(any::<u8>(), 0..255)) {
            for name in [name.clone(), [&name[..], b"-0-of-.gguf"].concat()] {
                prop_assert!(next_name(&name).is_none_or(|next| next.len() <= name.len() + 1 && next != name));
            }
        }
    }
}
