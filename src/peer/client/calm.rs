//! Calm: what nobody waits for waits, too, while many members come and go.
//!
//! When the network is cut in two, or comes together again, each node finds out by and by who is there. Until then they differ on
//! who owns what, several take themselves for the owner of the same group, and each of them would read it from the mirror. It is
//! over in seconds; so staging begins nothing meanwhile. Readers, and those who ask for readers, go on.

use std::time::Duration;

use tokio::time::Instant;

use super::Peers;

/// How many may come, go or fall silent at about the same time without much ado: these, or one in so many of all. Who owned
/// something of theirs is looked for by asking.
const FEW: usize = 3;
const PART: usize = 32;

/// How long to wait for it to be over, and for how long nobody waits any more when that was in vain.
const PATIENCE: Duration = Duration::from_secs(15);
const REST: Duration = Duration::from_secs(60);

/// How often to look.
const LOOK: Duration = Duration::from_millis(100);

impl Peers {
    /// Waits as long as many members come and go.
    pub(super) async fn calm(&self) {
        let begin = Instant::now();
        while self.is_restless() && !self.is_tired() {
            if begin.elapsed() >= PATIENCE {
                tracing::warn!("members come and go all the time: it is staged all the same");
                *self.tired.lock() = Some(Instant::now() + REST);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Whether so much has changed lately that others may well see another cluster than this node does.
    fn is_restless(&self) -> bool {
        let roll = self.members.roll();
        // Who is lost counts once: at first it is silent, and then it is gone.
        let silent = self.health.fell_silent(|id| roll.since(id).is_some());
        roll.news() + silent > FEW.max(roll.live().len() / PART)
    }

    fn is_tired(&self) -> bool {
        let until = *self.tired.lock();
        until.is_some_and(|until| Instant::now() < until)
    }
}
