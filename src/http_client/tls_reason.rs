//! Failures of TLS in the words of people who run servers.

/// The words of the TLS library on a certificate, before the reason.
const CERTIFICATE_PREFIX: &str = "invalid peer certificate: ";
/// Its words before the server's own reason.
const ALERT_PREFIX: &str = "received fatal alert: ";
/// Its words at the end of the sentence on a certificate of another host, before the names that the certificate has.
const ONLY_FOR: &str = "; certificate is only valid for ";

/// The failure that the TLS library describes by `text`; `None` where the text is good enough, or not one of the library.
pub(super) fn tls_reason(text: &str) -> Option<String> {
    if text.contains("without sending TLS close_notify") {
        return Some("the server closed it within a response".into());
    }
    if let Some(alert) = text.strip_prefix(ALERT_PREFIX) {
        return Some(match alert {
            "ProtocolVersion" | "InsufficientSecurity" => {
                format!(
                    "the server has no version of TLS or cipher in common with bdnfs, which has TLS 1.2 and 1.3 ({alert})"
                )
            }
            _ => format!("the server refuses the TLS connection ({alert})"),
        });
    }
    let certificate = text.strip_prefix(CERTIFICATE_PREFIX)?;
    let is = |name: &str, words: &str| certificate == name || certificate.starts_with(words);
    if is("Expired", "certificate expired") {
        Some("the server's certificate has expired, or this machine's clock is wrong".into())
    } else if is("NotValidYet", "certificate not valid yet") {
        Some("the server's certificate is not valid yet, or this machine's clock is wrong".into())
    } else if is("BadEncoding", "BadEncoding") {
        Some("the server's certificate is malformed".into())
    } else {
        let (wrong, names) = certificate.split_once(ONLY_FOR)?;
        let names = ["DnsName(", "IpAddress(", "\"", ")"]
            .iter()
            .fold(names.to_owned(), |text, part| text.replace(part, ""));
        Some(format!("{wrong}; it is for {names}"))
    }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::{ServerName, UnixTime};
    use rustls::{AlertDescription, CertificateError, Error};

    use super::*;

    #[test]
    fn tls_failure_is_told_without_the_librarys_words() {
        let host = ServerName::try_from("models.example").expect("a name");
        let at = |seconds| UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds));
        for (error, said) in [
            (CertificateError::Expired.into(), "has expired"),
            (CertificateError::ExpiredContext { time: at(9), not_after: at(3) }.into(), "has expired"),
            (CertificateError::NotValidYet.into(), "is not valid yet"),
            (
                CertificateError::NotValidYetContext { time: at(3), not_before: at(9) }.into(),
                "is not valid yet",
            ),
            (CertificateError::BadEncoding.into(), "is malformed"),
            (
                CertificateError::NotValidForNameContext {
                    expected: host,
                    presented: vec!["DnsName(\"a.example\")".into(), "DnsName(\"b.example\")".into()],
                }
                .into(),
                "certificate not valid for name \"models.example\"; it is for a.example or b.example",
            ),
            (
                Error::AlertReceived(AlertDescription::ProtocolVersion),
                "no version of TLS or cipher in common",
            ),
            (
                Error::AlertReceived(AlertDescription::AccessDenied),
                "refuses the TLS connection (AccessDenied)",
            ),
        ] {
            let text = error.to_string();
            let reason = tls_reason(&text).unwrap_or_else(|| panic!("{text}"));
            assert!(reason.contains(said) && !reason.contains("DnsName"), "{text}: {reason}");
        }
        assert_eq!(tls_reason("Connection refused (os error 111)"), None);
    }
}
