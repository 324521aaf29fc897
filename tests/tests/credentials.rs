//! Credentials by name, of roles, rotated and expired; and that nobody ever sees them.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bdnfs_tests::bdnfs::{Machine, eventually};
use bdnfs_tests::fault::Fault;
use bdnfs_tests::hub::{Guard, Hub};
use bdnfs_tests::s3::{Keys, S3};
use bdnfs_tests::sts::{MARK, Sts};
use bdnfs_tests::tools::{run, tool};
use bdnfs_tests::tree::{compare, content, file, same};
use bdnfs_tests::web::Web;
use tempfile::TempDir;

const MIB: usize = 1 << 20;
/// Nothing else has this, so a test can look for it where no secret may be.
const TOKEN: &str = "plantedTokenThatNobodyMaySee";

/// A bucket that wants a key, and a machine that has none.
struct Shut {
    machine: Machine,
    s3: S3,
    root: TempDir,
}

impl Shut {
    fn new() -> Self {
        let root = TempDir::with_prefix("bdnfs-s3-").unwrap();
        fs::create_dir(root.path().join("bucket")).unwrap();
        let s3 = S3::start(root.path(), Some(Keys::sample()));
        let machine = Machine::new().env("AWS_ENDPOINT_URL", s3.server.url());
        Self { machine, s3, root }
    }

    fn put(&self, key: &str, len: usize) -> Vec<u8> {
        file(&self.root.path().join("bucket"), key, len)
    }
}

/// The secret of `keys`, which leads to a server.
fn json(keys: &Keys, endpoint: &str) -> String {
    let Keys { access, secret, token } = keys;
    let token = token.as_ref().map_or(String::new(), |t| format!(", \"aws_session_token\": \"{t}\""));
    format!(
        "{{\"aws_access_key_id\": \"{access}\", \"aws_secret_access_key\": \"{secret}\", \"aws_region\": \"us-east-1\", \
         \"aws_endpoint\": \"{endpoint}\"{token}}}"
    )
}

/// Puts a secret into each kind of store in turn, and has `attempt` run with the options that lead there.
fn kept(machine: Machine, name: &str, secret: &str, mut attempt: impl FnMut(&Machine, &[&str])) -> Machine {
    let directory = machine.directory("secrets");
    fs::write(directory.join(name), secret).unwrap();
    let path = directory.display().to_string();
    attempt(&machine, &["--secrets", &path, "--secret", name]);
    let table = machine.directory("tables").join("secrets.toml");
    fs::write(&table, format!("{name:?} = '''{secret}'''")).unwrap();
    fs::set_permissions(&table, fs::Permissions::from_mode(0o600)).unwrap();
    let path = table.display().to_string();
    attempt(&machine, &["--secrets", &path, "--secret", name]);
    let variable = format!("BDNFS_SECRET_{}", name.to_uppercase().replace('-', "_"));
    let machine = machine.env(variable, secret);
    attempt(&machine, &["--secret", name]);
    machine
}

#[test]
fn a_secret_by_name_opens_what_speaks_s3() {
    let Shut { machine, s3, root } = Shut::new();
    file(&root.path().join("bucket"), "model/w", 3 * MIB);
    let secret = json(&Keys::sample(), &s3.server.url());
    let mut number = 0;
    let machine = kept(machine, "aws-key", &secret, |machine, options| {
        for uri in ["s3://bucket/model", "r2://acct.bucket/model", "cw://bucket/model"] {
            let options = [options, &["--bucket-style", "path"]].concat();
            let ls = machine.run(&[&["ls", uri][..], &options].concat()).succeeds();
            assert!(ls.contains("3145728") && ls.contains(" w\n"), "{ls}");
        }
        number += 1;
        let point = machine.mount_with("s3://bucket/model", &format!("mnt{number}"), options);
        compare(&root.path().join("bucket/model"), &point);
    });
    machine
        .run(&["ls", "s3://bucket", "--secret", "none"])
        .fails(&["there is no secret \"none\": not in the environment (BDNFS_SECRET_NONE)"]);
    machine.run(&["ls", "hf://o/r", "--secret", "aws-key"]).fails(&[
        "the secret \"aws-key\": the Hugging Face credentials are JSON; expected a token alone: hf_..",
    ]);
}

