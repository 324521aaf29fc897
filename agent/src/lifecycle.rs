//! The life of an agent: what keeps it running, whether it is ready, and whether it is about to end.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::api::{ApiResult, Failure};

/// The lifecycle of an agent: its users, its readiness, its end.
#[derive(Debug)]
pub struct Lifecycle {
    persistent: bool,
    /// The number of [`KeepAlive`]s.
    users: Mutex<usize>,
    /// Notified when a user has gone.
    released: Notify,
    /// Notified when a mount or job was requested.
    requested: Notify,
    /// Notified when the agent was asked to unmount everything and to end.
    stop: Notify,
    ready: watch::Sender<bool>,
    closing: watch::Sender<bool>,
}

/// Keeps an agent from ending for lack of work.
#[derive(Debug)]
pub struct KeepAlive(Arc<Lifecycle>);

impl Drop for KeepAlive {
    fn drop(&mut self) {
        *self.0.users.lock() -= 1;
        self.0.released.notify_one();
    }
}

impl Lifecycle {
    /// The lifecycle of an agent that starts. A `persistent` one stays when it is idle.
    pub fn new(persistent: bool) -> Self {
        Self {
            persistent,
            users: Mutex::new(0),
            released: Notify::new(),
            requested: Notify::new(),
            stop: Notify::new(),
            ready: watch::Sender::new(false),
            closing: watch::Sender::new(false),
        }
    }

    /// Whether the agent stays when it is idle, and restores its mounts after a restart.
    pub fn is_persistent(&self) -> bool {
        self.persistent
    }

    /// Keeps the agent running.
    pub fn keep_alive(self: &Arc<Self>) -> KeepAlive {
        *self.users.lock() += 1;
        KeepAlive(Arc::clone(self))
    }

    /// Keeps the agent running for a new mount or job.
    ///
    /// # Errors
    /// [`Failure::CLOSING`] where it is about to end.
    pub fn begin(self: &Arc<Self>) -> ApiResult<KeepAlive> {
        let mut users = self.users.lock();
        if self.is_closing() {
            return Err(Failure::closing());
        }
        *users += 1;
        drop(users);
        self.requested.notify_one();
        Ok(KeepAlive(Arc::clone(self)))
    }

    /// Waits until something new was asked of it. For one waiter.
    pub async fn first_request(&self) {
        self.requested.notified().await;
    }

    /// Waits until the mounts of the last run are restored.
    pub async fn ready(&self) {
        // The sender lives as long as `self`, so this can't fail.
        let _ = self.ready.subscribe().wait_for(|ready| *ready).await;
    }

    /// Whether the mounts of the last run are restored.
    pub fn is_ready(&self) -> bool {
        *self.ready.borrow()
    }

    /// Says that the mounts of the last run are restored.
    pub fn set_ready(&self) {
        self.ready.send_replace(true);
    }

    /// Waits until it is idle; from then on it is closing. A persistent one is never idle.
    pub async fn idle(&self) {
        loop {
            {
                let users = self.users.lock();
                if *users == 0 && !self.persistent {
                    self.close();
                    return;
                }
            }
            self.released.notified().await;
        }
    }

    /// Refuses new mounts and jobs from now on.
    pub fn close(&self) {
        self.closing.send_replace(true);
    }

    /// Whether the agent refuses new mounts and jobs because it is about to end.
    pub fn is_closing(&self) -> bool {
        *self.closing.borrow()
    }

    /// Waits until it refuses new mounts and jobs.
    pub async fn await_closing(&self) {
        // The sender lives as long as `self`, so this can't fail.
        let _ = self.closing.subscribe().wait_for(|closing| *closing).await;
    }

    /// Asks the agent to unmount everything and to end.
    pub fn request_stop(&self) {
        self.stop.notify_one();
    }

    /// Waits until a stop is requested. For one waiter.
    pub async fn stop_requested(&self) {
        self.stop.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn lifecycle_without_users_closes_and_refuses_new_work() {
        let lifecycle = Arc::new(Lifecycle::new(false));
        let user = lifecycle.begin().expect("it runs");
        assert_eq!(lifecycle.idle().now_or_never(), None);
        drop(user);
        assert_eq!(lifecycle.idle().now_or_never(), Some(()));
        assert_eq!(lifecycle.begin().expect_err("it ends").kind, Failure::CLOSING);
    }

    #[test]
    fn lifecycle_of_a_persistent_agent_is_never_idle() {
        let lifecycle = Lifecycle::new(true);
        assert_eq!(lifecycle.idle().now_or_never(), None);
        assert!(!lifecycle.is_closing());
    }
}
