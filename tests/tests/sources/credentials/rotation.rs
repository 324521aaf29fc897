//! Secrets that change or expire while they are in use.

use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bdnfs_tests::MIB;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::process::eventually;
use bdnfs_tests::s3::Keys;
use bdnfs_tests::tools::{program, run};
use bdnfs_tests::tree::{assert_same, write_file};
use bdnfs_tests::web::WebServer;
use tempfile::TempDir;

use super::{GuardedBucket, TOKEN, json};

/// A directory of secrets as Kubernetes mounts it: all of it is replaced at once.
struct SecretVolume(PathBuf);

impl SecretVolume {
    fn replace(&self, version: &str, name: &str, secret: &str) {
        let at = |name: &str| self.0.join(name);
        fs::create_dir(at(version)).unwrap();
        fs::write(at(version).join(name), secret).unwrap();
        let _ = symlink(format!("..data/{name}"), at(name));
        symlink(version, at("..new")).unwrap();
        fs::rename(at("..new"), at("..data")).unwrap();
    }
}

#[test]
fn secret_rotated_in_mid_read_is_read_again() {
    let guarded = GuardedBucket::new();
    let bytes = guarded.put("w", 40 * MIB);
    let secrets = SecretVolume(guarded.machine.directory("secrets"));
    let url = guarded.s3.server.url();
    secrets.replace("..1", "aws", &json(&Keys::sample(), &url));
    let path = secrets.0.display().to_string();
    let point = guarded.machine.mount_with("s3://bucket", "mnt", &["--secrets", &path, "--secret", "aws"]);
    let reader = fs::File::open(point.join("w")).unwrap();
    let mut page = vec![0; 4096];
    reader.read_exact_at(&mut page, 0).unwrap();

    let new = Keys { access: "AKIANEW".into(), secret: "other+secret".into(), token: None };
    guarded.s3.allowed_keys().revoke_all();
    guarded.s3.allowed_keys().allow(new.clone(), None);
    let refused = reader.read_exact_at(&mut page, 36 * MIB as u64).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EACCES), "{refused}");
    secrets.replace("..2", "aws", &json(&new, &url));
    reader.read_exact_at(&mut page, 30 * MIB as u64).unwrap();
    assert_same(&bytes[30 * MIB..30 * MIB + 4096], &page, "what was read with the new key");
    assert_same(&bytes, &fs::read(point.join("w")).unwrap(), "all of it");
}

/// A token that says itself until when it is good.
fn jwt(end: SystemTime) -> String {
    let claims = format!("{{\"exp\": {}}}", end.duration_since(UNIX_EPOCH).unwrap().as_secs());
    let mut base64 = program("base64");
    let file = TempDir::new().unwrap();
    fs::write(file.path().join("claims"), claims).unwrap();
    let text = run(base64.arg("-w0").arg(file.path().join("claims")));
    format!("e30.{}.{TOKEN}", text.trim().trim_end_matches('=').replace('+', "-").replace('/', "_"))
}

fn after(seconds: u64) -> SystemTime {
    // Whole seconds, as tokens have them.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    UNIX_EPOCH + Duration::from_secs(now + seconds)
}

#[test]
fn token_expired_is_renewed_or_named() {
    let root = TempDir::new().unwrap();
    let bytes = write_file(root.path(), "w", 40 * MIB);
    let web = WebServer::start(root.path());
    let machine = Machine::new();
    let secrets = SecretVolume(machine.directory("secrets"));
    let end = after(2);
    let first = jwt(end);
    web.accept_only(&[(&format!("Bearer {first}"), None)]);
    secrets.replace("..1", "web", &first);
    let path = secrets.0.display().to_string();
    let options = ["--secrets", &path, "--secret", "web"];
    let point = machine.mount_with(web.url("w"), "mnt", &options);
    let reader = fs::File::open(point.join("w")).unwrap();
    let mut page = vec![0; 4096];
    reader.read_exact_at(&mut page, 0).unwrap();

    eventually("the token's end", || SystemTime::now() > end);
    let second = jwt(after(3600));
    web.accept_only(&[(&format!("Bearer {first}"), Some(end)), (&format!("Bearer {second}"), None)]);
    let refused = reader.read_exact_at(&mut page, 36 * MIB as u64).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EACCES), "{refused}");
    let line = machine.run(&[&["ls", &web.url("w")][..], &options].concat()).fails(&[]);
    let text = run(program("date").arg("-u").arg("-d").arg(seconds(end)).arg("+%Y-%m-%dT%H:%M:%SZ"));
    let said = format!(
        "bdnfs: {}: the server returned 401 Unauthorized; the secret \"web\" expired at {}; renew it",
        web.url("w"),
        text.trim()
    );
    assert_eq!(line, said);

    secrets.replace("..2", "web", &second);
    reader.read_exact_at(&mut page, 30 * MIB as u64).unwrap();
    assert_same(&bytes[30 * MIB..30 * MIB + 4096], &page, "what was read with the new token");
    assert_same(&bytes, &fs::read(point.join("w")).unwrap(), "all of it");
}

fn seconds(time: SystemTime) -> String {
    format!("@{}", time.duration_since(UNIX_EPOCH).unwrap().as_secs())
}
