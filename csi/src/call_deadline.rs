//! The time for which a call of the kubelet is held: the kubelet waits longer after each error, so a long hold starts a pod sooner.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use tonic::Status;
use tonic::metadata::MetadataMap;

use crate::status_code;

/// The time for which a call is held that has no deadline: less than the 120 s that a kubelet gives.
const CALL_HOLD_TIMEOUT: Duration = Duration::from_secs(100);
/// The time before its deadline at which a call is answered.
const DEADLINE_MARGIN: Duration = Duration::from_secs(10);
/// The time after the hold from which on an agent that has not answered counts as stuck.
const AGENT_STUCK_TIMEOUT: Duration = Duration::from_secs(5);

/// The deadline of a call.
#[derive(Clone, Copy, Debug)]
pub struct CallDeadline {
    /// Until when the agent is asked and waits.
    pub hold: Instant,
    /// When the call is answered at the latest, also where the agent is stuck.
    answer: Instant,
}

impl CallDeadline {
    /// The deadline of a call with this metadata, which has just come.
    pub fn new(metadata: &MetadataMap) -> Self {
        let now = Instant::now();
        let timeout = metadata.get("grpc-timeout").and_then(|value| parse_timeout(value.to_str().ok()?));
        let hold = timeout.map_or(CALL_HOLD_TIMEOUT, hold_time);
        let rest = timeout.map_or(AGENT_STUCK_TIMEOUT, |timeout| timeout.saturating_sub(hold) / 2);
        Self { hold: now + hold, answer: now + hold + rest.min(AGENT_STUCK_TIMEOUT) }
    }

    /// The outcome of `call`, which asks the agent.
    ///
    /// # Errors
    /// Those of `call`; `UNAVAILABLE` where it has no outcome in time.
    pub async fn bound<T>(self, call: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
        let stuck = |_| Err(Status::unavailable("the agent of bdnfs on this node does not respond"));
        timeout_at(self.answer, call).await.unwrap_or_else(stuck).map_err(status_code::bounded)
    }
}

/// Returns the maximum time for which a call with this timeout is held.
fn hold_time(timeout: Duration) -> Duration {
    timeout.saturating_sub(DEADLINE_MARGIN).max(timeout / 2)
}

/// Reads a timeout as gRPC writes it: `120S`, `119999m`.
fn parse_timeout(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number = number.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(u64::checked_mul(number, 3600)?),
        "M" => Duration::from_secs(u64::checked_mul(number, 60)?),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn call_is_held_until_shortly_before_its_deadline_and_answered_before_it() {
        let deadline = |timeout: &'static str| {
            let mut metadata = MetadataMap::new();
            metadata.insert("grpc-timeout", timeout.parse().expect("text"));
            let (now, deadline) = (Instant::now(), CallDeadline::new(&metadata));
            ((deadline.hold - now).as_secs(), (deadline.answer - now).as_millis())
        };
        assert_eq!(CallDeadline::new(&MetadataMap::new()).hold - Instant::now(), CALL_HOLD_TIMEOUT);
        for (timeout, hold, answer) in [
            ("2M", 110, 115_000),
            ("120S", 110, 115_000),
            ("15000m", 7, 11_250),
            ("4000000u", 2, 3000),
            ("soon", 100, 105_000),
        ] {
            assert_eq!(deadline(timeout), (hold, answer), "{timeout}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn call_of_a_stuck_agent_is_unavailable_in_time() {
        let (begin, deadline) = (Instant::now(), CallDeadline::new(&MetadataMap::new()));
        let error = deadline.bound(std::future::pending::<Result<(), Status>>()).await.expect_err("stuck");
        assert_eq!((error.code(), begin.elapsed()), (Code::Unavailable, Duration::from_secs(105)));
    }
}
