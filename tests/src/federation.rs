//! The token services of Google (STS and IAM) and of Entra ID: they check what they are asked, and issue tokens for pods' own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::body::to_bytes;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

use crate::requests::RequestCounter;
use crate::serve::HttpServer;

/// A part of each token that they issue, so that a test can look for it where no secret may be.
pub const CLOUD_SECRET: &str = "tellNobodyOfThisToken";
/// The path of requests for tokens of Google's service accounts, before the account's address.
const ACCOUNTS_PATH: &str = "/v1/projects/-/serviceAccounts/";

/// The services on loopback, and who has access to the storage.
#[derive(Debug)]
pub struct TokenServices {
    /// To stop and start them.
    pub server: HttpServer,
    /// The requests that they served.
    pub requests: RequestCounter,
    state: Arc<Mutex<TokenState>>,
}

/// The tokens that the storage takes. Clones are handles to the same.
#[derive(Clone, Debug)]
pub struct StorageTokens(Arc<Mutex<TokenState>>);

/// Their settings, and what they issued.
#[derive(Debug)]
struct TokenState {
    /// The identities that exist, each with the token that it is given for: the name of a workload identity provider, or
    /// `TENANT/CLIENT` of Entra ID.
    trusted: BTreeMap<String, String>,
    /// The service accounts that each federated identity may impersonate.
    accounts: BTreeMap<String, String>,
    /// How long tokens are good.
    lifetime: Duration,
    /// The tokens issued, with the identity and the end of each.
    issued: BTreeMap<String, (String, SystemTime)>,
    /// The identities whose tokens the storage took, in the order of its requests.
    readers: Vec<String>,
}

/// A refusal, in the words of OAuth or of Google.
type Refused = (StatusCode, String);

impl TokenServices {
    /// Services that trust nobody yet.
    pub fn start() -> Self {
        let state = Arc::new(Mutex::new(TokenState {
            trusted: BTreeMap::new(),
            accounts: BTreeMap::new(),
            lifetime: Duration::from_secs(3600),
            issued: BTreeMap::new(),
            readers: Vec::new(),
        }));
        let requests = RequestCounter::default();
        let app = Router::new().fallback(answer).with_state(state.clone());
        Self { server: HttpServer::start(requests.around(app), 0), requests, state }
    }

    /// Their URL.
    pub fn url(&self) -> String {
        self.server.url()
    }

    /// The identity `identity` is given for `token` from now on, and for no other.
    pub fn trust(&self, identity: &str, token: &str) {
        self.state.lock().trusted.insert(identity.to_owned(), token.to_owned());
    }

    /// The identity of a provider may impersonate the service account `account`.
    pub fn grant(&self, provider: &str, account: &str) {
        self.state.lock().accounts.insert(account.to_owned(), provider.to_owned());
    }

    /// How long the tokens are good that they issue from now on.
    pub fn set_lifetime(&self, lifetime: Duration) {
        self.state.lock().lifetime = lifetime;
    }

    /// How many tokens they have issued for `identity`.
    pub fn issued_tokens(&self, identity: &str) -> usize {
        self.state.lock().issued.values().filter(|(known, _)| known == identity).count()
    }

    /// The identities that have read since the last call.
    pub fn take_readers(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().readers)
    }

    /// The tokens that a storage is to take.
    pub fn storage_tokens(&self) -> StorageTokens {
        StorageTokens(self.state.clone())
    }
}

impl StorageTokens {
    /// `app`, for requests with a token that is still good.
    pub fn around(&self, app: Router) -> Router {
        app.layer(from_fn_with_state(self.clone(), admit))
    }
}

async fn admit(State(StorageTokens(state)): State<StorageTokens>, request: Request, next: Next) -> Response {
    let identity = state.lock().identity(bearer(&request));
    let Some(identity) = identity else {
        return refusal(StatusCode::UNAUTHORIZED, "UNAUTHENTICATED").into_response();
    };
    state.lock().readers.push(identity);
    next.run(request).await
}

async fn answer(State(state): State<Arc<Mutex<TokenState>>>, request: Request) -> Response {
    let identity = state.lock().identity(bearer(&request));
    let (head, body) = request.into_parts();
    let body = to_bytes(body, 1 << 20).await.unwrap_or_default();
    let body = String::from_utf8_lossy(&body);
    let issued = state.lock().issue(&head, &body, identity.as_deref());
    issued.map_or_else(IntoResponse::into_response, |json| json.to_string().into_response())
}

impl TokenState {
    /// The identity of a token that is still good.
    fn identity(&self, token: Option<String>) -> Option<String> {
        let (identity, until) = self.issued.get(&token?)?;
        (*until > SystemTime::now()).then(|| identity.clone())
    }

    fn issue(&mut self, head: &Parts, body: &str, identity: Option<&str>) -> Result<Value, Refused> {
        let path = head.uri.path();
        if head.method != Method::POST || head.uri.query().is_some() {
            return Err(refusal(StatusCode::METHOD_NOT_ALLOWED, "UNIMPLEMENTED"));
        }
        if path == "/v1/token" {
            return self.google_token(&form(head, body)?);
        }
        if let Some(rest) = path.strip_prefix(ACCOUNTS_PATH) {
            let account = rest.strip_suffix(":generateAccessToken");
            return self.account_token(account.unwrap_or_default(), body, identity);
        }
        match path.strip_suffix("/oauth2/v2.0/token") {
            Some(tenant) => self.entra_token(tenant.trim_start_matches('/'), &form(head, body)?),
            None => Err(refusal(StatusCode::NOT_FOUND, "NOT_FOUND")),
        }
    }

