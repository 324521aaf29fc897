//! Tokens and passwords that are sent in a request's `Authorization`.

use super::Credentials;
use super::secret_json::{CredentialFormat, SecretJson};
use crate::error::Result;
use crate::source::secret::Secret;

const HUB_FORMAT: CredentialFormat =
    CredentialFormat { name: "the Hugging Face credentials", expected: "a token alone: hf_.." };
const WEB_FORMAT: CredentialFormat = CredentialFormat {
    name: "the https credentials",
    expected: r#"a bearer token, user:password, {"token": ..}, or {"username": .., "password": ..}"#,
};

/// Reads a token of the Hugging Face Hub.
pub(super) fn hub(text: &str) -> Result<Secret> {
    if text.starts_with('{') {
        return Err(HUB_FORMAT.invalid("are JSON"));
    }
    bearer(text, HUB_FORMAT)
}

/// Reads the credentials of a web server. Neither a bearer token (RFC 6750, 2.1) nor a user name (RFC 7617, 2) contains a
/// colon, so the first one separates a user name from a password.
pub(super) fn web(text: &str) -> Result<Credentials> {
    if text.starts_with('{') {
        return object(&SecretJson::parse(text, WEB_FORMAT)?);
    }
    match text.split_once(':') {
        Some((username, password)) => basic(username, password),
        None => bearer(text, WEB_FORMAT).map(Credentials::Bearer),
    }
}

fn object(object: &SecretJson) -> Result<Credentials> {
    match (object.optional(&["token"])?, object.optional(&["username"])?) {
        (Some(token), None) => bearer(&token, WEB_FORMAT).map(Credentials::Bearer),
        (None, Some(username)) => basic(&username, &object.required(&["password"])?),
        (None, None) => Err(WEB_FORMAT.invalid("have neither \"token\" nor \"username\"")),
        _ => Err(WEB_FORMAT.invalid("have both \"token\" and \"username\"")),
    }
}

fn basic(username: &str, password: &str) -> Result<Credentials> {
    if username.contains(':') {
        return Err(
            WEB_FORMAT.invalid("have a user name with a colon, which basic authentication cannot send")
        );
    }
    if format!("{username}{password}").contains(char::is_control) {
        return Err(WEB_FORMAT.invalid("contain a control character"));
    }
    Ok(Credentials::Basic { username: Secret::new(username), password: Secret::new(password) })
}

fn bearer(text: &str, form: CredentialFormat) -> Result<Secret> {
    if text.is_empty() {
        return Err(form.invalid("are empty"));
    }
    if !text.chars().all(|c| c.is_ascii_graphic()) {
        return Err(form.invalid(
            "contain characters other than letters, digits and signs, perhaps a space or a second line",
        ));
    }
    Ok(Secret::new(text))
}
