//! A bucket behind an S3 server, and a machine that may read it.

use std::path::PathBuf;

use tempfile::TempDir;

use crate::machine::Machine;
use crate::proxy::TcpProxy;
use crate::requests::RequestCount;
use crate::s3::{Keys, S3Server};
use crate::tree;

/// An S3 server with one bucket, called `bucket`, a proxy before it, and a machine that may read it.
#[derive(Debug)]
pub struct TestEnv {
    // First, so that it goes first: what is mounted ends before what it reads from.
    /// The machine; its environment has the keys and leads to the server.
    pub machine: Machine,
    /// The proxy between the machine and the server; without a fault at first.
    pub proxy: TcpProxy,
    /// The server.
    pub s3: S3Server,
    root: TempDir,
}

impl TestEnv {
    /// An environment whose bucket is empty.
    pub fn new() -> Self {
        let root = TempDir::with_prefix("bdnfs-s3-").expect("a temporary directory");
        std::fs::create_dir(root.path().join("bucket")).expect("a bucket");
        let s3 = S3Server::start(root.path(), Some(Keys::sample()));
        let proxy = TcpProxy::start(s3.server.address());
        let machine = Machine::new().s3(&proxy.url(), &Keys::sample());
        Self { machine, proxy, s3, root }
    }

    /// An environment whose bucket has one file of `len` bytes, mounted, nothing of it local; with its bytes and its path.
    pub fn mount_cold(len: usize) -> (Self, Vec<u8>, PathBuf) {
        let env = Self::new();
        let bytes = env.put("weights.bin", len);
        let point = env.machine.mount("s3://bucket", "mnt");
        (env, bytes, point.join("weights.bin"))
    }

    /// Another machine that may read it, and write it.
    pub fn second_machine(&self) -> Machine {
        Machine::new().s3(&self.proxy.url(), &Keys::sample())
    }

    /// The directory with the bucket's objects.
    pub fn bucket(&self) -> PathBuf {
        self.root.path().join("bucket")
    }

    /// Copies the bucket into a mirror, `s3://mirror`.
    ///
    /// # Panics
    /// When that fails.
    pub fn mirror(&self) {
        let mirror = self.root.path().join("mirror");
        std::fs::create_dir_all(mirror).expect("a bucket");
        self.machine.run(&["mirror", "add", "s3://bucket", "--mirror", "s3://mirror"]).succeeds();
    }

    /// The requests for the mirror's blobs.
    pub fn mirrored(&self) -> RequestCount {
        let is_blob = |path: &str| path.starts_with("/mirror/") && path.contains("/blobs/");
        self.s3.requests.of(axum::http::Method::GET, is_blob)
    }

    /// Puts an object of `len` bytes that its key determines, and returns the bytes.
    pub fn put(&self, key: &str, len: usize) -> Vec<u8> {
        tree::write_file(&self.bucket(), key, len)
    }

    /// The requests for objects whose keys end in `suffix`; listings don't count.
    pub fn fetched(&self, suffix: &str) -> RequestCount {
        self.s3
            .requests
            .of(axum::http::Method::GET, |path| path.starts_with("/bucket/") && path.ends_with(suffix))
    }
}

impl Default for TestEnv {
    fn default() -> Self {
        Self::new()
    }
}

/// A machine, and a directory of it with a tree, to be mounted.
pub fn machine_with_tree() -> (Machine, PathBuf) {
    let machine = Machine::new();
    let source = machine.directory("source");
    tree::write_tree(&source);
    (machine, source)
}