#[test]
fn a_key_in_a_file_needs_no_region_where_the_service_has_none() {
    let Shut { machine, s3, root } = Shut::new();
    file(&root.path().join("bucket"), "w", 1000);
    let Keys { access, secret, .. } = Keys::sample();
    let key = machine.directory("keys").join("key.json");
    let text = format!("{{\"access_key_id\": \"{access}\", \"secret_access_key\": \"{secret}\"}}");
    fs::write(&key, text).unwrap();
    for uri in ["r2://acct.bucket", "cw://bucket"] {
        let (url, key) = (s3.server.url(), key.display().to_string());
        let line = ["ls", uri, "--endpoint", &url, "--bucket-style", "path", "--credentials", &key];
        assert!(machine.run(&line).succeeds().contains("1000"));
    }
}

#[test]
fn a_secret_by_name_opens_the_hub() {
    let hub = Hub::start();
    hub.publish("models/o/r", "main", &[("x", b"weights")]);
    hub.guard("models/o/r", Guard::Private);
    hub.token(TOKEN, &["models/o/r"]);
    let machine = Machine::new().env("HF_ENDPOINT", hub.url()).env("HF_TOKEN", "hf_ofAnotherAccount");
    let machine = kept(machine, "hf_access_token", &format!("{TOKEN}\n"), |machine, options| {
        let ls = machine.run(&[&["ls", "hf://o/r"][..], options].concat()).succeeds();
        assert!(ls.contains(" x\n"), "{ls}");
    });
    hub.revoke(TOKEN);
    let line = machine.run(&["ls", "hf://o/r", "--secret", "hf_access_token"]).fails(&[]);
    let said = format!(
        "bdnfs: hf://models/o/r: the Hub does not accept the secret \"hf_access_token\": it is wrong, expired or revoked; \
         make one at {}/settings/tokens and put it into the secret \"hf_access_token\"",
        hub.url()
    );
    assert_eq!(line, said);
}

#[test]
fn a_secret_by_name_opens_a_web_server_and_stays_with_it() {
    let root = TempDir::new().unwrap();
    let bytes = file(root.path(), "w", 2 * MIB);
    let (web, other) = (Web::start(root.path()), Web::start(root.path()));
    let machine = Machine::new();
    for (secret, value) in [
        (TOKEN, format!("Bearer {TOKEN}")),
        // What `printf 'user:pass word' | base64` prints.
        ("user:pass word", "Basic dXNlcjpwYXNzIHdvcmQ=".to_owned()),
        (r#"{"username": "user", "password": "pass word"}"#, "Basic dXNlcjpwYXNzIHdvcmQ=".to_owned()),
    ] {
        web.admit(&[(&value, None)]);
        let fresh = kept(Machine::new(), "web", secret, |machine, options| {
            let ls = machine.run(&[&["ls", &web.url("w")][..], options].concat()).succeeds();
            assert!(ls.contains("2097152"), "{ls}");
        });
        let line = fresh.run(&["ls", &web.url("w")]).fails(&[]);
        let url = web.url("w");
        assert_eq!(line, format!("bdnfs: {url}: the server answers 401 Unauthorized; check the credentials"));
    }
    // Where it leads to, nobody is told who asks.
    let machine = machine.env("BDNFS_SECRET_WEB", TOKEN);
    web.admit(&[(&format!("Bearer {TOKEN}"), None)]);
    let point = machine.mount_with(web.url("w"), "mnt", &["--secret", "web"]);
    web.faults.set(Fault::Redirect(other.server.url()));
    // Both servers have the same file, as two hosts of one site would.
    same(&bytes, &fs::read(point.join("w")).unwrap(), "what came by the redirect");
    assert!(other.tally.got("w").requests > 0 && web.told() > 0);
    assert_eq!(other.told(), 0, "requests elsewhere that told who asks");
}

/// A directory of secrets as Kubernetes mounts it: all of it is replaced at once.
struct Mounted(PathBuf);

impl Mounted {
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
fn a_secret_that_is_rotated_in_mid_read_is_noticed() {
    let shut = Shut::new();
    let bytes = shut.put("w", 40 * MIB);
    let secrets = Mounted(shut.machine.directory("secrets"));
    let url = shut.s3.server.url();
    secrets.replace("..1", "aws", &json(&Keys::sample(), &url));
    let path = secrets.0.display().to_string();
    let point = shut.machine.mount_with("s3://bucket", "mnt", &["--secrets", &path, "--secret", "aws"]);
    let reader = fs::File::open(point.join("w")).unwrap();
    let mut page = vec![0; 4096];
    reader.read_exact_at(&mut page, 0).unwrap();

    let new = Keys { access: "AKIANEW".into(), secret: "other+secret".into(), token: None };
    shut.s3.door().close();
    shut.s3.door().admit(new.clone(), None);
    let refused = reader.read_exact_at(&mut page, 36 * MIB as u64).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EACCES), "{refused}");
    secrets.replace("..2", "aws", &json(&new, &url));
    reader.read_exact_at(&mut page, 30 * MIB as u64).unwrap();
    same(&bytes[30 * MIB..30 * MIB + 4096], &page, "what was read with the new key");
    same(&bytes, &fs::read(point.join("w")).unwrap(), "all of it");
}

