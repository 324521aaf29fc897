//! Secrets that only the agent has: they serve all of its clients, which see none of them.

use std::fs;

use bdnfs_tests::MIB;
use bdnfs_tests::agent::AgentProcess;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::process::eventually;
use bdnfs_tests::s3::Keys;
use bdnfs_tests::tree::assert_same;
use bdnfs_tests::web::WebServer;
use serde_json::{Value, json};

use super::{GuardedBucket, TOKEN};

/// A machine whose agent alone has a secret, called `s3`, and a mirror that takes it.
fn machine_with_agent(bucket: &GuardedBucket) -> (Machine, AgentProcess) {
    fs::create_dir(bucket.root.path().join("mirror")).unwrap();
    // Nothing in its environment leads to the server: the secret does.
    let machine = Machine::new();
    let directory = machine.directory("secrets-of-the-agent");
    fs::write(directory.join("s3"), super::json(&Keys::sample(), &bucket.s3.server.url())).unwrap();
    let config = format!(
        "secrets = [\"{}\"]\n[mirror]\nurl = \"s3://mirror\"\nsecret = \"s3\"\n",
        directory.display()
    );
    let agent = machine.agent(&config);
    (machine, agent)
}

/// A job that prints how long the file is, of a source with the secret `name`.
fn spec(machine: &Machine, name: &str) -> String {
    let path = machine.directory("specs").join(format!("{name}.toml"));
    let text = format!(
        "[runtime]\nstart_commands = [\"wc -c < /m/w\"]\n[[weights]]\nsource = \"s3://bucket\"\n\
         mount_location = \"/m\"\nauth_secret_name = \"{name}\"\n"
    );
    fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn secret_of_the_agent_serves_mounts_and_jobs_of_all_clients() {
    let bucket = GuardedBucket::new();
    let bytes = bucket.put("w", 3 * MIB);
    let (machine, agent) = machine_with_agent(&bucket);
    let length = format!("{}\n", bytes.len());
    let auth = json!({"auth": {"auth_method": "CUSTOM_SECRET", "auth_secret_name": "s3"}});

    let point = machine.mount_with("s3://bucket", "mnt", &["--secret", "s3"]);
    assert_same(&bytes, &fs::read(point.join("w")).unwrap(), "mounted by a command");
    let ran = machine.run(&["job", "run", &spec(&machine, "s3")]);
    assert_eq!((ran.code, &ran.out), (Some(0), &length), "{}", ran.err);
    let submitted = machine.run(&["job", "submit", &spec(&machine, "s3"), "--json"]).succeeds();
    let id = serde_json::from_str::<Value>(&submitted).unwrap()["id"].to_string();
    machine.run(&["job", "wait", &id, "--timeout", "60s"]).succeeds();
    assert_eq!(machine.run(&["job", "logs", &id]).succeeds(), length);

    let weights = json!({"source": "s3://bucket", "mountpoint": "/m", "access": auth});
    let request = json!({"weights": [weights], "start_commands": ["wc -c < /m/w"], "workdir": "/"});
    let answer = agent.ask("POST", "/v1/jobs", &request.to_string());
    assert_eq!(answer.code, 200, "{}", answer.body);
    let id = answer.json()["id"].to_string();
    eventually("a job ends", || !agent.get(&format!("/v1/jobs/{id}")).json()["ended"].is_null());
    assert_eq!(agent.get(&format!("/v1/jobs/{id}/log")).body, length);
    let point = machine.directory("other");
    let request = json!({"source": "s3://bucket", "mountpoint": point, "access": auth});
    let answer = agent.ask("POST", "/v1/mounts", &request.to_string());
    assert_eq!(answer.code, 200, "{}", answer.body);
    assert_same(&bytes, &fs::read(point.join("w")).unwrap(), "mounted over the API");

    // A mirror that a request names may take it too, and a mount survives a restart with it.
    let late = bucket.put("late", 3 * MIB);
    let options = ["--secret", "s3", "--mirror", "s3://mirror/other", "--mirror-secret", "s3"];
    machine.mount_with("s3://bucket", "named", &options);
    agent.end();
    let (key, directory) = ("secrets-of-the-agent", machine.directory("secrets-of-the-agent"));
    let agent = machine.agent(&format!("secrets = [\"{}\"]", directory.display()));
    assert_same(&bytes, &fs::read(machine.directory("named").join("w")).unwrap(), key);
    assert_same(&late, &fs::read(machine.directory("named").join("late")).unwrap(), "not local yet");
    agent.stop();
}

#[test]
fn secret_that_is_empty_after_a_restart_refuses_reads_until_it_is_there() {
    let bucket = GuardedBucket::new();
    let bytes = bucket.put("w", 3 * MIB);
    let web = WebServer::start(&bucket.root.path().join("bucket"));
    web.accept_only(&[(&format!("Bearer {TOKEN}"), None)]);
    let machine = Machine::new();
    let directory = machine.directory("secrets-of-the-agent");
    let secrets = [("s3", super::json(&Keys::sample(), &bucket.s3.server.url())), ("web", TOKEN.to_owned())];
    let write_all = || secrets.iter().for_each(|(name, text)| fs::write(directory.join(name), text).unwrap());
    write_all();
    let config = format!("secrets = [\"{}\"]", directory.display());
    let agent = machine.agent(&config);
    let points = [("s3://bucket".to_owned(), "s3"), (web.url("w"), "web")]
        .map(|(uri, secret)| machine.mount_with(uri, secret, &["--secret", secret]).join("w"));
    agent.crash();
    // It has them in its memory.
    machine.kill_fdstore();
    secrets.iter().for_each(|(name, _)| fs::write(directory.join(name), "").unwrap());
    let agent = machine.agent(&config);
    for file in &points {
        let error = fs::read(file).expect_err("its secret is empty");
        assert_eq!(error.raw_os_error(), Some(libc::EACCES), "{}: {}", file.display(), agent.log());
    }
    write_all();
    for file in &points {
        let read = fs::read(file).unwrap_or_else(|e| panic!("{}: {e}: {}", file.display(), agent.log()));
        assert_same(&bytes, &read, "with its secret again");
    }
    agent.stop();
}

#[test]
fn mirror_whose_secret_is_empty_after_a_restart_is_used_when_that_is_there() {
    let bucket = GuardedBucket::new();
    let bytes = bucket.put("w", 3 * MIB);
    fs::create_dir(bucket.root.path().join("mirror")).unwrap();
    let machine = Machine::new();
    let (directory, url) = (machine.directory("secrets-of-the-agent"), bucket.s3.server.url());
    let secret = directory.join("s3");
    let write = || fs::write(&secret, super::json(&Keys::sample(), &url)).unwrap();
    write();
    let directory = directory.display().to_string();
    let mirror =
        ["--mirror", "s3://mirror", "--mirror-endpoint", &url, "--mirror-secret", "s3", "--secret", "s3"];
    machine
        .run(&[&["mirror", "add", "s3://bucket", "--secrets", &directory], &mirror[..]].concat())
        .succeeds();
    let config = format!("secrets = [\"{directory}\"]");
    let agent = machine.agent(&config);
    let file = machine.mount_with("s3://bucket", "mnt", &mirror).join("w");
    agent.crash();
    machine.kill_fdstore();
    fs::write(&secret, "").unwrap();
    let agent = machine.agent(&config);
    write();
    // The mirror alone has it now.
    fs::remove_file(bucket.root.path().join("bucket/w")).unwrap();
    assert_same(
        &bytes,
        &fs::read(&file).unwrap_or_else(|e| panic!("{e}: {}", agent.log())),
        "from the mirror",
    );
    agent.stop();
}

#[test]
fn secret_not_found_is_named_by_the_agent() {
    let bucket = GuardedBucket::new();
    bucket.put("w", MIB);
    let (machine, agent) = machine_with_agent(&bucket);
    let said = ["no such secret: \"none\" (not in the environment (BDNFS_SECRET_NONE), not in "];
    let cache = machine.cache().display().to_string();
    for command in ["run", "submit"] {
        let options: &[_] = if command == "run" { &["--cache-dir", &cache] } else { &[] };
        let line =
            machine.run(&[&["job", command, &spec(&machine, "none")][..], options].concat()).fails(&said);
        assert!(line.contains("secrets-of-the-agent") && !line.contains("in use"), "{line}");
    }
    let point = machine.directory("mnt");
    machine.try_mount("s3://bucket", &point, &["--secret", "none"]).fails(&said);
    let point = point.display().to_string();
    let foreground =
        ["mount", "--foreground", "--cache-dir", &cache, "--secret", "none", "s3://bucket", &point];
    machine.run(&foreground).fails(&said);
    agent.end();
    let config = machine.directory("etc").join("wrong.toml");
    fs::write(&config, "[mirror]\nurl = \"s3://mirror\"\nsecret = \"none\"\n").unwrap();
    let config = config.display().to_string();
    machine.run(&["agent", "--config", &config, "--cache-dir", &cache]).fails(&["mirror: ", "\"none\""]);
}