    /// <https://cloud.google.com/iam/docs/reference/sts/rest/v1/TopLevel/token>
    fn google_token(&mut self, form: &BTreeMap<String, String>) -> Result<Value, Refused> {
        let invalid = |word: &str| refusal(StatusCode::BAD_REQUEST, word);
        require(
            form,
            "grant_type",
            "urn:ietf:params:oauth:grant-type:token-exchange",
            "unsupported_grant_type",
        )?;
        require(
            form,
            "requested_token_type",
            "urn:ietf:params:oauth:token-type:access_token",
            "invalid_request",
        )?;
        require(form, "subject_token_type", "urn:ietf:params:oauth:token-type:jwt", "invalid_request")?;
        require(form, "scope", "https://www.googleapis.com/auth/cloud-platform", "invalid_scope")?;
        let provider = form.get("audience").cloned().unwrap_or_default();
        let trusted = self.trusted.get(&provider).ok_or_else(|| invalid("invalid_target"))?;
        if form.get("subject_token") != Some(trusted) {
            return Err(invalid("invalid_grant"));
        }
        let (token, lifetime) = self.token(&provider);
        Ok(json!({
            "access_token": token, "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
            "token_type": "Bearer", "expires_in": lifetime.as_secs(),
        }))
    }

    /// <https://cloud.google.com/iam/docs/reference/credentials/rest/v1/projects.serviceAccounts/generateAccessToken>
    fn account_token(&mut self, account: &str, body: &str, identity: Option<&str>) -> Result<Value, Refused> {
        let identity = identity.ok_or_else(|| refusal(StatusCode::UNAUTHORIZED, "UNAUTHENTICATED"))?;
        let asked: Value = serde_json::from_str(body).unwrap_or_default();
        if asked["scope"] != json!(["https://www.googleapis.com/auth/cloud-platform"]) {
            return Err(google_refusal(StatusCode::BAD_REQUEST, "INVALID_ARGUMENT"));
        }
        if self.accounts.get(account).is_none_or(|provider| provider != identity) {
            return Err(google_refusal(StatusCode::FORBIDDEN, "PERMISSION_DENIED"));
        }
        let (token, lifetime) = self.token(account);
        let until = humantime::format_rfc3339_seconds(SystemTime::now() + lifetime);
        Ok(json!({ "accessToken": token, "expireTime": until.to_string() }))
    }

    /// <https://learn.microsoft.com/entra/identity-platform/v2-oauth2-client-creds-grant-flow>
    fn entra_token(&mut self, tenant: &str, form: &BTreeMap<String, String>) -> Result<Value, Refused> {
        require(form, "grant_type", "client_credentials", "unsupported_grant_type")?;
        require(form, "scope", "https://storage.azure.com/.default", "invalid_scope")?;
        let assertion = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";
        require(form, "client_assertion_type", assertion, "invalid_request")?;
        let client = form.get("client_id").map_or("", String::as_str);
        let identity = format!("{tenant}/{client}");
        let trusted = self.trusted.get(&identity);
        if trusted.is_none() || form.get("client_assertion") != trusted {
            let said = json!({
                "error": "invalid_client", "error_codes": [700_213],
                "error_description": format!("AADSTS700213: no federated identity record matches {form:?}"),
            });
            return Err((StatusCode::UNAUTHORIZED, said.to_string()));
        }
        let (token, lifetime) = self.token(&identity);
        Ok(json!({ "token_type": "Bearer", "expires_in": lifetime.as_secs(), "access_token": token }))
    }

    /// A new token of `identity`, and how long it is good.
    fn token(&mut self, identity: &str) -> (String, Duration) {
        let token = format!("{CLOUD_SECRET}-{}", self.issued.len());
        let until = SystemTime::now() + self.lifetime;
        self.issued.insert(token.clone(), (identity.to_owned(), until));
        (token, self.lifetime)
    }
}

fn bearer(request: &Request) -> Option<String> {
    let value = request.headers().get("authorization")?.to_str().ok()?;
    value.strip_prefix("Bearer ").map(str::to_owned)
}

/// The fields of a form, each of which is there once.
fn form(head: &Parts, body: &str) -> Result<BTreeMap<String, String>, Refused> {
    let decode = |text: &str| percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned();
    let pairs = body.split('&').filter_map(|pair| pair.split_once('='));
    let fields: BTreeMap<_, _> = pairs.map(|(name, value)| (decode(name), decode(value))).collect();
    let is_form =
        head.headers.get("content-type").is_some_and(|kind| kind == "application/x-www-form-urlencoded");
    let valid = is_form && fields.len() == body.split('&').count();
    valid.then_some(fields).ok_or_else(|| refusal(StatusCode::BAD_REQUEST, "invalid_request"))
}

fn require(form: &BTreeMap<String, String>, name: &str, value: &str, word: &str) -> Result<(), Refused> {
    let right = form.get(name).is_some_and(|given| given == value);
    right.then_some(()).ok_or_else(|| refusal(StatusCode::BAD_REQUEST, word))
}

fn refusal(status: StatusCode, word: &str) -> Refused {
    (status, json!({ "error": word, "error_description": "details" }).to_string())
}

fn google_refusal(status: StatusCode, word: &str) -> Refused {
    (status, json!({ "error": {"code": status.as_u16(), "status": word, "message": "details"} }).to_string())
}
