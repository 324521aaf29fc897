//! The key of one source, shared by all its requests.
//!
//! A [`KeyCache`] holds one [`IssuedKey`] at a time. It is renewed before it expires, and once more when the service
//! refuses it: whichever request needs the new key first asks for it, and all others, however many, wait for that answer.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::AuthKey;
use super::refresh::key_expiry::format_time;
use crate::backoff::jittered;
use crate::error::{Error, Kind, Result};

/// The time for which a key that is still good is used on after its renewal failed.
const RENEWAL_RETRY_DELAY: Duration = Duration::from_secs(10);
/// The number of times, and the interval, at which an unreadable configured key is read again when the one before it is refused. It
/// is just being replaced, and a file that is written in place is empty for a moment.
const REREAD_LIMIT: u32 = 20;
const REREAD_INTERVAL: Duration = Duration::from_millis(100);
/// The least age at which a refused key of a token service is replaced. A younger one is not the reason for the refusal.
const MIN_REPLACEABLE_AGE: Duration = Duration::from_secs(1);

/// A key, and what is known of it.
#[derive(Clone, Debug)]
pub(crate) struct IssuedKey {
    /// The key.
    pub(crate) key: AuthKey,
    /// The name of its secret in a configuration, `the secret "x"`; `None` where it has none.
    pub(crate) name: Option<String>,
    /// The end of its validity, where that is known.
    pub(super) expires_at: Option<SystemTime>,
    /// When the key is renewed, refused or not.
    pub(super) renew_at: Option<Instant>,
    /// When a token service issued it; `None` for a key that was configured.
    pub(super) issued_at: Option<Instant>,
}

impl IssuedKey {
    /// Adds to a refusal of this key what to do about it. Other errors stay as they are.
    pub(crate) fn explain_refusal(&self, error: Error) -> Error {
        match error.kind() {
            Kind::Refused => error.advise(self.advice(SystemTime::now())),
            _ => error,
        }
    }

    /// Formats when its validity ends or ended: `it expired at 2026-01-02T03:04:05Z`.
    pub(crate) fn describe_expiry(&self) -> Option<String> {
        let end = self.expires_at?;
        let verb = if self.is_valid(SystemTime::now()) { "is valid until" } else { "expired at" };
        Some(format!("it {verb} {}", format_time(end)))
    }

    /// The advice for a refusal of this key.
    fn advice(&self, now: SystemTime) -> String {
        if self.key == AuthKey::Anonymous && self.name.is_none() {
            return "no credentials were sent".to_owned();
        }
        let (name, it) = match self.name.as_deref() {
            Some(name) => (name, "it"),
            None => ("the credentials", "them"),
        };
        match self.expires_at {
            None => format!("check {name}"),
            Some(end) if end <= now => format!("{name} expired at {}; renew {it}", format_time(end)),
            Some(end) => format!("check {name}, valid until {}", format_time(end)),
        }
    }

    /// Whether the keys have not expired, as far as is known.
    fn is_valid(&self, now: SystemTime) -> bool {
        self.expires_at.is_none_or(|end| end > now)
    }
}

#[cfg(test)]
impl IssuedKey {
    /// A key whose expiry is unknown.
    pub(crate) fn of(key: AuthKey, name: Option<&str>) -> Self {
        Self { key, name: name.map(str::to_owned), expires_at: None, renew_at: None, issued_at: None }
    }
}

/// Issues the keys of one source.
#[async_trait]
pub(super) trait KeyIssuer: fmt::Debug + Send + Sync {
    /// Issues a key. `refused`: the service refused the one before.
    async fn issue(&self, refused: bool) -> Result<IssuedKey>;
}

/// The current key of one source.
#[derive(Debug)]
pub(crate) struct KeyCache {
    issuer: Box<dyn KeyIssuer>,
    current: Mutex<Arc<KeySlot>>,
}

/// A key, or the one request for it that is under way.
#[derive(Debug, Default)]
struct KeySlot {
    /// The key before this one.
    previous: Option<Arc<IssuedKey>>,
    /// Whether the service refused the previous key.
    refused: bool,
    issued: OnceCell<Result<Arc<IssuedKey>>>,
}

