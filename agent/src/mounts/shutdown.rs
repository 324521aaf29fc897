//! Shutdown: all mounts are unmounted, or handed over to the next agent.

use std::sync::Arc;
use std::time::Instant;

use super::handover::LAST_STORE_TIMEOUT;
use super::manager::MountManager;
use super::mount::ManagedMount;

/// Refuses mounts from now on, hands over all whose descriptors the fd store has, and unmounts the others.
pub async fn hand_over_all(manager: &MountManager) {
    let mounts = close(manager);
    let deadline = Instant::now() + LAST_STORE_TIMEOUT;
    manager.handover.store_last(&mounts, deadline).await;
    for managed in mounts {
        // The fd store may have ended meanwhile. All mounts together have the time of one: whatever stops an agent waits no longer.
        manager.handover.store_last(std::slice::from_ref(&managed), deadline).await;
        if managed.is_stored() {
            tracing::info!("the mount at {} is left to the next agent", managed.mountpoint().display());
            managed.attachment().hand_over();
        } else {
            manager.unmount_or_detach(managed.id()).await;
        }
    }
}

/// Refuses mounts from now on, and unmounts all. Those in use are detached.
pub async fn unmount_all(manager: &MountManager) {
    for managed in close(manager) {
        if !managed.is_detached() {
            manager.unmount_or_detach(managed.id()).await;
        }
        // Processes that use a detached mount get their errors at once, and not when no agent has come for it.
        manager.handover.remove(managed.id()).await;
    }
}

/// Whether a mount is handed over to the next agent, or may be: those of the last run that are not restored yet.
pub fn is_handed_over(manager: &MountManager) -> bool {
    if manager.handover.is_possible() && !manager.lifecycle.is_ready() {
        return true;
    }
    manager.all().iter().any(|managed| managed.attachment().is_handed_over())
}

/// Refuses mounts from now on, and lists those that there are.
fn close(manager: &MountManager) -> Vec<Arc<ManagedMount>> {
    // Under the table's lock: a mount that is being made sees that the agent closes, or is in the list.
    let table = manager.table();
    manager.lifecycle.close();
    table.mounts.values().cloned().collect()
}
