//! Members: who is there.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use super::Member;

/// Who is in the cluster now, as far as this node knows.
pub trait Members: Send + Sync + fmt::Debug + 'static {
    /// All that are alive, this node among them. Cheap: it is asked for every flight.
    fn live(&self) -> Arc<[Arc<Member>]>;

    /// Tells the others which snapshots this node has all of, in place of what it told before. Waits for nothing.
    fn announce(&self, _holds: Vec<u64>) {}
}

/// Members that somebody lists by hand.
#[derive(Debug, Default)]
pub struct Listed(Mutex<Arc<[Arc<Member>]>>);

impl Listed {
    /// These are the members from now on.
    pub fn set(&self, members: impl IntoIterator<Item = Member>) {
        let members = members.into_iter().map(Arc::new).collect();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = members;
    }
}

impl Members for Listed {
    fn live(&self) -> Arc<[Arc<Member>]> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
