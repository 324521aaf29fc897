//! Pauses staging while the membership is unstable.
//!
//! When the network is partitioned or heals, each node learns gradually which members are alive. Until then nodes differ on
//! who owns what, several take themselves for the owner of the same group, and each would read it from the mirror. That is over in
//! seconds, so staging starts nothing meanwhile. Readers, and requests on behalf of readers, are not paused.

use std::time::Duration;

use tokio::time::Instant;

use super::Peers;

/// The number of members that may join, leave or stop responding at about the same time in a stable membership: these, or one in so
/// many of all. The owners of their groups are found by asking.
const MAX_STABLE_CHANGES: usize = 3;
const STABLE_FRACTION: usize = 32;

/// The time to wait for a stable membership, and that for which not to wait again after that timed out.
const STABILITY_TIMEOUT: Duration = Duration::from_secs(15);
const STABILITY_PAUSE: Duration = Duration::from_secs(60);

/// The interval of the checks.
const STABILITY_POLL_INTERVAL: Duration = Duration::from_millis(100);

impl Peers {
    /// Waits while the membership is unstable, within limits.
    pub(super) async fn await_stable_membership(&self) {
        let begin = Instant::now();
        while self.is_unstable() && !self.timed_out_recently() {
            if begin.elapsed() >= STABILITY_TIMEOUT {
                tracing::warn!("the membership does not become stable: staging goes on all the same");
                *self.unstable_until.lock() = Some(Instant::now() + STABILITY_PAUSE);
            }
            tokio::time::sleep(STABILITY_POLL_INTERVAL).await;
        }
    }

    /// Whether so many members have changed recently that other nodes may see a different membership.
    fn is_unstable(&self) -> bool {
        let view = self.members.view();
        // A lost member counts once: first it does not respond, then it is removed.
        let failing = self.backoffs.recent_failures(|id| view.since(id).is_some());
        view.recent_changes() + failing > MAX_STABLE_CHANGES.max(view.live().len() / STABLE_FRACTION)
    }

    fn timed_out_recently(&self) -> bool {
        let until = *self.unstable_until.lock();
        until.is_some_and(|until| Instant::now() < until)
    }
}
