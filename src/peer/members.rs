//! Members: who is there.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::Member;

/// For how long one that has come counts as news, and one that has gone: about as long as it takes until all others have heard
/// of it.
const NEWS: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(3));

/// How much news is kept: more than this in a few seconds is too much in any cluster.
const KEPT: usize = 4096;

/// Who is in the cluster now, as far as this node knows.
pub trait Members: Send + Sync + fmt::Debug + 'static {
    /// What this node knows of the others.
    fn roll(&self) -> &Roll;

    /// All that are alive, this node among them. Cheap: it is asked for every flight.
    fn live(&self) -> Arc<[Arc<Member>]> {
        self.roll().live()
    }

    /// Tells the others which snapshots this node has all of, in place of what it told before. Waits for nothing.
    fn announce(&self, _holds: Vec<u64>) {}
}

/// A list of members, and how it has changed lately.
#[derive(Debug, Default)]
pub struct Roll(Mutex<Called>);

#[derive(Debug, Default)]
struct Called {
    live: Arc<[Arc<Member>]>,
    /// Since when each has been there.
    since: HashMap<String, Instant>,
    /// Until when each that came or went is news.
    news: VecDeque<Instant>,
}

impl Roll {
    /// These are the members from now on.
    pub fn set(&self, members: impl IntoIterator<Item = Arc<Member>>) {
        let (mut called, now) = (self.0.lock(), Instant::now());
        called.live = members.into_iter().collect();
        let Called { live, since, news } = &mut *called;
        // There is no news for somebody who knew nothing.
        let first = since.is_empty();
        for member in live.iter().filter(|member| !since.contains_key(&member.id)).collect::<Vec<_>>() {
            since.insert(member.id.clone(), now);
            news.extend((!first).then_some(now + NEWS.0));
        }
        if since.len() > live.len() {
            let there: HashSet<_> = live.iter().map(|member| member.id.as_str()).collect();
            let before = since.len();
            since.retain(|id, _| there.contains(id.as_str()));
            news.extend(std::iter::repeat_n(now + NEWS.1, before - since.len()));
        }
        let more = news.len().saturating_sub(KEPT);
        news.drain(..more);
    }

    /// All that are there.
    pub fn live(&self) -> Arc<[Arc<Member>]> {
        self.0.lock().live.clone()
    }

    /// Since when the member `id` has been there; `None`: it is not.
    pub fn since(&self, id: &str) -> Option<Instant> {
        self.0.lock().since.get(id).copied()
    }

    /// How many have come or gone lately.
    pub fn news(&self) -> usize {
        let (mut called, now) = (self.0.lock(), Instant::now());
        called.news.retain(|until| now < *until);
        called.news.len()
    }
}

/// Members that somebody lists by hand.
#[derive(Debug, Default)]
pub struct Listed(Roll);

impl Listed {
    /// These are the members from now on.
    pub fn set(&self, members: impl IntoIterator<Item = Member>) {
        self.0.set(members.into_iter().map(Arc::new));
    }
}

impl Members for Listed {
    fn roll(&self) -> &Roll {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::tests::member;

    #[tokio::test(start_paused = true)]
    async fn who_comes_and_goes_is_news_for_a_while() {
        let listed = Listed::default();
        let set = |ids: &[&str]| listed.set(ids.iter().map(|id| member(id, "z")));
        set(&["a", "b"]);
        assert_eq!(listed.roll().news(), 0, "they were there before");
        let begin = Instant::now();
        tokio::time::advance(Duration::from_millis(500)).await;
        set(&["b", "c", "d"]);
        assert_eq!(listed.roll().news(), 3);
        assert_eq!(listed.roll().since("a"), None);
        assert_eq!(listed.roll().since("b"), Some(begin));
        tokio::time::advance(NEWS.0).await;
        assert_eq!(listed.roll().news(), 1, "one has gone");
        tokio::time::advance(NEWS.1 - NEWS.0).await;
        assert_eq!(listed.roll().news(), 0);
        set(&["a", "b", "c", "d"]);
        assert_eq!((listed.roll().news(), listed.roll().since("a")), (1, Some(Instant::now())));
        assert_eq!(listed.live().len(), 4);
    }
}
