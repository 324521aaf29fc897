//! Mirrors in buckets that everybody may read.

use std::fs;

use axum::http::Method;
use bdnfs_tests::MIB;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::s3::{Keys, S3Server};
use bdnfs_tests::tree::{assert_same_tree, write_file};
use serde_json::json;
use tempfile::TempDir;

/// A bucket that wants the sample's keys, and on another server its mirror, which everybody may read and only its owner write.
struct PublicMirror {
    root: TempDir,
    origin: S3Server,
    mirror: S3Server,
}

impl PublicMirror {
    fn publish() -> Self {
        let root = TempDir::with_prefix("bdnfs-s3-").unwrap();
        write_file(root.path(), "bucket/weights", 3 * MIB + 9);
        write_file(root.path(), "bucket/config.json", 700);
        fs::create_dir(root.path().join("mirror")).unwrap();
        let owner = Keys { access: "AKIAOWNEROFTHEMIRROR".into(), ..Keys::sample() };
        let origin = S3Server::start(root.path(), Some(Keys::sample()));
        let mirror = S3Server::start(root.path(), Some(owner.clone()));
        let secret = json!({
            "aws_access_key_id": owner.access, "aws_secret_access_key": owner.secret, "aws_region": "us-east-1",
        });
        let public = Self { root, origin, mirror };
        let publisher = public.reader().env("BDNFS_SECRET_OWNER", secret.to_string());
        let add = ["mirror", "add", "s3://bucket", "--mirror-secret", "owner"];
        publisher.run(&[&add[..], &public.options()[..4]].concat()).succeeds();
        public.mirror.allow_anonymous_reads("mirror");
        public.origin.requests.clear();
        public
    }

    /// A machine with the keys of the bucket, which the mirror's server does not know.
    fn reader(&self) -> Machine {
        Machine::new().s3(&self.origin.server.url(), &Keys::sample())
    }

    /// The options of commands that read the mirror; without the last: signed.
    fn options(&self) -> [&str; 5] {
        let url = self.mirror.server.url().leak();
        ["--mirror", "s3://mirror", "--mirror-endpoint", url, "--mirror-anonymous"]
    }

    fn assert_mounts(&self, machine: &Machine, options: &[&str]) {
        let point = machine.mount_with("s3://bucket", "mnt", &[&["--wait"], options].concat());
        assert_same_tree(&self.root.path().join("bucket"), &point);
        assert_eq!(self.origin.requests.of(Method::GET, |_| true).requests, 0, "the origin was asked");
    }
}

#[test]
fn mirror_that_everybody_may_read_is_mounted_without_keys_with_mirror_anonymous() {
    let public = PublicMirror::publish();
    let (machine, options) = (public.reader(), public.options());
    let signed = &options[..4];
    let point = machine.directory("signed");
    machine.try_mount("s3://bucket", &point, signed).fails(&["s3://mirror", "403 Forbidden"]);
    public.assert_mounts(&machine, &options);
    for command in [&["ls"][..], &["show", "s3://bucket"], &["verify", "--deep"]] {
        machine.run(&[&["mirror"], command, &options].concat()).succeeds();
    }
    let added = machine.run(&[&["mirror", "add", "s3://bucket"], &options[..]].concat());
    added.fails(&["s3://mirror", "403 Forbidden", "no credentials were sent"]);
}

#[test]
fn agent_with_an_anonymous_mirror_mounts_from_it_without_keys() {
    let public = PublicMirror::publish();
    let machine = public.reader();
    let mirror = format!("[mirror]\nurl = \"s3://mirror\"\nendpoint = \"{}\"\n", public.mirror.server.url());
    let agent = machine.agent(&format!("{mirror}anonymous = true\n"));
    public.assert_mounts(&machine, &[]);
    agent.stop();
}
