//! Credentials at work: the key that requests to a source are authorised with, where it comes from, and how it is renewed.
//!
//! Whoever asks a service does so through its [`Keys`]. They hold one [`Issued`] key at a time, got by [`issue`]: out of a
//! secret ([`crate::secrets`]), from a token service, or from what the machine has. It is renewed before it expires, and
//! once more when the service refuses it: whoever meets the refusal first has it renewed, and all others, however many,
//! wait for that.

mod aws;
mod azure;
pub(crate) mod connector;
mod google;
mod issue;
mod machine;
pub(crate) mod store;
mod sts;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use chrono::{DateTime, SecondsFormat, Utc};
use object_store::aws::AwsCredential;
use object_store::azure::AzureCredential;
use parking_lot::Mutex;
use reqwest::header::HeaderValue;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use crate::client::Client;
use crate::error::{Error, Kind, Result};
use crate::source::{Access, Secret, Uri};

/// The longest before its end that a key is renewed. Of a short life it is a tenth.
const MARGIN: Duration = Duration::from_secs(300);
/// How long a key is used on when another can't be got and it is still good.
const PAUSE: Duration = Duration::from_secs(10);
/// A key of a token service that is refused so soon is not the reason: no other is asked for.
const YOUNG: Duration = Duration::from_secs(1);

/// What a request is authorised with.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Key {
    /// Nothing.
    Nobody,
    /// A signature of AWS's (version 4).
    Aws(Arc<AwsCredential>),
    /// One of Azure's ways.
    Azure(Arc<AzureCredential>),
    /// A bearer token.
    Bearer(Secret),
    /// A user name and a password.
    Basic(Secret, Secret),
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nobody => "Nobody",
            Self::Aws(_) => "Aws(***)",
            Self::Azure(_) => "Azure(***)",
            Self::Bearer(_) => "Bearer(***)",
            Self::Basic(..) => "Basic(***)",
        })
    }
}

impl Key {
    /// The value of `Authorization`; `None` for nobody.
    ///
    /// # Errors
    /// [`Kind::Invalid`] for what can't be sent in a header, and for a key that requests are signed with.
    pub(crate) fn authorization(&self) -> Result<Option<HeaderValue>> {
        let text = match self {
            Self::Nobody => return Ok(None),
            Self::Bearer(token) => format!("Bearer {}", token.expose()),
            Self::Basic(user, password) => {
                format!(
                    "Basic {}",
                    BASE64_STANDARD.encode(format!("{}:{}", user.expose(), password.expose()))
                )
            }
            Self::Aws(_) | Self::Azure(_) => return Err(foreign()),
        };
        let invalid = |_| Error::new(Kind::Invalid, "the token holds what no token holds");
        let mut value = HeaderValue::from_str(&text).map_err(invalid)?;
        value.set_sensitive(true);
        Ok(Some(value))
    }
}

/// The error for a key of another service's.
pub(crate) fn foreign() -> Error {
    Error::new(Kind::Invalid, "its credentials are those of another service")
}

/// A key, and what is known of it.
#[derive(Clone, Debug)]
pub(crate) struct Issued {
    /// The key.
    pub(crate) key: Key,
    /// What it was named by: `the secret "x"`. `None` where it wasn't.
    pub(crate) name: Option<String>,
    /// Until when it is good, where that is known.
    expiry: Option<SystemTime>,
    /// When another one is asked for, refused or not.
    renew: Option<Instant>,
    /// When a token service gave it.
    asked: Option<Instant>,
}

impl Issued {
    /// `error`, and where it is a refusal of this key what to do about it.
    pub(crate) fn blame(&self, error: Error) -> Error {
        match error.kind() {
            Kind::Refused => error.advise(self.advice(SystemTime::now())),
            _ => error,
        }
    }

    /// What is known of its end: `it expired at 2026-01-02T03:04:05Z`.
    pub(crate) fn end(&self) -> Option<String> {
        let end = self.expiry?;
        let how = if self.is_good(SystemTime::now()) { "is good until" } else { "expired at" };
        Some(format!("it {how} {}", shown(end)))
    }

    /// What to do when it is refused.
    fn advice(&self, now: SystemTime) -> String {
        let name = self.name.as_deref().unwrap_or("the credentials");
        match self.expiry {
            None => format!("check {name}"),
            Some(end) if end <= now => format!("{name} expired at {}; renew it", shown(end)),
            Some(end) => format!("check {name}, which is good until {}", shown(end)),
        }
    }

    /// Whether it has not expired, as far as is known.
    fn is_good(&self, now: SystemTime) -> bool {
        self.expiry.is_none_or(|end| end > now)
    }
}

#[cfg(test)]
impl Issued {
    /// A key of no certain end.
    pub(crate) fn of(key: Key, name: Option<&str>) -> Self {
        Self { key, name: name.map(str::to_owned), expiry: None, renew: None, asked: None }
    }
}