impl KeyCache {
    /// Makes a cache of the keys of `issuer`, the first of which it gets when it is needed.
    pub(super) fn with_issuer(issuer: Box<dyn KeyIssuer>) -> Self {
        Self { issuer, current: Mutex::default() }
    }

    /// Sends a request with the key, and once more with another key if the first is refused and there is another.
    pub(crate) async fn send_with_key<T, F>(&self, send: impl Fn(Arc<IssuedKey>) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let first = self.get().await?;
        match send(first.clone()).await {
            Err(refusal) if refusal.kind() == Kind::Refused => match self.replace(&first).await? {
                Some(other) => send(other).await,
                None => Err(refusal),
            },
            done => done,
        }
    }

    /// The current key.
    pub(crate) async fn get(&self) -> Result<Arc<IssuedKey>> {
        let slot = {
            let mut current = self.current.lock();
            let previous = match current.issued.get() {
                None => None,
                Some(Ok(issued)) if issued.renew_at.is_none_or(|at| at > Instant::now()) => None,
                Some(Ok(issued)) => Some(Some(issued.clone())),
                Some(Err(_)) => Some(current.previous.clone()),
            };
            if let Some(previous) = previous {
                let refused = current.refused && matches!(current.issued.get(), Some(Err(_)));
                *current = Arc::new(KeySlot { previous, refused, ..KeySlot::default() });
            }
            current.clone()
        };
        let issued = slot.issued.get_or_init(|| self.issue(&slot)).await;
        issued.as_ref().map(Arc::clone).map_err(Error::share)
    }

    /// Gets another key than `refused`; `None` where there is none.
    pub(super) async fn replace(&self, refused: &Arc<IssuedKey>) -> Result<Option<Arc<IssuedKey>>> {
        let too_young = refused.issued_at.is_some_and(|at| at.elapsed() < MIN_REPLACEABLE_AGE);
        if refused.key == AuthKey::Anonymous || too_young {
            return Ok(None);
        }
        self.mark_refused(refused);
        let other = self.get().await?;
        Ok((other.key != refused.key).then_some(other))
    }

    /// Makes the next request ask for another key than `refused`, unless one did already.
    fn mark_refused(&self, refused: &Arc<IssuedKey>) {
        let mut current = self.current.lock();
        if matches!(current.issued.get(), Some(Ok(issued)) if Arc::ptr_eq(issued, refused)) {
            let previous = Some(refused.clone());
            *current = Arc::new(KeySlot { previous, refused: true, ..KeySlot::default() });
        }
    }

    /// Adds to a refusal of the current key what to do about it. Other errors stay as they are.
    pub(crate) fn explain_refusal(&self, error: Error) -> Error {
        let current = self.current.lock();
        let known = current.issued.get().and_then(|issued| issued.as_ref().ok());
        match known.or(current.previous.as_ref()) {
            Some(issued) => issued.explain_refusal(error),
            None => error,
        }
    }

    async fn issue(&self, slot: &KeySlot) -> Result<Arc<IssuedKey>> {
        let mut issued = self.issuer.issue(slot.refused).await;
        let was_configured = slot.previous.as_ref().is_some_and(|previous| previous.issued_at.is_none());
        if slot.refused && was_configured {
            for _ in 0..REREAD_LIMIT {
                let unreadable = |e: &Error| matches!(e.kind(), Kind::Invalid | Kind::Refused);
                if !issued.as_ref().is_err_and(unreadable) {
                    break;
                }
                tokio::time::sleep(REREAD_INTERVAL).await;
                issued = self.issuer.issue(slot.refused).await;
            }
        }
        match (issued, &slot.previous) {
            (Ok(issued), _) => Ok(Arc::new(issued)),
            // The renewal was early, so the old key is still good and the failure may pass.
            (Err(_), Some(previous)) if !slot.refused && previous.is_valid(SystemTime::now()) => {
                let renew_at = Some(Instant::now() + jittered(RENEWAL_RETRY_DELAY));
                Ok(Arc::new(IssuedKey { renew_at, ..IssuedKey::clone(previous) }))
            }
            // The request is right, its credentials are not: the first key, too, may be asked for by a read, of a mount that was
            // restored.
            (Err(error), _) if error.kind() == Kind::Invalid => {
                Err(Error::new(Kind::Refused, error.to_string()))
            }
            (Err(error), _) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests;
