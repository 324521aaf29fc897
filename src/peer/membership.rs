//! Membership: the nodes of the cluster that are alive, as this node sees them.

pub mod gossip;
pub mod gossip_client;

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::Member;

/// The time for which a member that joined counts as a recent change, and one that left: about as long as it takes until all others
/// know.
const SETTLE_TIMES: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(3));

/// The number of recent changes that are remembered: more than this in a few seconds is unstable in any cluster.
const MAX_RECENT_CHANGES: usize = 4096;

/// The source of this node's view of the membership.
pub trait Membership: Send + Sync + fmt::Debug + 'static {
    /// The view.
    fn view(&self) -> &MembershipView;

    /// All live members, this node among them. Cheap: every flight asks for it.
    fn live(&self) -> Arc<[Arc<Member>]> {
        self.view().live()
    }

    /// Announces which snapshots this node has all of, each by its token; replaces the announcement before. Does not wait.
    fn announce(&self, _holds: Vec<u64>) {}
}

/// A list of live members, and how it has changed recently.
#[derive(Debug, Default)]
pub struct MembershipView(Mutex<MembershipState>);

#[derive(Debug, Default)]
struct MembershipState {
    live: Arc<[Arc<Member>]>,
    /// Since when each has been there.
    since: HashMap<String, Instant>,
    /// Until when each member that joined or left counts as a recent change.
    recent: VecDeque<Instant>,
}

impl MembershipView {
    /// Replaces the list.
    pub fn set(&self, members: impl IntoIterator<Item = Arc<Member>>) {
        let (mut state, now) = (self.0.lock(), Instant::now());
        let former = std::mem::replace(&mut state.live, members.into_iter().collect());
        let MembershipState { live, since, recent } = &mut *state;
        // Most updates tell news of the same members.
        if live.len() == former.len()
            && live.iter().zip(former.iter()).all(|(new, old)| Arc::ptr_eq(new, old) || new.id == old.id)
        {
            return;
        }
        // The first list is no change.
        let first = since.is_empty();
        for member in live.iter().filter(|member| !since.contains_key(&member.id)).collect::<Vec<_>>() {
            since.insert(member.id.clone(), now);
            recent.extend((!first).then_some(now + SETTLE_TIMES.0));
        }
        if since.len() > live.len() {
            let there: HashSet<_> = live.iter().map(|member| member.id.as_str()).collect();
            let before = since.len();
            since.retain(|id, _| there.contains(id.as_str()));
            recent.extend(std::iter::repeat_n(now + SETTLE_TIMES.1, before - since.len()));
        }
        let more = recent.len().saturating_sub(MAX_RECENT_CHANGES);
        recent.drain(..more);
    }

    /// The live members.
    pub fn live(&self) -> Arc<[Arc<Member>]> {
        self.0.lock().live.clone()
    }

    /// Since when the member `id` has been alive; `None`: it is not.
    pub fn since(&self, id: &str) -> Option<Instant> {
        self.0.lock().since.get(id).copied()
    }

    /// Returns the number of members that have joined or left recently.
    pub fn recent_changes(&self) -> usize {
        let (mut state, now) = (self.0.lock(), Instant::now());
        state.recent.retain(|until| now < *until);
        state.recent.len()
    }
}

/// A membership that is set by hand: for tests, and for one node.
#[derive(Debug, Default)]
pub struct StaticMembership(MembershipView);

impl StaticMembership {
    /// Replaces the list.
    pub fn set(&self, members: impl IntoIterator<Item = Member>) {
        self.0.set(members.into_iter().map(Arc::new));
    }
}

impl Membership for StaticMembership {
    fn view(&self) -> &MembershipView {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::tests::member;

    #[tokio::test(start_paused = true)]
    async fn recent_changes_counts_joins_and_leaves_for_a_while() {
        let listed = StaticMembership::default();
        let set = |ids: &[&str]| listed.set(ids.iter().map(|id| member(id, "z")));
        set(&["a", "b"]);
        assert_eq!(listed.view().recent_changes(), 0, "they were there before");
        let begin = Instant::now();
        tokio::time::advance(Duration::from_millis(500)).await;
        set(&["b", "c", "d"]);
        assert_eq!(listed.view().recent_changes(), 3);
        assert_eq!(listed.view().since("a"), None);
        assert_eq!(listed.view().since("b"), Some(begin));
        tokio::time::advance(SETTLE_TIMES.0).await;
        assert_eq!(listed.view().recent_changes(), 1, "one has left");
        tokio::time::advance(SETTLE_TIMES.1 - SETTLE_TIMES.0).await;
        assert_eq!(listed.view().recent_changes(), 0);
        set(&["a", "b", "c", "d"]);
        assert_eq!((listed.view().recent_changes(), listed.view().since("a")), (1, Some(Instant::now())));
        set(&["a", "b", "c", "d"]);
        assert_eq!((listed.view().recent_changes(), listed.live().len()), (1, 4));
    }
}
