//! The tokens of pods, which are exchanged for an identity of a cloud.
//!
//! The kubelet asks for tokens of the pod's service account, one for each audience that the CSIDriver names, and brings new ones
//! before they expire.

use std::collections::HashMap;

use bdnfs::source::Secret;
use serde_json::{Value, json};

/// The key of the tokens: among the secrets where the CSIDriver asks for that (1.35), else among the attributes.
pub const TOKENS_KEY: &str = "csi.storage.k8s.io/serviceAccount.tokens";

/// The tokens that the kubelet sends for a pod, not read yet.
pub struct PodTokens(Secret);

impl PodTokens {
    /// Takes them out of a request's attributes and secrets: the author's attributes and secrets are what is left.
    pub fn take(
        context: &mut HashMap<String, String>,
        secrets: &mut HashMap<String, String>,
    ) -> Option<Self> {
        let in_context = context.remove(TOKENS_KEY);
        secrets.remove(TOKENS_KEY).or(in_context).map(|text| Self(Secret::new(text)))
    }

    /// A secret as the kubelet sends it, with an empty token for `audience`, for volumes that have no pod yet.
    pub fn sample(audience: &str) -> (String, String) {
        (TOKENS_KEY.to_owned(), json!({audience: {"token": ""}}).to_string())
    }

    /// The token for the first of `audiences` that there is one for. Parse errors are dropped: their text may contain a token.
    pub fn find(&self, audiences: &[String]) -> Option<Secret> {
        let tokens: Value = serde_json::from_str(self.0.expose()).ok()?;
        let token = |audience: &String| tokens.get(audience)?.get("token")?.as_str().map(Secret::new);
        audiences.iter().find_map(token)
    }
}
