//! Tokens and passwords that go into a request's `Authorization`.

use super::Credentials;
use super::object::{Form, Object};
use crate::error::Result;
use crate::source::secret::Secret;

const HUB: Form = Form { name: "the Hugging Face credentials", form: "a token alone: hf_.." };
const WEB: Form = Form {
    name: "the https credentials",
    form: r#"a bearer token, user:password, {"token": ..}, or {"username": .., "password": ..}"#,
};

/// Reads a token of the Hugging Face Hub.
pub(super) fn hub(text: &str) -> Result<Secret> {
    if text.starts_with('{') {
        return Err(HUB.wrong("are JSON"));
    }
    bearer(text, HUB)
}

/// Reads what a web server lets in. A bearer token never holds a colon (RFC 6750, 2.1), a password's user never one
/// either (RFC 7617, 2), so the first colon tells the two apart.
pub(super) fn web(text: &str) -> Result<Credentials> {
    if text.starts_with('{') {
        return object(&Object::parse(text, WEB)?);
    }
    match text.split_once(':') {
        Some((username, password)) => basic(username, password),
        None => bearer(text, WEB).map(Credentials::Bearer),
    }
}

fn object(object: &Object) -> Result<Credentials> {
    match (object.optional(&["token"])?, object.optional(&["username"])?) {
        (Some(token), None) => bearer(&token, WEB).map(Credentials::Bearer),
        (None, Some(username)) => basic(&username, &object.required(&["password"])?),
        (None, None) => Err(WEB.wrong("have neither \"token\" nor \"username\"")),
        _ => Err(WEB.wrong("have both \"token\" and \"username\"")),
    }
}

fn basic(username: &str, password: &str) -> Result<Credentials> {
    if username.contains(':') {
        return Err(WEB.wrong("have a user name with a colon, which basic authentication cannot send"));
    }
    if format!("{username}{password}").contains(char::is_control) {
        return Err(WEB.wrong("hold a control character"));
    }
    Ok(Credentials::Basic { username: Secret::new(username), password: Secret::new(password) })
}

fn bearer(text: &str, form: Form) -> Result<Secret> {
    if text.is_empty() {
        return Err(form.wrong("are empty"));
    }
    if !text.chars().all(|c| c.is_ascii_graphic()) {
        return Err(form
            .wrong("hold something else than letters, digits and signs, perhaps a space or a second line"));
    }
    Ok(Secret::new(text))
}
