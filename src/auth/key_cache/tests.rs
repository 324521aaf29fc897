use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;

use object_store::aws::AwsCredential;
use object_store::azure::AzureCredential;

use super::*;
use crate::http_client::HttpClient;
use crate::source::{Access, Secret};

/// Issues these keys, one after the other, then fails.
#[derive(Debug, Default)]
struct ScriptedIssuer {
    asked: AtomicUsize,
    refusals: AtomicUsize,
    /// Each key, and how long after it was issued it is renewed.
    keys: Vec<(&'static str, Option<Duration>)>,
}

#[async_trait]
impl KeyIssuer for Arc<ScriptedIssuer> {
    async fn issue(&self, refused: bool) -> Result<IssuedKey> {
        tokio::time::sleep(Duration::from_millis(10)).await;
        self.refusals.fetch_add(usize::from(refused), Ordering::Relaxed);
        let number = self.asked.fetch_add(1, Ordering::Relaxed);
        let Some((token, lasts)) = self.keys.get(number) else {
            return Err(Error::new(Kind::Unavailable, "the service is down"));
        };
        let renew_at = lasts.map(|lasts| Instant::now() + lasts);
        let mut issued = IssuedKey::of(AuthKey::Bearer(Secret::new(*token)), Some("the secret \"x\""));
        (issued.renew_at, issued.expires_at) =
            (renew_at, lasts.map(|lasts| SystemTime::now() + lasts * 1000));
        Ok(issued)
    }
}

fn keys(given: &[(&'static str, Option<Duration>)]) -> (Arc<ScriptedIssuer>, KeyCache) {
    let counter = Arc::new(ScriptedIssuer { keys: given.to_vec(), ..ScriptedIssuer::default() });
    (counter.clone(), KeyCache::with_issuer(Box::new(counter)))
}

/// A service that accepts the tokens in `right`.
async fn ask(issued: Arc<IssuedKey>, right: &[&str]) -> Result<()> {
    tokio::task::yield_now().await;
    match &issued.key {
        AuthKey::Bearer(token) if right.contains(&token.expose()) => Ok(()),
        _ => Err(issued.explain_refusal(Error::new(Kind::Refused, "the server returned 401 Unauthorized"))),
    }
}

#[tokio::test(start_paused = true)]
async fn key_refused_for_many_requests_is_replaced_once() {
    let (counter, keys) = keys(&[("old", None), ("new", None), ("newer", None)]);
    let all = join_all((0..20).map(|_| keys.send_with_key(|issued| ask(issued, &["old"])))).await;
    assert!(all.iter().all(Result::is_ok));
    assert_eq!(counter.asked.load(Ordering::Relaxed), 1, "one for all");
    let all = join_all((0..20).map(|_| keys.send_with_key(|issued| ask(issued, &["new"])))).await;
    assert!(all.iter().all(Result::is_ok), "{all:?}");
    assert_eq!(counter.asked.load(Ordering::Relaxed), 2, "once more for all");
    keys.send_with_key(|issued| ask(issued, &["new"])).await.expect("it is kept");
    assert_eq!(counter.asked.load(Ordering::Relaxed), 2);
    assert_eq!(counter.refusals.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn key_replaced_by_the_same_key_is_not_sent_again() {
    let (counter, keys) = keys(&[("same", None), ("same", None), ("same", None)]);
    let tried = AtomicUsize::new(0);
    let asked = |issued| {
        tried.fetch_add(1, Ordering::Relaxed);
        ask(issued, &[])
    };
    let error = keys.send_with_key(asked).await.expect_err("refused");
    assert_eq!(error.to_string(), "the server returned 401 Unauthorized; check the secret \"x\"");
    assert_eq!((tried.load(Ordering::Relaxed), counter.asked.load(Ordering::Relaxed)), (1, 2));
    // An anonymous request has no other key at all.
    let anonymous = KeyCache::lazy(
        &"https://h/x".parse().expect("URI"),
        &Access::default(),
        &HttpClient::new(reqwest::redirect::Policy::none(), None).expect("client"),
    );
    let error = anonymous.send_with_key(|issued| ask(issued, &[])).await.expect_err("refused");
    assert_eq!(error.to_string(), "the server returned 401 Unauthorized; no credentials were sent");
}

#[tokio::test(start_paused = true)]
async fn key_whose_renewal_fails_is_used_until_it_expires() {
    let minute = Duration::from_secs(60);
    let (counter, keys) = keys(&[("first", Some(minute)), ("second", Some(minute))]);
    let token = async || match keys.get().await.expect("a key").key.clone() {
        AuthKey::Bearer(token) => token.expose().to_owned(),
        other => panic!("{other:?}"),
    };
    assert_eq!((token().await, token().await), ("first".into(), "first".into()));
    tokio::time::advance(minute).await;
    assert!(join_all((0..20).map(|_| token())).await.iter().all(|token| token == "second"));
    assert_eq!(counter.asked.load(Ordering::Relaxed), 2, "one renewal for all");
    tokio::time::advance(minute).await;
    assert_eq!(token().await, "second", "the service is down, and the key still valid");
    assert_eq!(counter.asked.load(Ordering::Relaxed), 3);
    assert_eq!(token().await, "second");
    assert_eq!(counter.asked.load(Ordering::Relaxed), 3, "not at every request");
    tokio::time::advance(RENEWAL_RETRY_DELAY).await;
    assert_eq!(token().await, "second");
    assert_eq!(counter.asked.load(Ordering::Relaxed), 4);
}

#[tokio::test(start_paused = true)]
async fn key_that_cannot_be_issued_fails_all_waiting_requests_and_is_asked_for_again() {
    let (counter, keys) = keys(&[]);
    let all = join_all((0..5).map(|_| keys.get())).await;
    assert!(all.iter().all(|got| got.as_ref().is_err_and(|e| e.to_string() == "the service is down")));
    assert_eq!(counter.asked.load(Ordering::Relaxed), 1);
    keys.get().await.expect_err("closed");
    assert_eq!(counter.asked.load(Ordering::Relaxed), 2);
}

/// Issues the key in a file, as it is now.
#[derive(Debug)]
struct FileIssuer(std::path::PathBuf);

#[async_trait]
impl KeyIssuer for FileIssuer {
    async fn issue(&self, _: bool) -> Result<IssuedKey> {
        match std::fs::read_to_string(&self.0) {
            Ok(token) if token.is_empty() => Err(Error::new(Kind::Invalid, "the credentials are empty")),
            Ok(token) => Ok(IssuedKey::of(AuthKey::Bearer(Secret::new(token)), None)),
            Err(_) => Err(Error::new(Kind::Refused, "there is no secret")),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn key_that_is_empty_while_it_is_replaced_is_read_again_and_else_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("key");
    std::fs::write(&file, "old").expect("written");
    let keys = KeyCache::with_issuer(Box::new(FileIssuer(file.clone())));
    keys.send_with_key(|issued| ask(issued, &["old"])).await.expect("the old one");
    for missing in [false, true] {
        match missing {
            true => std::fs::remove_file(&file).expect("removed"),
            false => std::fs::write(&file, "").expect("written"),
        }
        let new = if missing { "newest" } else { "new" };
        let right = [new];
        let written = async {
            tokio::time::sleep(Duration::from_millis(700)).await;
            std::fs::write(&file, new).expect("written");
        };
        let (sent, ()) = tokio::join!(keys.send_with_key(|issued| ask(issued, &right)), written);
        sent.expect("the new one");
    }
    std::fs::write(&file, "").expect("written");
    let error = keys.send_with_key(|issued| ask(issued, &["another"])).await.expect_err("it stays empty");
    assert_eq!(error.kind(), Kind::Refused, "{error}");
    assert!(error.to_string().contains("the credentials are empty"), "{error}");
}

#[test]
fn advice_for_a_refused_key_names_it_and_its_expiry() {
    let at = |seconds| Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
    let said = |name: Option<&str>, expires_at| {
        let issued = IssuedKey { expires_at, ..IssuedKey::of(AuthKey::Anonymous, name) };
        issued.advice(SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_323_045))
    };
    let secret = Some("the secret \"x\"");
    assert_eq!(said(None, None), "no credentials were sent");
    assert_eq!(said(secret, None), "check the secret \"x\"");
    assert_eq!(said(secret, at(1_767_323_045)), "the secret \"x\" expired at 2026-01-02T03:04:05Z; renew it");
    assert_eq!(said(secret, at(1_767_323_046)), "check the secret \"x\", valid until 2026-01-02T03:04:06Z");
}

#[test]
fn debug_output_of_a_key_hides_it() {
    let aws = AwsCredential { key_id: "id".into(), secret_key: "hush".into(), token: Some("hush".into()) };
    let azure = AzureCredential::BearerToken("hush".into());
    for key in [
        AuthKey::Aws(Arc::new(aws)),
        AuthKey::Azure(Arc::new(azure)),
        AuthKey::Bearer(Secret::new("hush")),
        AuthKey::Basic(Secret::new("hush"), Secret::new("hush")),
    ] {
        assert!(!format!("{key:?} {:?}", key.authorization()).contains("hush"), "{key:?}");
    }
    let basic = AuthKey::Basic(Secret::new("Aladdin"), Secret::new("open sesame")).authorization();
    // The example of RFC 7617, section 2.
    assert_eq!(basic.expect("valid").expect("set"), "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
    AuthKey::Bearer(Secret::new("a\nb")).authorization().expect_err("two lines are not a header");
}
