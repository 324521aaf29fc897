//! Google Cloud: keys of service accounts, and workload identity federation.

use super::object::{Form, Object};
use crate::error::Result;
use crate::source::secret::Secret;

/// What Google Cloud Storage lets in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gcp {
    /// The key of a service account, as the JSON that Google gives out. Its fields have been checked.
    Key(Secret),
    /// A service account that is taken on by an identity of this machine; Google's STS has to be asked.
    Workload {
        /// The service account's address.
        service_account: String,
        /// The full resource name of the workload identity provider.
        provider: String,
    },
}

const KEY: Form = Form {
    name: "the Google credentials",
    form: r#"the key of a service account: {"type": "service_account", "client_email": .., "private_key": .., ..}"#,
};

pub(super) fn read(text: &str) -> Result<Gcp> {
    let object = Object::parse(text, KEY)?;
    if object.required(&["type"])? != "service_account" {
        return Err(KEY.wrong("have another \"type\" than \"service_account\""));
    }
    object.required(&["client_email"])?;
    if !object.required(&["private_key"])?.starts_with("-----BEGIN") {
        return Err(KEY.wrong("are wrong: \"private_key\" is no PEM (it begins with -----BEGIN)"));
    }
    Ok(Gcp::Key(Secret::new(text)))
}
