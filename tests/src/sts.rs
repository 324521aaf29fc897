//! AWS's token service (STS): issues temporary keys for the right token or signature.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::body::to_bytes;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;
use percent_encoding::percent_decode_str;
use sha2::{Digest, Sha256};

use crate::fault::Faults;
use crate::requests::RequestCounter;
use crate::s3::{AllowedKeys, Keys, S3Error, S3Server, hex, verify_for};
use crate::serve::HttpServer;

/// A token service on loopback, for one S3 server.
#[derive(Debug)]
pub struct StsServer {
    /// To stop and start it.
    pub server: HttpServer,
    /// The requests that it served.
    pub requests: RequestCounter,
    /// Its faults.
    pub faults: Faults,
    state: Arc<StsState>,
}

/// Its settings.
#[derive(Debug)]
struct StsState {
    allowed: AllowedKeys,
    /// The keys that a role is given for.
    base: Keys,
    /// The web identity token that a role is given for.
    token: Mutex<String>,
    /// How long its keys are good.
    lifetime: Mutex<Duration>,
    /// How many it has given.
    given: Mutex<u64>,
}

/// A part of each secret key that it gives, so that a test can look for it where no secret may be.
pub const STS_SECRET: &str = "tellNobodyOfThisEither";

impl StsServer {
    /// A service whose keys open `s3`; it gives them for `base`, and for the web identity token `token`.
    pub fn start(s3: &S3Server, base: Keys, token: &str) -> Self {
        let (requests, faults) = (RequestCounter::default(), Faults::default());
        let state = Arc::new(StsState {
            allowed: s3.allowed_keys(),
            base,
            token: Mutex::new(token.to_owned()),
            lifetime: Mutex::new(Duration::from_secs(3600)),
            given: Mutex::new(0),
        });
        let app = Router::new().fallback(answer).with_state(state.clone());
        Self { server: HttpServer::start(requests.around(faults.around(app)), 0), requests, faults, state }
    }

    /// Its URL.
    pub fn url(&self) -> String {
        self.server.url()
    }

    /// How long the keys are good that it gives from now on.
    pub fn set_lifetime(&self, lifetime: Duration) {
        *self.state.lifetime.lock() = lifetime;
    }

    /// The web identity token that counts from now on.
    pub fn set_token(&self, token: &str) {
        *self.state.token.lock() = token.to_owned();
    }

    /// How many keys it has given.
    pub fn issued_keys(&self) -> u64 {
        *self.state.given.lock()
    }
}

async fn answer(State(state): State<Arc<StsState>>, request: Request) -> Response {
    state.give(request).await.unwrap_or_else(IntoResponse::into_response)
}

impl StsState {
    async fn give(&self, request: Request) -> Result<Response, S3Error> {
        let (head, body) = request.into_parts();
        let body = to_bytes(body, 1 << 20).await.map_err(|_| bad("IncompleteBody"))?;
        let form = String::from_utf8(body.to_vec()).map_err(|_| bad("MalformedInput"))?;
        let field = |name: &str| {
            let text = form.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))?;
            Some(percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned())
        };
        let (Some(action), Some(_arn), Some(_session)) =
            (field("Action"), field("RoleArn"), field("RoleSessionName"))
        else {
            return Err(bad("MissingParameter"));
        };
        match action.as_str() {
            "AssumeRole" => {
                let digest = hex(&Sha256::digest(&body));
                if head.headers.get("x-amz-content-sha256").is_none_or(|output| output != digest.as_str()) {
                    return Err(bad("XAmzContentSHA256Mismatch"));
                }
                verify_for("sts", &self.base, &head)?;
            }
            "AssumeRoleWithWebIdentity" => {
                if field("WebIdentityToken").as_deref() != Some(&*self.token.lock()) {
                    return Err(bad("ExpiredTokenException"));
                }
            }
            _ => return Err(bad("InvalidAction")),
        }
        Ok(self.keys(&action).into_response())
    }

    /// New keys, which the S3 server knows from now on.
    fn keys(&self, action: &str) -> String {
        let number = {
            let mut given = self.given.lock();
            *given += 1;
            *given
        };
        let lifetime = *self.lifetime.lock();
        let until = SystemTime::now() + lifetime;
        let keys = Keys {
            access: format!("ASIATESTKIT{number}"),
            secret: format!("{STS_SECRET}{number}"),
            token: Some(format!("session-{STS_SECRET}-{number}")),
        };
        let token = keys.token.clone().unwrap_or_default();
        let text = format!(
            "<{action}Response xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><{action}Result><Credentials>\
             <AccessKeyId>{}</AccessKeyId><SecretAccessKey>{}</SecretAccessKey><SessionToken>{token}</SessionToken>\
             <Expiration>{}</Expiration></Credentials></{action}Result></{action}Response>",
            keys.access,
            keys.secret,
            humantime::format_rfc3339_millis(until)
        );
        self.allowed.allow(keys, Some(until));
        text
    }
}

fn bad(code: &'static str) -> S3Error {
    S3Error(StatusCode::BAD_REQUEST, code)
}
