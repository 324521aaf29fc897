//! `bdnfs mirror gc`.

use std::time::Duration;

use anyhow::Result;

use super::{At, say};
use crate::text;

/// What to delete.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    at: At,
    /// Keep what was written, removed or replaced more recently: 90s, 30m, 24h, 7d
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = span)]
    grace: Duration,
    /// Delete nothing, only tell what would be
    #[arg(long)]
    dry_run: bool,
    /// Tell it as JSON
    #[arg(long)]
    json: bool,
}

/// Collects.
pub async fn run(args: Args) -> Result<()> {
    let mirror = args.at.open().await?;
    let collected = mirror.collect(args.grace, args.dry_run).await?;
    say(args.json, &collected, || {
        let did = if args.dry_run { "would delete" } else { "deleted" };
        let kept = match collected.kept {
            0 => String::new(),
            kept => {
                let (kept, bytes) = (text::count(kept, "object"), text::size(collected.kept_bytes));
                format!("; kept {kept}, {bytes}, for the grace or for somebody at work")
            }
        };
        format!("{did} {}, {}{kept}", text::count(collected.objects, "object"), text::size(collected.bytes))
    })
}

/// Reads a span of time: a number and a unit.
fn span(text: &str) -> Result<Duration, String> {
    let unit = |unit: &str| match unit {
        "s" | "" => Some(1),
        "m" => Some(60),
        "h" => Some(3_600),
        "d" => Some(86_400),
        _ => None,
    };
    let (number, rest) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let seconds =
        number.parse::<u64>().ok().zip(unit(rest)).and_then(|(number, unit)| number.checked_mul(unit));
    seconds.map(Duration::from_secs).ok_or_else(|| "expected a number and s, m, h or d: 24h".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_units() {
        for (text, seconds) in [("0s", 0), ("90", 90), ("5m", 300), ("24h", 86_400), ("7d", 604_800)] {
            assert_eq!(span(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for bad in ["", "h", "1.5h", "-1s", "3w", "99999999999999999999s", "9999999999999999999d"] {
            assert!(span(bad).is_err(), "{bad}");
        }
    }
}
