//! Credentials of AWS against moto, a third-party server: it checks signatures and rights, and has a token
//! service. `scripts/emulators` installs it and runs this.

use std::fs;
use std::process::{Child, Command, Stdio};

use bdnfs_tests::machine::Machine;
use bdnfs_tests::process::eventually;
use bdnfs_tests::serve::ReservedPort;
use bdnfs_tests::tools::{program, run, target};
use bdnfs_tests::tree::{assert_same, content};
use tempfile::TempDir;

/// What an account has before it is shut: a bucket, a user with a key, and a role that may read the bucket.
const ACCOUNT: &str = r#"
import boto3, json, sys
url = sys.argv[1]
def client(name):
    return boto3.client(name, endpoint_url=url, region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="y")
s3, iam = client("s3"), client("iam")
s3.create_bucket(Bucket="bucket")
s3.upload_file(sys.argv[2], "bucket", "model/w")
def allow(*actions):
    statement = {"Effect": "Allow", "Action": list(actions), "Resource": "*"}
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})
iam.create_user(UserName="reader")
iam.put_user_policy(UserName="reader", PolicyName="p", PolicyDocument=allow("s3:*", "sts:*"))
iam.create_user(UserName="nobody")
trust = json.dumps({"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "sts:AssumeRole"}]})
role = iam.create_role(RoleName="reading", AssumeRolePolicyDocument=trust)["Role"]["Arn"]
iam.put_role_policy(RoleName="reading", PolicyName="p", PolicyDocument=allow("s3:*"))
print(role)
for user in ["reader", "nobody"]:
    key = iam.create_access_key(UserName=user)["AccessKey"]
    print(key["AccessKeyId"], key["SecretAccessKey"])
"#;

/// moto, once it is shut.
struct Moto {
    child: Child,
    url: String,
    role: String,
    /// The id and the secret of a key: of a user who may read, and of one who may not.
    reader: (String, String),
    nobody: (String, String),
    bytes: Vec<u8>,
    _port: ReservedPort,
    _directory: TempDir,
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Moto {
    fn start() -> Self {
        let emulators = target().parent().unwrap().join("emulators");
        let reserved = ReservedPort::take(0);
        let port = reserved.address.port();
        let url = format!("http://127.0.0.1:{port}");
        let directory = TempDir::with_prefix("bdnfs-moto-").unwrap();
        let mut moto = Command::new(emulators.join("bin/moto_server"));
        moto.args(["-H", "127.0.0.1", "-p", &port.to_string()]).env("INITIAL_NO_AUTH_ACTION_COUNT", "1000");
        moto.current_dir(directory.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = moto.spawn().unwrap_or_else(|e| panic!("{moto:?}: {e}; see scripts/emulators"));
        eventually("moto listens", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        let bytes = content("w", 3 << 20);
        let file = directory.path().join("w");
        fs::write(&file, &bytes).unwrap();
        let mut python = Command::new(emulators.join("bin/python3"));
        let output = run(python.args(["-c", ACCOUNT, &url]).arg(&file));
        let mut lines = output.lines();
        let role = lines.next().unwrap().to_owned();
        let mut key = || {
            let (id, secret) = lines.next().unwrap().split_once(' ').unwrap();
            (id.to_owned(), secret.to_owned())
        };
        let (reader, nobody) = (key(), key());
        // From now on it wants signatures, and looks at rights.
        // As text: what comes as a form is no body to it.
        let text = ["-fsS", "-H", "Content-Type: text/plain", "-d", "0"];
        run(program("curl").args(text).arg(format!("{url}/moto-api/reset-auth")));
        Self { child, url, role, reader, nobody, bytes, _port: reserved, _directory: directory }
    }

    fn secret(&self, (id, secret): &(String, String)) -> String {
        format!(
            "{{\"aws_access_key_id\": \"{id}\", \"aws_secret_access_key\": \"{secret}\", \"aws_region\": \"us-east-1\", \
             \"aws_endpoint\": \"{}\"}}",
            self.url
        )
    }
}

#[test]
fn moto_checks_keys_and_gives_roles() {
    let moto = Moto::start();
    let wrong = (moto.reader.0.clone(), "anotherSecret".to_owned());
    let machine = Machine::new()
        .env("BDNFS_SECRET_READER", moto.secret(&moto.reader))
        .env("BDNFS_SECRET_NOBODY", moto.secret(&moto.nobody))
        .env("BDNFS_SECRET_WRONG", moto.secret(&wrong));
    let point = machine.mount_with("s3://bucket/model", "mnt", &["--secret", "reader"]);
    assert_same(&moto.bytes, &fs::read(point.join("w")).unwrap(), "with a key by name");
    for (name, code) in [("nobody", "AccessDenied"), ("wrong", "SignatureDoesNotMatch")] {
        let line = machine.run(&["ls", "s3://bucket/model", "--secret", name]).fails(&[]);
        let said = format!(
            "bdnfs: s3://bucket/model: cannot list {}/bucket: the server returned 403 Forbidden, {code}; check the secret \"{name}\"",
            moto.url.trim_end_matches('/')
        );
        assert_eq!(line, said);
    }

    let (id, secret) = &moto.reader;
    let machine = Machine::new()
        .env("AWS_ENDPOINT_URL", &moto.url)
        .env("AWS_ENDPOINT_URL_STS", &moto.url)
        .env("AWS_ACCESS_KEY_ID", id)
        .env("AWS_SECRET_ACCESS_KEY", secret);
    let point =
        machine.mount_with("s3://bucket/model", "mnt", &["--auth", "AWS_ASSUME_ROLE", "--role", &moto.role]);
    assert_same(&moto.bytes, &fs::read(point.join("w")).unwrap(), "with a role");
    let (id, secret) = &moto.nobody;
    let nobody = Machine::new()
        .env("AWS_ENDPOINT_URL", &moto.url)
        .env("AWS_ENDPOINT_URL_STS", &moto.url)
        .env("AWS_ACCESS_KEY_ID", id)
        .env("AWS_SECRET_ACCESS_KEY", secret);
    let line = nobody
        .run(&["ls", "s3://bucket/model", "--auth", "AWS_ASSUME_ROLE", "--role", &moto.role])
        .fails(&[]);
    let said = format!(
        "bdnfs: s3://bucket/model: cannot assume the role {} at {}: the server returned 403 Forbidden, AccessDenied",
        moto.role, moto.url
    );
    assert_eq!(line, said);
}
