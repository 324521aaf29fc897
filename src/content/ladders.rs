//! The ladders of a content: one for each mount that has it, of which one is in use.
//!
//! Mounts of one source may have credentials and a mirror of their own, and the content is that of all. What is refused to one of
//! them, or gone, does not matter as long as another has it.

use std::mem;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::error::{Kind, Result};
use crate::fetch::Ladder;

/// The ladders of a content.
#[derive(Debug)]
pub(super) struct Ladders(Mutex<LadderSet>);

#[derive(Debug)]
struct LadderSet {
    present: Arc<Ladder>,
    /// Those of other mounts, while these are there.
    others: Vec<Weak<Ladder>>,
}

impl Ladders {
    pub fn new(ladder: Arc<Ladder>) -> Self {
        Self(Mutex::new(LadderSet { present: ladder, others: Vec::new() }))
    }

    /// The one in use.
    pub fn present(&self) -> Arc<Ladder> {
        self.0.lock().present.clone()
    }

    /// Adds the ladder of another mount. It is used at once if it reaches the origin, which the present one does not: a content
    /// may have been opened for other nodes.
    pub fn add(&self, ladder: &Arc<Ladder>) {
        let mut set = self.0.lock();
        if !ladder.has_origin() || Arc::ptr_eq(&set.present, ladder) {
            return;
        }
        if !set.present.has_origin() {
            set.present = ladder.clone();
            return;
        }
        set.others.retain(|other| other.strong_count() > 0);
        let new = Arc::downgrade(ladder);
        if !set.others.iter().any(|other| other.ptr_eq(&new)) {
            set.others.push(new);
        }
    }

    /// Takes one into use that is none of `refused`, unless another caller has; false when there is none.
    fn replace(&self, refused: &[Arc<Ladder>]) -> bool {
        let is_refused = |ladder: &Arc<Ladder>| refused.iter().any(|one| Arc::ptr_eq(one, ladder));
        let mut set = self.0.lock();
        if !is_refused(&set.present) {
            return true;
        }
        let Some(other) = set.others.iter().filter_map(Weak::upgrade).find(|other| !is_refused(other)) else {
            return false;
        };
        let used = Arc::downgrade(&other);
        set.others.retain(|other| !other.ptr_eq(&used));
        let former = mem::replace(&mut set.present, other);
        set.others.push(Arc::downgrade(&former));
        true
    }

    /// Runs `fetch`, which uses the [present](Self::present) ladder, and again with that of another mount as long as one is refused
    /// or has nothing: its mirror may refuse, and its origin be another by now.
    ///
    /// # Errors
    /// Those of the first `fetch`.
    pub async fn fetch<T, F>(&self, fetch: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let (mut refused, mut first) = (Vec::new(), None);
        loop {
            let ladder = self.present();
            match fetch().await {
                Err(error) if is_of_one_mount(error.kind()) => {
                    refused.push(ladder);
                    let first = first.get_or_insert(error);
                    if !self.replace(&refused) {
                        return Err(first.share());
                    }
                }
                fetched => return fetched,
            }
        }
    }
}

/// Whether an error says something of the tiers of one mount, and nothing of another's.
fn is_of_one_mount(kind: Kind) -> bool {
    matches!(kind, Kind::Refused | Kind::Changed | Kind::NotFound | Kind::Unsupported)
}
