//! Sources: what a user names - where it lives ([`Uri`]), which of its files are wanted ([`Patterns`]), and what its
//! origin is opened with ([`Access`], [`Credentials`]); and the [`weights`] of a configuration, which name several.

mod access;
mod auth;
mod cloud;
mod credentials;
mod endpoint;
mod fields;
mod finding;
mod form;
mod glob;
mod hub;
mod identity;
mod patterns;
mod secret;
mod service;
pub mod tenant;
mod uri;
pub mod weights;

pub use access::{Access, HubAccess, S3Access};
pub use auth::Auth;
pub use cloud::{AwsMachine, AwsProfile, AzureAccess, GcsAccess};
pub use credentials::{AwsRole, Azure, Credentials, External, Gcp, Provider, Subject};
pub(crate) use endpoint::{endpoint, loopback};
pub use finding::{Finding, Findings, Place, Verdict};
pub use hub::HubKind;
pub use patterns::Patterns;
pub(crate) use patterns::Selection;
pub use secret::{Secret, SecretStore};
pub(crate) use service::Service;
pub use uri::Uri;