/// A token that says itself until when it is good.
fn jwt(end: SystemTime) -> String {
    let claims = format!("{{\"exp\": {}}}", end.duration_since(UNIX_EPOCH).unwrap().as_secs());
    let mut base64 = tool("base64");
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
fn a_token_that_expires_after_two_seconds_is_renewed_or_named() {
    let root = TempDir::new().unwrap();
    let bytes = file(root.path(), "w", 40 * MIB);
    let web = Web::start(root.path());
    let machine = Machine::new();
    let secrets = Mounted(machine.directory("secrets"));
    let end = after(2);
    let first = jwt(end);
    web.admit(&[(&format!("Bearer {first}"), None)]);
    secrets.replace("..1", "web", &first);
    let path = secrets.0.display().to_string();
    let options = ["--secrets", &path, "--secret", "web"];
    let point = machine.mount_with(web.url("w"), "mnt", &options);
    let reader = fs::File::open(point.join("w")).unwrap();
    let mut page = vec![0; 4096];
    reader.read_exact_at(&mut page, 0).unwrap();

    eventually("the token's end", || SystemTime::now() > end);
    let second = jwt(after(3600));
    web.admit(&[(&format!("Bearer {first}"), Some(end)), (&format!("Bearer {second}"), None)]);
    let refused = reader.read_exact_at(&mut page, 36 * MIB as u64).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EACCES), "{refused}");
    let line = machine.run(&[&["ls", &web.url("w")][..], &options].concat()).fails(&[]);
    let text = run(tool("date").arg("-u").arg("-d").arg(seconds(end)).arg("+%Y-%m-%dT%H:%M:%SZ"));
    let said = format!(
        "bdnfs: {}: the server answers 401 Unauthorized; the secret \"web\" expired at {}; renew it",
        web.url("w"),
        text.trim()
    );
    assert_eq!(line, said);

    secrets.replace("..2", "web", &second);
    reader.read_exact_at(&mut page, 30 * MIB as u64).unwrap();
    same(&bytes[30 * MIB..30 * MIB + 4096], &page, "what was read with the new token");
    same(&bytes, &fs::read(point.join("w")).unwrap(), "all of it");
}

fn seconds(time: SystemTime) -> String {
    format!("@{}", time.duration_since(UNIX_EPOCH).unwrap().as_secs())
}

#[test]
fn a_role_is_taken_on_and_its_keys_are_renewed_before_they_expire() {
    let shut = Shut::new();
    let bytes = shut.put("w", 40 * MIB);
    let sts = Sts::start(&shut.s3, Keys::sample(), TOKEN);
    let token = shut.machine.directory("identity").join("token");
    fs::write(&token, format!("{TOKEN}\n")).unwrap();
    let machine = Machine::new()
        .env("AWS_ENDPOINT_URL", shut.s3.server.url())
        .env("AWS_ENDPOINT_URL_STS", sts.url())
        .env("AWS_WEB_IDENTITY_TOKEN_FILE", &token);
    // Only who signs with a key of the token service is let in.
    shut.s3.door().close();
    sts.lasts(Duration::from_secs(2));
    let oidc = ["--auth", "AWS_OIDC", "--role", "arn:aws:iam::1:role/r"];
    let point = machine.mount_with("s3://bucket", "mnt", &oidc);
    let mounted = SystemTime::now();
    sts.lasts(Duration::from_secs(3600));
    let given = sts.given();
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
        same(&bytes[at..at + 4096], &page, "what was read after the key's end");
    }
    assert_eq!(sts.given(), given + 1, "one key for all who read at once");
    machine.umount(&point);

    // The machine's own chain ends the same way.
    let chain = machine.env("AWS_ROLE_ARN", "arn:aws:iam::1:role/r");
    assert!(chain.run(&["ls", "s3://bucket"]).succeeds().contains(" w\n"));
    sts.expects("another");
    let line = chain.run(&[&["ls", "s3://bucket"][..], &oidc].concat()).fails(&[]);
    let said = format!(
        "bdnfs: s3://bucket: the role arn:aws:iam::1:role/r is not given by {}: the server answers 400 Bad Request, \
         ExpiredTokenException; check the web identity token in {}",
        sts.url(),
        token.display()
    );
    assert_eq!(line, said);
}

