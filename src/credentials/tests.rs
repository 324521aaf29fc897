use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;

use super::*;

/// Gives a new key each time, good for as long as it is told, or none.
#[derive(Debug, Default)]
struct Counter {
    asked: AtomicUsize,
    refusals: AtomicUsize,
    /// Of each key, how it is; past the end none is given.
    keys: Vec<(&'static str, Option<Duration>)>,
}

#[async_trait]
impl Issuer for Arc<Counter> {
    async fn issue(&self, refused: bool) -> Result<Issued> {
        tokio::time::sleep(Duration::from_millis(10)).await;
        self.refusals.fetch_add(usize::from(refused), Ordering::Relaxed);
        let number = self.asked.fetch_add(1, Ordering::Relaxed);
        let Some((token, lasts)) = self.keys.get(number) else {
            return Err(Error::new(Kind::Unavailable, "the office is closed"));
        };
        let renew = lasts.map(|lasts| Instant::now() + lasts);
        let mut issued = Issued::of(Key::Bearer(Secret::new(*token)), Some("the secret \"x\""));
        (issued.renew, issued.expiry) = (renew, lasts.map(|lasts| SystemTime::now() + lasts * 1000));
        Ok(issued)
    }
}

fn keys(given: &[(&'static str, Option<Duration>)]) -> (Arc<Counter>, Keys) {
    let counter = Arc::new(Counter { keys: given.to_vec(), ..Counter::default() });
    (counter.clone(), Keys::of(Box::new(counter)))
}

/// A service that lets in who has one of `right`.
async fn ask(issued: Arc<Issued>, right: &[&str]) -> Result<()> {
    tokio::task::yield_now().await;
    match &issued.key {
        Key::Bearer(token) if right.contains(&token.expose()) => Ok(()),
        _ => Err(issued.blame(Error::new(Kind::Refused, "the server answers 401 Unauthorized"))),
    }
}

#[tokio::test(start_paused = true)]
async fn however_many_are_refused_another_key_is_got_once() {
    let (counter, keys) = keys(&[("old", None), ("new", None), ("newer", None)]);
    let all = join_all((0..20).map(|_| keys.with(|issued| ask(issued, &["old"])))).await;
    assert!(all.iter().all(Result::is_ok));
    assert_eq!(counter.asked.load(Ordering::Relaxed), 1, "one for all");
    let all = join_all((0..20).map(|_| keys.with(|issued| ask(issued, &["new"])))).await;
    assert!(all.iter().all(Result::is_ok), "{all:?}");
    assert_eq!(counter.asked.load(Ordering::Relaxed), 2, "once more for all");
    keys.with(|issued| ask(issued, &["new"])).await.expect("it is kept");
    assert_eq!(counter.asked.load(Ordering::Relaxed), 2);
    assert_eq!(counter.refusals.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_no_other_key_is_not_tried() {
    let (counter, keys) = keys(&[("same", None), ("same", None), ("same", None)]);
    let tried = AtomicUsize::new(0);
    let asked = |issued| {
        tried.fetch_add(1, Ordering::Relaxed);
        ask(issued, &[])
    };
    let error = keys.with(asked).await.expect_err("refused");
    assert_eq!(error.to_string(), "the server answers 401 Unauthorized; check the secret \"x\"");
    assert_eq!((tried.load(Ordering::Relaxed), counter.asked.load(Ordering::Relaxed)), (1, 2));
    // Nobody has no other key at all.
    let nobody = Keys::of(Box::new(issue::Desk::new(
        &"https://h/x".parse().expect("URI"),
        &Access::default(),
        &Client::new(reqwest::redirect::Policy::none(), None).expect("client"),
    )));
    let error = nobody.with(|issued| ask(issued, &[])).await.expect_err("refused");
    assert_eq!(error.to_string(), "the server answers 401 Unauthorized; check the credentials");
}

#[tokio::test(start_paused = true)]
async fn a_key_is_renewed_before_its_end_and_used_on_while_that_fails() {
    let minute = Duration::from_secs(60);
    let (counter, keys) = keys(&[("first", Some(minute)), ("second", Some(minute))]);
    let token = async || match keys.get().await.expect("a key").key.clone() {
        Key::Bearer(token) => token.expose().to_owned(),
        other => panic!("{other:?}"),
    };
    assert_eq!((token().await, token().await), ("first".into(), "first".into()));
    tokio::time::advance(minute).await;
    assert_eq!(token().await, "second");
    tokio::time::advance(minute).await;
    assert_eq!(token().await, "second", "the office is closed, and the key still good");
    assert_eq!(counter.asked.load(Ordering::Relaxed), 3);
    assert_eq!(token().await, "second");
    assert_eq!(counter.asked.load(Ordering::Relaxed), 3, "not at every request");
    tokio::time::advance(PAUSE).await;
    assert_eq!(token().await, "second");
    assert_eq!(counter.asked.load(Ordering::Relaxed), 4);
}

#[tokio::test(start_paused = true)]
async fn what_fails_is_told_to_all_and_asked_for_again() {
    let (counter, keys) = keys(&[]);
    let all = join_all((0..5).map(|_| keys.get())).await;
    assert!(all.iter().all(|got| got.as_ref().is_err_and(|e| e.to_string() == "the office is closed")));
    assert_eq!(counter.asked.load(Ordering::Relaxed), 1);
    keys.get().await.expect_err("closed");
    assert_eq!(counter.asked.load(Ordering::Relaxed), 2);
}

#[test]
fn an_end_is_told() {
    let at = |seconds| Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
    let said = |name: Option<&str>, expiry| {
        let issued = Issued { expiry, ..Issued::of(Key::Nobody, name) };
        issued.advice(SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_323_045))
    };
    let secret = Some("the secret \"x\"");
    assert_eq!(said(None, None), "check the credentials");
    assert_eq!(said(secret, None), "check the secret \"x\"");
    assert_eq!(said(secret, at(1_767_323_045)), "the secret \"x\" expired at 2026-01-02T03:04:05Z; renew it");
    assert_eq!(
        said(secret, at(1_767_323_046)),
        "check the secret \"x\", which is good until 2026-01-02T03:04:06Z"
    );
}

#[test]
fn no_key_is_ever_shown() {
    let aws = AwsCredential { key_id: "id".into(), secret_key: "hush".into(), token: Some("hush".into()) };
    let azure = AzureCredential::BearerToken("hush".into());
    for key in [
        Key::Aws(Arc::new(aws)),
        Key::Azure(Arc::new(azure)),
        Key::Bearer(Secret::new("hush")),
        Key::Basic(Secret::new("hush"), Secret::new("hush")),
    ] {
        assert!(!format!("{key:?} {:?}", key.authorization()).contains("hush"), "{key:?}");
    }
    let basic = Key::Basic(Secret::new("Aladdin"), Secret::new("open sesame")).authorization();
    // The example of RFC 7617, section 2.
    assert_eq!(basic.expect("valid").expect("set"), "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
    Key::Bearer(Secret::new("a\nb")).authorization().expect_err("two lines");
}
