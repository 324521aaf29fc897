//! Roles: keys from a token service, renewed before they expire.

use std::fs;
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::{Duration, SystemTime};

use bdnfs_tests::MIB;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::process::eventually;
use bdnfs_tests::s3::Keys;
use bdnfs_tests::sts::StsServer;
use bdnfs_tests::tree::assert_same;

use super::{GuardedBucket, TOKEN};

#[test]
fn role_with_web_identity_renews_keys_once() {
    let guarded = GuardedBucket::new();
    let bytes = guarded.put("w", 40 * MIB);
    let sts = StsServer::start(&guarded.s3, Keys::sample(), TOKEN);
    let token = guarded.machine.directory("identity").join("token");
    fs::write(&token, format!("{TOKEN}\n")).unwrap();
    let machine = Machine::new()
        .env("AWS_ENDPOINT_URL", guarded.s3.server.url())
        .env("AWS_ENDPOINT_URL_STS", sts.url())
        .env("AWS_WEB_IDENTITY_TOKEN_FILE", &token);
    // Only who signs with a key of the token service is let in.
    guarded.s3.allowed_keys().revoke_all();
    sts.set_lifetime(Duration::from_secs(2));
    let oidc = ["--auth", "AWS_OIDC", "--role", "arn:aws:iam::1:role/r"];
    let point = machine.mount_with("s3://bucket", "mnt", &oidc);
    let mounted = SystemTime::now();
    sts.set_lifetime(Duration::from_secs(3600));
    let given = sts.issued_keys();
    eventually("the key's end", || SystemTime::now() > mounted + Duration::from_secs(2));
    let readers: Vec<_> = (0..8)
        .map(|part| {
            let (path, at) = (point.join("w"), part * 5 * MIB);
            thread::spawn(move || {
                let mut page = vec![0; 4096];
                fs::File::open(path).unwrap().read_exact_at(&mut page, at as u64).unwrap();
                (at, page)
            })
        })
        .collect();
    for reader in readers {
        let (at, page) = reader.join().unwrap();
        assert_same(&bytes[at..at + 4096], &page, "what was read after the key's end");
    }
    assert_eq!(sts.issued_keys(), given + 1, "one key for all who read at once");
    machine.umount(&point);

    // The machine's own chain ends the same way.
    let chain = machine.env("AWS_ROLE_ARN", "arn:aws:iam::1:role/r");
    assert!(chain.run(&["ls", "s3://bucket"]).succeeds().contains(" w\n"));
    sts.set_token("another");
    let line = chain.run(&[&["ls", "s3://bucket"][..], &oidc].concat()).fails(&[]);
    let said = format!(
        "bdnfs: s3://bucket: cannot assume the role arn:aws:iam::1:role/r at {}: the server returned 400 Bad Request, \
         ExpiredTokenException; check the web identity token in {}",
        sts.url(),
        token.display()
    );
    assert_eq!(line, said);
}

#[test]
fn role_with_static_key_or_profile_lists() {
    let guarded = GuardedBucket::new();
    guarded.put("w", 1000);
    let sts = StsServer::start(&guarded.s3, Keys::sample(), TOKEN);
    guarded.s3.allowed_keys().revoke_all();
    let (s3, sts_url) = (guarded.s3.server.url(), sts.url());
    let machine = || Machine::new().env("AWS_ENDPOINT_URL", &s3).env("AWS_ENDPOINT_URL_STS", &sts_url);
    let assume = ["ls", "s3://bucket", "--auth", "AWS_ASSUME_ROLE", "--role", "arn:aws:iam::1:role/r"];
    let Keys { access, secret, .. } = Keys::sample();
    let keyed = machine().env("AWS_ACCESS_KEY_ID", &access).env("AWS_SECRET_ACCESS_KEY", &secret);
    assert!(keyed.run(&assume).succeeds().contains(" w\n"));
    let line = keyed.run(&["ls", "s3://bucket"]).fails(&["InvalidAccessKeyId"]);
    assert!(!line.contains(&secret), "{line}");

    // With profiles, as AWS's tools keep them.
    let machine = machine();
    let aws = machine.directory(".aws");
    let keys = format!("[base]\naws_access_key_id = {access}\naws_secret_access_key = {secret}\n");
    fs::write(aws.join("credentials"), &keys).unwrap();
    let config = "[default]\nrole_arn = arn:aws:iam::1:role/r\nsource_profile = base\nregion = eu-west-1\n";
    fs::write(aws.join("config"), config).unwrap();
    assert!(machine.run(&["ls", "s3://bucket"]).succeeds().contains(" w\n"));
    let machine = machine.env("AWS_PROFILE", "none");
    machine.run(&["ls", "s3://bucket"]).fails(&["no such AWS profile: \"none\" (AWS_PROFILE)"]);
}
