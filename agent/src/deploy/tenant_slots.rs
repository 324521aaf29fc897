//! Slots for work that takes long: few at once, and never all of them for one tenant.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Slots that tenants share.
#[derive(Debug)]
pub struct TenantSlots {
    free: Arc<Semaphore>,
    /// The maximum number of slots of one tenant.
    share: usize,
    /// The free part of each tenant's share.
    tenants: Mutex<HashMap<String, Weak<Semaphore>>>,
}

/// A slot. Drop it when its work has ended.
#[derive(Debug)]
pub struct TenantSlot {
    _slot: OwnedSemaphorePermit,
    _share: OwnedSemaphorePermit,
}

impl TenantSlots {
    /// As many slots as `all`, of which each tenant has `share` at most.
    pub fn new(all: usize, share: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(all)), share, tenants: Mutex::default() }
    }

    /// A slot for `tenant`, if one is free now.
    pub fn try_take(&self, tenant: &str) -> Option<TenantSlot> {
        let share = self.share_of(tenant).try_acquire_owned().ok()?;
        let slot = Arc::clone(&self.free).try_acquire_owned().ok()?;
        Some(TenantSlot { _slot: slot, _share: share })
    }

    /// Waits for a slot for `tenant`. Those who wait get one in turn, and of each tenant only so many are before others as its
    /// share is. It is never `None`, since the slots are not closed.
    pub async fn take(&self, tenant: &str) -> Option<TenantSlot> {
        let share = self.share_of(tenant).acquire_owned().await.ok()?;
        let slot = Arc::clone(&self.free).acquire_owned().await.ok()?;
        Some(TenantSlot { _slot: slot, _share: share })
    }

    fn share_of(&self, tenant: &str) -> Arc<Semaphore> {
        let mut tenants = self.tenants.lock();
        tenants.retain(|_, share| share.strong_count() > 0);
        if let Some(share) = tenants.get(tenant).and_then(Weak::upgrade) {
            return share;
        }
        let share = Arc::new(Semaphore::new(self.share));
        tenants.insert(tenant.to_owned(), Arc::downgrade(&share));
        share
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn slots_are_not_all_of_one_tenant_and_are_handed_on_in_turn() {
        let slots = TenantSlots::new(3, 2);
        let [first, second] = [(); 2].map(|()| slots.try_take("a").expect("a slot"));
        assert!(slots.try_take("a").is_none(), "it has its share");
        let mut third = pin!(slots.take("a"));
        assert!(third.as_mut().now_or_never().is_none());
        let other = slots.try_take("b").expect("a slot");
        assert!(slots.try_take("c").is_none(), "none is free");
        let mut another = pin!(slots.take("c"));
        assert!(another.as_mut().now_or_never().is_none());
        drop(other);
        assert!(
            another.as_mut().now_or_never().is_some(),
            "it is not behind those of a tenant with its share"
        );
        assert!(third.as_mut().now_or_never().is_none());
        drop(first);
        assert!(third.await.is_some());
        drop(second);
        assert!(slots.try_take("b").is_some());
        assert!(!slots.tenants.lock().contains_key("c"), "nothing is kept of who has none");
    }
}