/// A time for people.
fn shown(time: SystemTime) -> String {
    DateTime::<Utc>::from(time).to_rfc3339_opts(SecondsFormat::Secs, true)
}

/// Where keys come from.
#[async_trait]
trait Issuer: fmt::Debug + Send + Sync {
    /// Gets a key as things are now. `refused`: the one before was refused.
    async fn issue(&self, refused: bool) -> Result<Issued>;
}

/// What requests to one source are authorised with, now and later.
#[derive(Debug)]
pub(crate) struct Keys {
    issuer: Box<dyn Issuer>,
    current: Mutex<Arc<Slot>>,
}

/// A key, or the one request for it that is under way.
#[derive(Debug, Default)]
struct Slot {
    /// The key before it.
    before: Option<Arc<Issued>>,
    /// Whether that was refused.
    refused: bool,
    issued: OnceCell<Result<Arc<Issued>>>,
}

impl Keys {
    /// The keys for `uri`. The first is got at once, so that what is missing is said at once; by `client`, where a service
    /// has to be asked.
    ///
    /// # Errors
    /// [`Kind::Refused`] and [`Kind::Invalid`] for credentials that are not there or that do not do, [`Kind::Unavailable`]
    /// and [`Kind::Timeout`] of a token service.
    pub(crate) async fn open(uri: &Uri, access: &Access, client: &Client) -> Result<Self> {
        let keys = Self::lazy(uri, access, client);
        keys.get().await?;
        Ok(keys)
    }

    /// The same, before anything is got.
    pub(crate) fn lazy(uri: &Uri, access: &Access, client: &Client) -> Self {
        Self::of(Box::new(issue::Desk::new(uri, access, client)))
    }

    fn of(issuer: Box<dyn Issuer>) -> Self {
        Self { issuer, current: Mutex::default() }
    }

    /// Does `ask` with the key, and once more with another if that is refused and there is another.
    pub(crate) async fn with<T, F>(&self, ask: impl Fn(Arc<Issued>) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let first = self.get().await?;
        match ask(first.clone()).await {
            Err(refusal) if refusal.kind() == Kind::Refused => match self.instead(&first).await? {
                Some(other) => ask(other).await,
                None => Err(refusal),
            },
            done => done,
        }
    }

    /// The key as it is now.
    pub(crate) async fn get(&self) -> Result<Arc<Issued>> {
        let slot = {
            let mut current = self.current.lock();
            let before = match current.issued.get() {
                None => None,
                Some(Ok(issued)) if issued.renew.is_none_or(|at| at > Instant::now()) => None,
                Some(Ok(issued)) => Some(Some(issued.clone())),
                Some(Err(_)) => Some(current.before.clone()),
            };
            if let Some(before) = before {
                let refused = current.refused && matches!(current.issued.get(), Some(Err(_)));
                *current = Arc::new(Slot { before, refused, ..Slot::default() });
            }
            current.clone()
        };
        self.filled(&slot).await
    }

    /// Another key than `refused`; `None` where there is none.
    async fn instead(&self, refused: &Arc<Issued>) -> Result<Option<Arc<Issued>>> {
        if refused.key == Key::Nobody || refused.asked.is_some_and(|at| at.elapsed() < YOUNG) {
            return Ok(None);
        }
        self.doubt(refused);
        let other = self.get().await?;
        Ok((other.key != refused.key).then_some(other))
    }

    /// Has the next request get another key than `refused`, unless somebody saw to that before.
    pub(crate) fn doubt(&self, refused: &Arc<Issued>) {
        let mut current = self.current.lock();
        if matches!(current.issued.get(), Some(Ok(issued)) if Arc::ptr_eq(issued, refused)) {
            let before = Some(refused.clone());
            *current = Arc::new(Slot { before, refused: true, ..Slot::default() });
        }
    }

    /// `error`, and where it is a refusal of the key what to do about it.
    pub(crate) fn blame(&self, error: Error) -> Error {
        let current = self.current.lock();
        let known = current.issued.get().and_then(|issued| issued.as_ref().ok()).or(current.before.as_ref());
        match known {
            Some(issued) => issued.blame(error),
            None => error,
        }
    }

    async fn filled(&self, slot: &Slot) -> Result<Arc<Issued>> {
        let issued = slot.issued.get_or_init(|| self.issue(slot)).await;
        issued.as_ref().map(Arc::clone).map_err(Error::share)
    }

    async fn issue(&self, slot: &Slot) -> Result<Arc<Issued>> {
        match (self.issuer.issue(slot.refused).await, &slot.before) {
            (Ok(issued), _) => Ok(Arc::new(issued)),
            // It is early still: what went wrong may pass.
            (Err(_), Some(before)) if !slot.refused && before.is_good(SystemTime::now()) => {
                Ok(Arc::new(Issued { renew: Some(Instant::now() + PAUSE), ..Issued::clone(before) }))
            }
            (Err(error), _) => Err(error),
        }
    }
}
