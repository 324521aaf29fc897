//! The expiry of tokens and signatures, as they state it themselves.

use std::time::SystemTime;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use chrono::{DateTime, SecondsFormat, Utc};
use percent_encoding::percent_decode_str;
use serde::Deserialize;

use crate::source::Secret;

/// The expiry of a JWT (RFC 7519, section 4.1.4); `None` for other tokens and for one that names none.
pub(in crate::auth) fn jwt_expiry(token: &Secret) -> Option<SystemTime> {
    #[derive(Deserialize)]
    struct Claims {
        exp: u64,
    }
    let mut parts = token.expose().trim().split('.');
    let (claims, _) = (parts.nth(1)?, parts.next()?);
    let claims: Claims = serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(claims).ok()?).ok()?;
    // A time that no calendar has would be a panic where it is shown.
    DateTime::<Utc>::from_timestamp(i64::try_from(claims.exp).ok()?, 0).map(Into::into)
}

/// A token's expiry as a remark for messages, ` (valid until 2026-01-02T03:04:05Z)`; empty where it is unknown.
pub(super) fn jwt_expiry_remark(token: &Secret) -> String {
    jwt_expiry(token).map_or(String::new(), |end| format!(" (valid until {})", format_time(end)))
}

/// The expiry of a shared access signature of Azure: its `se`, a time or a day.
pub(in crate::auth) fn sas_expiry(sas: &Secret) -> Option<SystemTime> {
    let end = sas.expose().trim_start_matches('?').split('&').find_map(|part| part.strip_prefix("se="))?;
    let end = percent_decode_str(end).decode_utf8().ok()?;
    let day = || format!("{end}T00:00:00Z").parse::<DateTime<Utc>>();
    end.parse::<DateTime<Utc>>().or_else(|_| day()).ok().map(Into::into)
}

/// Writes a time for messages: `2026-01-02T03:04:05Z`.
pub(in crate::auth) fn format_time(time: SystemTime) -> String {
    DateTime::<Utc>::from(time).to_rfc3339_opts(SecondsFormat::Secs, true)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn jwt_expiry_is_its_exp_claim() {
        let epoch = SystemTime::UNIX_EPOCH;
        let end = |text: &str| jwt_expiry(&Secret::new(text))?.duration_since(epoch).ok();
        let claims = BASE64_URL_SAFE_NO_PAD.encode(r#"{"sub": "x", "exp": 1767323045}"#);
        assert_eq!(end(&format!("e30.{claims}.c2ln\n")), Some(Duration::from_secs(1_767_323_045)));
        let none = BASE64_URL_SAFE_NO_PAD.encode(r#"{"sub": "x"}"#);
        for text in ["hf_token", "a.b.c", &format!("e30.{none}.c2ln"), &format!("e30.{claims}")] {
            assert_eq!(end(text), None, "{text}");
        }
    }

    #[test]
    fn jwt_expiry_that_no_calendar_has_is_unknown() {
        for exp in [i64::MAX as u64, 9_000_000_000_000_000_000, u64::MAX] {
            let claims = BASE64_URL_SAFE_NO_PAD.encode(format!(r#"{{"exp": {exp}}}"#));
            assert_eq!(jwt_expiry_remark(&Secret::new(format!("e30.{claims}.x"))), "", "{exp}");
        }
        let claims = BASE64_URL_SAFE_NO_PAD.encode(r#"{"exp": 8000000000000}"#);
        let remark = jwt_expiry_remark(&Secret::new(format!("e30.{claims}.x")));
        assert!(remark.starts_with(" (valid until +"), "{remark}");
    }

    #[test]
    fn sas_expiry_is_its_se_parameter() {
        let end = |text: &str| sas_expiry(&Secret::new(text)).map(format_time);
        let expected = Some("2026-01-02T03:04:05Z".to_owned());
        assert_eq!(end("?sv=1&se=2026-01-02T03%3A04%3A05Z&sig=hush"), expected);
        assert_eq!(end("se=2026-01-02&sig=hush").as_deref(), Some("2026-01-02T00:00:00Z"));
        assert_eq!(end("sv=1&sig=hush"), None);
    }
}
