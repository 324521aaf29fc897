//! Google Cloud: keys of service accounts, users' credentials, and workload identity federation.

use std::path::PathBuf;

use super::secret_json::{CredentialFormat, SecretJson};
use crate::error::Result;
use crate::source::secret::Secret;

/// The credentials of Google Cloud Storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GoogleCredentials {
    /// The key of a service account, as the JSON that Google gives out. Its fields have been checked.
    Key(Secret),
    /// A user who signed in with `gcloud auth application-default login`; Google has to be asked for a token.
    User {
        /// The id of the program that the user signed in with.
        client_id: String,
        /// The program's secret.
        client_secret: Secret,
        /// The refresh token, for which Google gives an access token.
        refresh_token: Secret,
    },
    /// An identity of this machine that Google's STS takes for one of its own (`external_account`).
    External(ExternalAccount),
    /// A service account that is impersonated with an identity of this machine; Google's STS has to be asked.
    Workload {
        /// The service account's address.
        service_account: String,
        /// The full resource name of the workload identity provider.
        provider: String,
    },
    /// An identity that Google's STS gives for a token that came with a request, and nothing of this machine.
    GivenToken {
        /// The token.
        token: Secret,
        /// The full resource name of the workload identity provider.
        provider: String,
        /// The address of the service account to impersonate, if one is.
        service_account: Option<String>,
        /// The URL of another STS than Google's.
        sts: Option<String>,
        /// The URL of another service for tokens of service accounts than Google's.
        iam: Option<String>,
    },
}

/// A configuration of workload identity federation (<https://google.aip.dev/auth/4117>).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalAccount {
    /// The full name of the workload identity provider, for which the machine's token is meant.
    pub audience: String,
    /// The type of the machine's token, `urn:ietf:params:oauth:token-type:jwt`.
    pub token_type: String,
    /// Google's STS.
    pub token_url: String,
    /// The URL that issues a token of a service account, where one is to be impersonated.
    pub impersonation: Option<String>,
    /// The token that is exchanged.
    pub subject: SubjectToken,
    /// The key that the token is under, where it comes as JSON.
    pub field: Option<String>,
}

/// The token that is exchanged for one of the cloud's: the machine's own, or one that was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubjectToken {
    /// This one, which came with a request.
    Given(Secret),
    /// In a file, which is read anew each time.
    File(PathBuf),
    /// At a URL near this machine, which is asked with these headers.
    Url {
        /// The URL.
        url: String,
        /// The headers. Their values may be secret.
        headers: Vec<(String, Secret)>,
    },
}

const GOOGLE_FORMAT: CredentialFormat = CredentialFormat {
    name: "the Google credentials",
    expected: r#"the key of a service account: {"type": "service_account", "client_email": .., "private_key": .., ..}"#,
};

pub(super) fn read(text: &str) -> Result<GoogleCredentials> {
    let object = SecretJson::parse(text, GOOGLE_FORMAT)?;
    match object.required(&["type"])?.as_str() {
        "service_account" => key(&object, text),
        "authorized_user" => Ok(GoogleCredentials::User {
            client_id: object.required(&["client_id"])?,
            client_secret: Secret::new(object.required(&["client_secret"])?),
            refresh_token: Secret::new(object.required(&["refresh_token"])?),
        }),
        "external_account" => external(&object).map(GoogleCredentials::External),
        _ => Err(GOOGLE_FORMAT.invalid(
            "have another \"type\" than \"service_account\", \"authorized_user\" and \"external_account\"",
        )),
    }
}

fn key(object: &SecretJson, text: &str) -> Result<GoogleCredentials> {
    object.required(&["client_email"])?;
    if !object.required(&["private_key"])?.starts_with("-----BEGIN") {
        return Err(
            GOOGLE_FORMAT.invalid("are wrong: \"private_key\" is not PEM (it begins with -----BEGIN)")
        );
    }
    Ok(GoogleCredentials::Key(Secret::new(text)))
}

fn external(object: &SecretJson) -> Result<ExternalAccount> {
    let place = object.within("credential_source")?;
    let place = place.ok_or_else(|| GOOGLE_FORMAT.invalid("lack \"credential_source\""))?;
    let file = place.optional(&["file"])?.map(|file| SubjectToken::File(file.into()));
    let subject = match (file, place.optional(&["url"])?) {
        (Some(file), _) => file,
        (None, Some(url)) if !place.has("environment_id") => {
            let headers = place.within("headers")?.map(|headers| headers.strings()).transpose()?;
            let headers = headers.into_iter().flatten().map(|(name, value)| (name, Secret::new(value)));
            SubjectToken::Url { url, headers: headers.collect() }
        }
        _ => {
            let how = "have a \"credential_source\" that is not supported: it must have a \"file\" or a \"url\" with the \
                       machine's token";
            return Err(GOOGLE_FORMAT.invalid(how));
        }
    };
    let format = place.within("format")?;
    let json = match &format {
        Some(format) => format.optional(&["type"])?.is_some_and(|kind| kind == "json"),
        None => false,
    };
    let field = format.filter(|_| json).map(|format| format.required(&["subject_token_field_name"]));
    Ok(ExternalAccount {
        audience: object.required(&["audience"])?,
        token_type: object.required(&["subject_token_type"])?,
        token_url: object.required(&["token_url"])?,
        impersonation: object.optional(&["service_account_impersonation_url"])?,
        subject,
        field: field.transpose()?,
    })
}
