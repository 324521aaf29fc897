//! The URLs of services in a configuration.

use url::{Host, Url};

use crate::error::{Error, Kind, Result};

/// Checks the URL of a service; the result has no slash at its end.
///
/// # Errors
/// [`Kind::Invalid`], which says what is wrong with it.
pub(crate) fn endpoint(text: &str, allow_http: bool) -> Result<String> {
    let invalid = |text: String| Err(Error::new(Kind::Invalid, text));
    match Url::parse(text) {
        Ok(url) if !url.username().is_empty() || url.password().is_some() => invalid(
            "the endpoint may not contain a user name or password; give credentials separately".into(),
        ),
        Ok(url)
            if !matches!(url.scheme(), "http" | "https")
                || url.query().is_some()
                || url.fragment().is_some() =>
        {
            invalid("the endpoint is not a URL of the form https://host".into())
        }
        Ok(url) if url.scheme() == "http" && !allow_http && !loopback(&url) => {
            invalid(format!("the endpoint {text} is plain http; use https, or allow http explicitly"))
        }
        Ok(url) => Ok(url.as_str().trim_end_matches('/').into()),
        Err(_) => invalid("the endpoint is not a URL of the form https://host".into()),
    }
}

/// Whether `url` names this machine.
pub(crate) fn loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(Host::Ipv4(ip)) => ip.is_loopback(),
        Some(Host::Ipv6(ip)) => ip.is_loopback(),
        None => false,
    }
}