#[test]
fn a_role_is_taken_on_with_the_key_that_there_is() {
    let shut = Shut::new();
    shut.put("w", 1000);
    let sts = Sts::start(&shut.s3, Keys::sample(), TOKEN);
    shut.s3.door().close();
    let (s3, sts_url) = (shut.s3.server.url(), sts.url());
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
    machine.run(&["ls", "s3://bucket"]).fails(&["there is no AWS profile \"none\" (AWS_PROFILE)"]);
}

/// All processes that came of `pid`, itself included.
fn family(pid: i32) -> Vec<i32> {
    let mut all = vec![pid];
    let mut next = 0;
    while let Some(parent) = all.get(next).copied() {
        let tasks = fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
        for task in tasks {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            all.extend(children.split_whitespace().map(|pid| pid.parse::<i32>().unwrap()));
        }
        next += 1;
    }
    all
}

#[test]
fn no_secret_is_seen_anywhere() {
    let shut = Shut::new();
    shut.put("w", 3 * MIB);
    let sts = Sts::start(&shut.s3, Keys::sample(), TOKEN);
    let root = TempDir::new().unwrap();
    file(root.path(), "w", MIB);
    let web = Web::start(root.path());
    web.admit(&[(&format!("Bearer {TOKEN}"), None)]);
    let (s3, keys) = (shut.s3.server.url(), Keys::sample());
    let machine = Machine::new()
        .env("AWS_ENDPOINT_URL", &s3)
        .env("AWS_ENDPOINT_URL_STS", sts.url())
        .env("AWS_ACCESS_KEY_ID", &keys.access)
        .env("AWS_SECRET_ACCESS_KEY", &keys.secret)
        .env("BDNFS_SECRET_WEB", TOKEN)
        .env("BDNFS_SECRET_AWS", json(&keys, &s3));
    let mut said = Vec::new();
    for (uri, name, options) in [
        ("s3://bucket", "a", &["--secret", "aws", "--wait"][..]),
        ("s3://bucket", "b", &["--auth", "AWS_ASSUME_ROLE", "--role", "arn"]),
        ("s3://bucket", "c", &[]),
        (&web.url("w"), "d", &["--secret", "web"]),
    ] {
        let point = machine.directory(name);
        let ran = machine.try_mount(uri, &point, &[options, &["-vvv"]].concat());
        said.extend([ran.out.clone(), ran.err.clone()]);
        ran.succeeds();
        compare_names(&point);
    }
    let daemons: Vec<_> = machine.daemons().iter().map(|pid| pid.as_raw_nonzero().get()).collect();
    assert_eq!(daemons.len(), 1);
    let planted = [TOKEN, &keys.secret, MARK];
    let holds = |text: &[u8]| planted.iter().find(|secret| String::from_utf8_lossy(text).contains(**secret));
    for pid in daemons.into_iter().flat_map(family) {
        for what in ["cmdline", "environ"] {
            let text = fs::read(format!("/proc/{pid}/{what}")).unwrap_or_default();
            assert_eq!(holds(&text), None, "the {what} of {pid}");
        }
    }
    // Whatever is refused is told without them.
    shut.s3.door().close();
    web.admit(&[]);
    sts.server.url();
    for line in [
        &["ls", "s3://bucket", "--secret", "aws", "-vvv"][..],
        &["ls", "s3://bucket", "-vvv"],
        &["ls", &web.url("w"), "--secret", "web", "-vvv"],
        &["ls", "gs://bucket", "--secret", "web"],
        &["ls", "azure://a/c", "--secret", "aws"],
        &["ls", "hf://o/r", "--secret", "aws"],
        &["check", "-", "--json"],
        &["status", "--json"],
    ] {
        let ran = machine.run(line);
        said.extend([ran.out, ran.err]);
    }
    for text in said {
        assert_eq!(holds(text.as_bytes()), None, "{text}");
    }
    let mut grep = tool("grep");
    grep.args(["-r", "-a", "-s", "-l", "-F"]);
    planted.iter().for_each(|secret| _ = grep.args(["-e", secret]));
    let output = grep.arg(machine.cache()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "files of the cache that hold a secret");
}

/// Reads all that is there.
fn compare_names(point: &Path) {
    for entry in fs::read_dir(point).unwrap().flatten() {
        assert!(!fs::read(entry.path()).unwrap().is_empty());
    }
}

