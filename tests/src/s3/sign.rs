//! Signatures, version 4, in the `Authorization` header.
//! <https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html>

use std::fmt;
use std::fmt::Write;

use axum::http::{StatusCode, request::Parts};
use hmac::{Hmac, KeyInit, Mac};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};
use sha2::{Digest, Sha256};

use super::S3Error;

/// The credentials that clients sign with.
#[derive(Clone)]
pub struct Keys {
    /// The access key id.
    pub access: String,
    /// The secret access key.
    pub secret: String,
    /// The session token, where one is wanted.
    pub token: Option<String>,
}

impl Keys {
    /// Keys for tests. Nothing else has this secret, so a test can look for it where no secret may be.
    pub fn sample() -> Self {
        Self { access: "AKIATESTKIT".into(), secret: "tell+nobody/of-this".into(), token: None }
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({})", self.access)
    }
}

/// All but the unreserved characters of RFC 3986.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
const IN_PATH: &AsciiSet = &RESERVED.remove(b'/');

/// Whether `request` is signed by the holder of `keys`, for S3.
pub(super) fn verify(keys: &Keys, request: &Parts) -> Result<(), S3Error> {
    verify_for("s3", keys, request)
}

/// The same, for another service of AWS's.
pub(crate) fn verify_for(service: &str, keys: &Keys, request: &Parts) -> Result<(), S3Error> {
    let denied = |code| S3Error(StatusCode::FORBIDDEN, code);
    let claim = SignatureFields::of(request, service).ok_or(denied("AccessDenied"))?;
    if claim.access != keys.access {
        return Err(denied("InvalidAccessKeyId"));
    }
    if header(request, "x-amz-security-token") != keys.token.as_deref() {
        return Err(denied("InvalidToken"));
    }
    let canonical = canonical(request, claim.headers).ok_or(denied("AccessDenied"))?;
    let time = header(request, "x-amz-date").filter(|time| time.starts_with(claim.date));
    let text = format!(
        "AWS4-HMAC-SHA256\n{}\n{}/{}/{service}/aws4_request\n{}",
        time.ok_or(denied("AccessDenied"))?,
        claim.date,
        claim.region,
        hex(&Sha256::digest(canonical))
    );
    let mut key = format!("AWS4{}", keys.secret).into_bytes();
    for part in [claim.date, claim.region, service, "aws4_request"] {
        key = mac(&key, part);
    }
    if hex(&mac(&key, &text)) == claim.signature { Ok(()) } else { Err(denied("SignatureDoesNotMatch")) }
}

/// Whether a request is signed for `region`.
pub(super) fn is_for(region: &str, request: &Parts) -> bool {
    SignatureFields::of(request, "s3").is_some_and(|claim| claim.region == region)
}

/// The parts of the `Authorization` header.
struct SignatureFields<'a> {
    access: &'a str,
    date: &'a str,
    region: &'a str,
    headers: &'a str,
    signature: &'a str,
}

impl<'a> SignatureFields<'a> {
    fn of(request: &'a Parts, service: &str) -> Option<Self> {
        let fields = header(request, "authorization")?.strip_prefix("AWS4-HMAC-SHA256 ")?;
        let field =
            |name: &str| fields.split(',').find_map(|f| f.trim().strip_prefix(name)?.strip_prefix('='));
        let scope: Vec<&str> = field("Credential")?.split('/').collect();
        let [access, date, region, named, "aws4_request"] = scope[..] else { return None };
        if named != service {
            return None;
        }
        Some(Self { access, date, region, headers: field("SignedHeaders")?, signature: field("Signature")? })
    }
}

/// The canonical request; `None` where it names headers that are not there, or leaves out one that must be signed.
fn canonical(request: &Parts, signed: &str) -> Option<String> {
    let path: Vec<u8> = percent_decode_str(request.uri.path()).collect();
    let mut pairs: Vec<(String, String)> =
        request.uri.query().unwrap_or_default().split('&').filter_map(pair).collect();
    pairs.sort();
    let query: Vec<String> = pairs.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    let mut text = format!("{}\n{}\n{}\n", request.method, percent_encode(&path, IN_PATH), query.join("&"));
    let names: Vec<&str> = signed.split(';').collect();
    let amz = request.headers.keys().map(|name| name.as_str()).filter(|name| name.starts_with("x-amz-"));
    if !amz.chain(["host"]).all(|name| names.contains(&name)) {
        return None;
    }
    for name in names {
        let value: Vec<&str> = header(request, name)?.split_whitespace().collect();
        writeln!(text, "{name}:{}", value.join(" ")).ok()?;
    }
    write!(text, "\n{signed}\n{}", header(request, "x-amz-content-sha256")?).ok()?;
    Some(text)
}

fn pair(text: &str) -> Option<(String, String)> {
    let (name, value) = text.split_once('=').unwrap_or((text, ""));
    let again = |text| percent_encode(&percent_decode_str(text).collect::<Vec<u8>>(), RESERVED).to_string();
    (!name.is_empty()).then(|| (again(name), again(value)))
}

fn header<'a>(request: &'a Parts, name: &str) -> Option<&'a str> {
    request.headers.get(name)?.to_str().ok()
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("any length will do");
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::Request;

    /// The first example of the page named above.
    fn example() -> Parts {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let signature = "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41";
        let request = Request::get("/test.txt")
            .header("host", "examplebucket.s3.amazonaws.com")
            .header("range", "bytes=0-9")
            .header("x-amz-content-sha256", empty)
            .header("x-amz-date", "20130524T000000Z")
            .header(
                "authorization",
                format!(
                    "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,\
                     SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,Signature={signature}"
                ),
            );
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn signature_of_aws_example_verifies_and_forgery_fails() {
        let secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".to_owned();
        let keys = Keys { access: "AKIAIOSFODNN7EXAMPLE".into(), secret, token: None };
        verify(&keys, &example()).unwrap();
        let mut other = example();
        other.headers.insert("range", "bytes=0-99".parse().unwrap());
        assert_eq!(verify(&keys, &other).unwrap_err().1, "SignatureDoesNotMatch");
        let wrong = Keys { secret: "wrong".into(), ..keys };
        assert_eq!(verify(&wrong, &example()).unwrap_err().1, "SignatureDoesNotMatch");
    }
}
