//! Credentials by name, of roles, rotated and expired; and that they are never shown.

mod agent_credentials;
mod leaks;
mod named_secrets;
mod roles;
mod rotation;

use std::fs;

use bdnfs_tests::machine::Machine;
use bdnfs_tests::s3::{Keys, S3Server};
use bdnfs_tests::tree::write_file;
use tempfile::TempDir;

/// Nothing else has this, so a test can look for it where no secret may be.
pub const TOKEN: &str = "plantedTokenThatNobodyMaySee";

/// A bucket that wants a key, and a machine that has none.
pub struct GuardedBucket {
    pub machine: Machine,
    pub s3: S3Server,
    pub root: TempDir,
}

impl GuardedBucket {
    pub fn new() -> Self {
        let root = TempDir::with_prefix("bdnfs-s3-").unwrap();
        fs::create_dir(root.path().join("bucket")).unwrap();
        let s3 = S3Server::start(root.path(), Some(Keys::sample()));
        let machine = Machine::new().env("AWS_ENDPOINT_URL", s3.server.url());
        Self { machine, s3, root }
    }

    pub fn put(&self, key: &str, len: usize) -> Vec<u8> {
        write_file(&self.root.path().join("bucket"), key, len)
    }
}

/// The secret of `keys`, which leads to a server.
pub fn json(keys: &Keys, endpoint: &str) -> String {
    let Keys { access, secret, token } = keys;
    let token = token.as_ref().map_or(String::new(), |t| format!(", \"aws_session_token\": \"{t}\""));
    format!(
        "{{\"aws_access_key_id\": \"{access}\", \"aws_secret_access_key\": \"{secret}\", \"aws_region\": \"us-east-1\", \
         \"aws_endpoint\": \"{endpoint}\"{token}}}"
    )
}
