//! Units: what a figure counts, and whether more of it is better.

use serde::{Deserialize, Serialize};

/// The unit of a figure. In JSON it stands by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "&'static str")]
pub enum MeasureUnit {
    /// Millions of bytes in a second.
    Megabytes,
    /// Files in a second.
    Files,
    /// Seconds.
    Seconds,
    /// Seconds of CPU for each 2^30 bytes.
    SecondsPerGib,
    /// 2^20 bytes.
    Mebibytes,
    /// Requests for each 2^30 bytes.
    RequestsPerGib,
    /// Requests.
    Requests,
    /// Open files.
    Descriptors,
    /// Bytes fetched for each byte that was read.
    Fetched,
    /// Bytes kept for each byte that was given.
    StoredPerByte,
    /// How many times as much as something else.
    Times,
    /// Instructions that the processor carried out.
    Instructions,
}

use MeasureUnit::{
    Descriptors, Fetched, Files, Instructions, Mebibytes, Megabytes, Requests, RequestsPerGib, Seconds,
    SecondsPerGib, StoredPerByte, Times,
};

/// The suffix of a number, in the order of [`MeasureUnit`].
const NAMES: [(MeasureUnit, &str); 12] = [
    (Megabytes, "MB/s"),
    (Files, "files/s"),
    (Seconds, "s"),
    (SecondsPerGib, "s/GiB"),
    (Mebibytes, "MiB"),
    (RequestsPerGib, "requests/GiB"),
    (Requests, "requests"),
    (Descriptors, "open files"),
    (Fetched, "bytes fetched/byte read"),
    (StoredPerByte, "bytes kept/byte"),
    (Times, "times"),
    (Instructions, "instructions"),
];

impl MeasureUnit {
    /// The suffix of a number.
    pub fn name(self) -> &'static str {
        NAMES[self as usize].1
    }

    /// Whether less is better.
    pub fn is_cost(self) -> bool {
        !matches!(self, Megabytes | Files)
    }

    /// Whether the figure does not depend on the machine's speed, so that it can be compared by itself.
    pub fn is_steady(self) -> bool {
        !matches!(self, Megabytes | Files | Seconds | SecondsPerGib)
    }
}

impl From<MeasureUnit> for &'static str {
    fn from(unit: MeasureUnit) -> Self {
        unit.name()
    }
}

impl TryFrom<String> for MeasureUnit {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        let found = NAMES.into_iter().find(|(_, known)| *known == name);
        found.map(|(unit, _)| unit).ok_or_else(|| format!("no unit is called {name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_names_are_unique() {
        for (index, (unit, name)) in NAMES.into_iter().enumerate() {
            assert_eq!((unit as usize, unit.name()), (index, name));
            assert_eq!(MeasureUnit::try_from(name.to_owned()), Ok(unit));
        }
        assert!(MeasureUnit::try_from("furlongs".to_owned()).is_err());
    }
}