#[test]
fn a_configuration_mounts_all_that_it_names() {
    let shut = Shut::new();
    let bytes = shut.put("data/w", 2 * MIB);
    shut.put("data/README", 10);
    let hub = Hub::start();
    let model = content("model", 3 * MIB);
    hub.publish("models/meta-llama/Llama-2-7b", "main", &[("m.safetensors", &model), ("original/x", b"x")]);
    hub.guard("models/meta-llama/Llama-2-7b", Guard::Private);
    hub.token(TOKEN, &["models/meta-llama/Llama-2-7b"]);
    let machine = Machine::new()
        .env("HF_ENDPOINT", hub.url())
        .env("BDNFS_SECRET_HF_ACCESS_TOKEN", TOKEN)
        .env("BDNFS_SECRET_AWS", json(&Keys::sample(), &shut.s3.server.url()));
    let root = machine.directory("root");
    let files = machine.directory("files");
    let yaml = "model_name: m\nweights:\n  - source: hf://meta-llama/Llama-2-7b@main\n    mount_location: /models/llama\n    \
                auth_secret_name: hf_access_token\n    ignore_patterns: ['original/']\n  - source: s3://bucket/data\n    \
                mount_location: /data\n    auth: {auth_method: CUSTOM_SECRET, auth_secret_name: aws}\n    \
                allow_patterns: ['w']\n";
    let toml = "[[weights]]\nsource = 'hf://meta-llama/Llama-2-7b@main'\nmount_location = '/models/llama'\n\
                auth_secret_name = 'hf_access_token'\nignore_patterns = ['original/']\n[[weights]]\n\
                source = 's3://bucket/data'\nmount_location = '/data'\nauth_secret_name = 'aws'\nallow_patterns = ['w']\n";
    let json = r#"{"image": {"base_image": "b"}, "compute": {"node_count": 1}, "runtime": {"start_commands": []}, "weights": [
        {"source": "hf://meta-llama/Llama-2-7b@main", "mount_location": "/models/llama", "auth": {"auth_method":
        "CUSTOM_SECRET", "auth_secret_name": "hf_access_token"}, "ignore_patterns": ["original/"]},
        {"source": "s3://bucket/data", "mount_location": "/data", "auth_secret_name": "aws", "allow_patterns": ["w"]}]}"#;
    for (name, text) in [("config.yaml", yaml), ("weights.toml", toml), ("job.json", json)] {
        let config = files.join(name);
        fs::write(&config, text).unwrap();
        let (config, below) = (config.display().to_string(), root.display().to_string());
        let cache = machine.cache().display().to_string();
        let line = ["mount", "--config", &config, "--root", &below, "--cache-dir", &cache, "--wait"];
        let out = machine.run(&line).succeeds();
        assert_eq!(out.lines().filter(|line| line.starts_with("mounted ")).count(), 2, "{out}");
        let names = |at: &str| {
            let entries = fs::read_dir(root.join(at)).unwrap().flatten();
            entries.map(|entry| entry.file_name().into_string().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!((names("models/llama"), names("data")), (vec!["m.safetensors".into()], vec!["w".into()]));
        same(&model, &fs::read(root.join("models/llama/m.safetensors")).unwrap(), name);
        same(&bytes, &fs::read(root.join("data/w")).unwrap(), name);
        machine.umount(&root.join("models/llama"));
        machine.umount(&root.join("data"));
    }
}

#[test]
fn a_configuration_is_mounted_whole_or_not_at_all() {
    let machine = Machine::new();
    let source = machine.directory("source");
    file(&source, "w", 1000);
    let root = machine.directory("root");
    let config = machine.directory("files").join("weights.toml");
    let below = root.display().to_string();
    let attempt = |second: &str, location: &str| {
        let text = format!(
            "[[weights]]\nsource = 'file://{}'\nmount_location = '/a/b'\n[[weights]]\nsource = '{second}'\n\
             mount_location = '{location}'\n",
            source.display()
        );
        fs::write(&config, text).unwrap();
        let (config, cache) = (config.display().to_string(), machine.cache().display().to_string());
        machine.run(&["mount", "--config", &config, "--root", &below, "--cache-dir", &cache])
    };
    attempt("http:///x", "/c").fails(&["weights.toml:5: weights[1].source: "]);
    attempt("file:///none/there", "/c").fails(&["/none/there"]);
    assert!(fs::read_dir(&root).unwrap().next().is_none(), "directories were left behind");
    symlink("/etc", root.join("link")).unwrap();
    let other = machine.directory("other");
    file(&other, "x", 10);
    let other = format!("file://{}", other.display());
    attempt(&other, "/link/c").fails(&["is a link, which may lead out of the root"]);
    assert_eq!(fs::read_dir(&root).unwrap().count(), 1);
    attempt(&other, "/c").succeeds();
    assert!(root.join("a/b/w").is_file() && root.join("c/x").is_file());
}
