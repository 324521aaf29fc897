//! The keys of a `config.yaml` below those at its top. Only their names are checked: they are for the service that builds and
//! serves the model, and one that is misspelt may be one that was meant for us.

use serde_json::Value;

use super::Rules;
use crate::source::fields::Fields;
use crate::source::{Diagnostics, DocumentPath};

/// Each place that Truss names, but for the weights, sorted; `scripts/vectors` asks it. A mapping at a place that nothing is below
/// may have any keys.
const CONFIG_KEYS: &str = include_str!("config_keys.txt");

/// Checks the keys in `value`, which is at `place`, and whose key Truss calls `name`.
pub(super) fn check(value: &Value, name: &str, place: &DocumentPath, rules: Rules, found: &mut Diagnostics) {
    match value {
        Value::Array(items) => {
            let each = items.iter().enumerate();
            each.for_each(|(i, item)| check(item, name, &place.index(i), rules, found));
        }
        Value::Object(map) => {
            let known = below(name);
            if known.is_empty() {
                return;
            }
            Fields { map, place: place.clone() }.unknown(&known, !rules.lenient, found);
            for (key, value) in map {
                check(value, &format!("{name}.{key}"), &place.key(key), rules, found);
            }
        }
        _ => {}
    }
}

/// The keys that a mapping called `name` may have; empty where it may have any.
pub(super) fn below(name: &str) -> Vec<&'static str> {
    let key = |place: &'static str| place.strip_prefix(name)?.strip_prefix('.')?.split('.').next();
    let mut keys: Vec<_> = CONFIG_KEYS.lines().filter_map(key).collect();
    keys.dedup();
    keys
}
