//! Sources: what a user names - where it lives ([`Uri`]), which of its files are wanted ([`Patterns`]), and what its
//! origin is opened with ([`Access`], [`Credentials`]). The [`weights`](crate::weights) of a configuration name several.
//!
//! All of this is what a configuration says. [`crate::auth`] loads secrets and gets keys by it.

mod access;
mod access_option;
mod access_point;
pub(crate) mod auth_method;
mod bucket_service;
mod cloud_access;
mod credentials;
mod diagnostic;
mod endpoint;
pub(crate) mod fields;
mod file_uri;
mod glob;
mod hub_uri;
mod identity;
mod patterns;
mod secret;
pub mod tenant;
mod tree_layout;
mod uri;
mod uri_format;

pub use access::{Access, HubAccess, S3Access};
pub use access_option::AccessOption;
pub use auth_method::AuthMethod;
pub(crate) use bucket_service::{BucketService, not_object_storage};
pub use cloud_access::{AwsAmbient, AwsProfile, AzureAccess, GcsAccess};
pub use credentials::{
    AwsRole, AzureCredentials, CredentialLoader, Credentials, ExternalAccount, GoogleCredentials,
    RoleIdentity, SubjectToken,
};
pub use diagnostic::{Diagnostic, Diagnostics, DocumentPath, Severity};
pub(crate) use endpoint::{endpoint, loopback};
pub use hub_uri::HubKind;
pub(crate) use identity::{HUB_DEFAULT_REVISION, tree_identity};
pub use patterns::Patterns;
pub(crate) use patterns::Selection;
pub use secret::{Secret, SecretJsonError, SecretStore, SharedSecrets};
pub use tree_layout::TreeLayout;
pub use uri::Uri;
