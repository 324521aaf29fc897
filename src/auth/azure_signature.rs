//! Signing a request of `object_store`'s for Azure once more, with another key than it was made with.

use object_store::azure::{AzureAuthorizer, AzureCredential};
use object_store::client::HttpRequest;
use reqwest::header::{AUTHORIZATION, HeaderValue};
use url::Url;

use super::store_adapter::{engine_error, invalid_url};
use super::{AuthKey, wrong_service};
use crate::error::Result;

/// The header with the URL that a copy reads, which has a shared access signature where the request has one.
const COPY_SOURCE_HEADER: &str = "x-ms-copy-source";

/// The parameters that a shared access signature can have.
const SAS_PARAMETERS: [&str; 24] = [
    "sv", "ss", "srt", "sp", "se", "st", "spr", "sr", "sig", "sip", "si", "sdd", "ses", "skoid", "sktid",
    "skt", "ske", "sks", "skv", "skdutid", "sduoid", "saoid", "suoid", "scid",
];

/// Signs `request` with `key` for the storage account `account`, whatever key it was made with.
///
/// # Errors
/// [`Kind::Invalid`](crate::error::Kind::Invalid) for a key of another service.
pub(super) fn sign_again(account: &str, request: &mut HttpRequest, key: &AuthKey) -> Result<()> {
    let AuthKey::Azure(key) = key else { return Err(wrong_service()) };
    request.headers_mut().remove(AUTHORIZATION);
    let url = without_sas(&request.uri().to_string())?;
    *request.uri_mut() = url.as_str().parse().map_err(|_| invalid_url())?;
    if let Some(source) = request.headers().get(COPY_SOURCE_HEADER) {
        let mut source = without_sas(source.to_str().map_err(|_| invalid_url())?)?;
        if let AzureCredential::SASToken(pairs) = &**key {
            source.query_pairs_mut().extend_pairs(pairs);
        }
        let mut source = HeaderValue::from_str(source.as_str()).map_err(|_| invalid_url())?;
        source.set_sensitive(true);
        request.headers_mut().insert(COPY_SOURCE_HEADER, source);
    }
    AzureAuthorizer::new(key, account).try_authorize(request).map_err(engine_error)
}

/// `url` without the parameters of a shared access signature.
fn without_sas(url: &str) -> Result<Url> {
    let mut url = Url::parse(url).map_err(|_| invalid_url())?;
    if let Some(query) = url.query() {
        let is_other = |pair: &&str| {
            let name = pair.split('=').next().unwrap_or_default();
            !SAS_PARAMETERS.contains(&name)
        };
        let others: Vec<_> = query.split('&').filter(is_other).collect();
        let others = (!others.is_empty()).then(|| others.join("&"));
        url.set_query(others.as_deref());
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use object_store::azure::AzureAccessKey;
    use object_store::client::HttpRequestBody;
    use reqwest::Method;
    use reqwest::header::{CONTENT_LENGTH, DATE};

    use super::*;
    use crate::error::Kind;

    const URL: &str = "https://account.blob.core.windows.net/c/a%20b?comp=block&blockid=MQ%3D%3D";
    const SOURCE: &str = "https://account.blob.core.windows.net/c/from";

    fn account_key(text: &str) -> AuthKey {
        let key = AzureAccessKey::try_new(text).expect("a key");
        AuthKey::Azure(Arc::new(AzureCredential::AccessKey(key)))
    }

    fn bearer(token: &str) -> AuthKey {
        AuthKey::Azure(Arc::new(AzureCredential::BearerToken(token.to_owned())))
    }

    fn sas(kind: &str, signature: &str) -> AuthKey {
        let pairs = [("sv", "2023-11-03"), (kind, "c"), ("sig", signature)];
        let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        AuthKey::Azure(Arc::new(AzureCredential::SASToken(pairs)))
    }

    /// A request as `object_store` makes it with `key`.
    fn made_with(key: &AuthKey) -> HttpRequest {
        let AuthKey::Azure(key) = key else { panic!("not Azure's") };
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.method_mut() = Method::PUT;
        *request.uri_mut() = URL.parse().expect("a URL");
        let mut source = Url::parse(SOURCE).expect("a URL");
        if let AzureCredential::SASToken(pairs) = &**key {
            source.query_pairs_mut().extend_pairs(pairs);
        }
        request.headers_mut().insert(COPY_SOURCE_HEADER, source.as_str().parse().expect("a header"));
        request.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        AzureAuthorizer::new(key, "account").try_authorize(&mut request).expect("signed");
        request
    }

    #[test]
    fn azure_request_signed_again_equals_one_made_with_the_new_key() {
        let keys = [account_key("b2xk"), account_key("bmV3"), bearer("old"), bearer("new")];
        let all = [&keys[..], &[sas("sr", "o/l+d="), sas("srt", "n/e+w=")]].concat();
        for (used, key) in all.iter().flat_map(|used| all.iter().map(move |key| (used, key))) {
            // The signature has the second in it.
            let (expected, signed) = loop {
                let (expected, mut signed) = (made_with(key), made_with(used));
                sign_again("account", &mut signed, key).expect("signed");
                if expected.headers()[DATE] == signed.headers()[DATE] {
                    break (expected, signed);
                }
            };
            assert_eq!(expected.uri(), signed.uri());
            assert_eq!(expected.headers(), signed.headers());
        }
        let bearer = AuthKey::Bearer(crate::source::Secret::new("t"));
        let error = sign_again("account", &mut made_with(&all[0]), &bearer).expect_err("no key");
        assert_eq!(error.kind(), Kind::Invalid);
    }
}
