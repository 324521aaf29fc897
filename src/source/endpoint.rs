//! The URLs of services, as somebody gives them.

use url::{Host, Url};

use crate::error::{Error, Kind, Result};

/// A service's URL that somebody gave, without a slash at its end.
///
/// # Errors
/// [`Kind::Invalid`], which says why it does not do.
pub(crate) fn endpoint(text: &str, allow_http: bool) -> Result<String> {
    let invalid = |text: String| Err(Error::new(Kind::Invalid, text));
    match Url::parse(text) {
        Ok(url) if !url.username().is_empty() || url.password().is_some() => invalid(
            "the endpoint may not hold a user name or password; give credentials apart from it".into(),
        ),
        Ok(url) if url.scheme() == "http" && !allow_http && !loopback(&url) => {
            invalid(format!("the endpoint {text} is plain http; use https, or allow http explicitly"))
        }
        Ok(url)
            if matches!(url.scheme(), "http" | "https")
                && url.query().is_none()
                && url.fragment().is_none() =>
        {
            Ok(url.as_str().trim_end_matches('/').into())
        }
        _ => invalid("the endpoint is no URL of the form https://host".into()),
    }
}

/// Whether `url` leads to this machine.
pub(crate) fn loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(Host::Ipv4(ip)) => ip.is_loopback(),
        Some(Host::Ipv6(ip)) => ip.is_loopback(),
        None => false,
    }
}
