//! A node's view of the others: delayed, as gossip is.

use std::sync::{Arc, OnceLock, Weak};

use bdnfs::peer::Member;
use bdnfs::peer::membership::{Membership, MembershipView};

use super::{GOSSIP_DELAY_MS, MemberEvent, Sim};

/// A node's view of the others.
#[derive(Default)]
pub struct SimView {
    membership: MembershipView,
    pub told: OnceLock<(Weak<Sim>, String)>,
}

impl std::fmt::Debug for SimView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("View")
    }
}

impl SimView {
    fn change(&self, change: impl FnOnce(&mut Vec<Arc<Member>>)) {
        let mut list = self.membership.live().to_vec();
        change(&mut list);
        self.membership.set(list);
    }

    /// What it says of `id`.
    pub fn of(&self, id: &str) -> Option<Arc<Member>> {
        self.membership.live().iter().find(|member| member.id == id).cloned()
    }

    /// How many it tells of.
    pub fn known(&self) -> usize {
        self.membership.live().len()
    }

    pub fn forget(&self, id: &str) {
        self.change(|list| list.retain(|known| known.id != id));
    }

    pub fn learn(&self, member: Member) {
        self.change(|list| match list.iter_mut().find(|known| known.id == member.id) {
            Some(known) => *known = Arc::new(member),
            None => list.push(Arc::new(member)),
        });
    }
}

impl Membership for SimView {
    fn view(&self) -> &MembershipView {
        &self.membership
    }

    fn announce(&self, holds: Vec<u64>) {
        let Some((sim, me)) = self.told.get() else { return };
        let Some(sim) = sim.upgrade() else { return };
        // The dead say nothing, not even that they let go of what they had.
        if !sim.nodes.lock().contains_key(me) {
            return;
        }
        if let Some(own) = self.of(me).filter(|own| !own.draining) {
            let member = Member { holds, ..(*own).clone() };
            self.learn(member);
            sim.announce(me, GOSSIP_DELAY_MS, MemberEvent::Alive);
        }
    }
}
