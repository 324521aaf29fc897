//! A configuration file that names several sources.

use std::fs;
use std::os::unix::fs::symlink;

use bdnfs_tests::MIB;
use bdnfs_tests::hub::{HubServer, RepositoryAccess};
use bdnfs_tests::machine::Machine;
use bdnfs_tests::s3::{Keys, S3Server};
use bdnfs_tests::tree::{assert_same, content, write_file};

use tempfile::TempDir;

use crate::credentials::{GuardedBucket, TOKEN, json};

#[test]
fn configuration_mounted_mounts_every_source() {
    let guarded = GuardedBucket::new();
    let bytes = guarded.put("data/w", 2 * MIB);
    guarded.put("data/README", 10);
    let hub = HubServer::start();
    let model = content("model", 3 * MIB);
    hub.publish("models/meta-llama/Llama-2-7b", "main", &[("m.safetensors", &model), ("original/x", b"x")]);
    hub.set_access("models/meta-llama/Llama-2-7b", RepositoryAccess::Private);
    hub.token(TOKEN, &["models/meta-llama/Llama-2-7b"]);
    let machine = Machine::new()
        .env("HF_ENDPOINT", hub.url())
        .env("BDNFS_SECRET_HF_ACCESS_TOKEN", TOKEN)
        .env("BDNFS_SECRET_AWS", json(&Keys::sample(), &guarded.s3.server.url()));
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
        assert_same(&model, &fs::read(root.join("models/llama/m.safetensors")).unwrap(), name);
        assert_same(&bytes, &fs::read(root.join("data/w")).unwrap(), name);
        machine.umount(&root.join("models/llama"));
        machine.umount(&root.join("data"));
    }
}

#[test]
fn configuration_mounted_uses_the_mirror_that_was_filled_with_it() {
    let (root, keys) = (TempDir::new().unwrap(), Keys::sample());
    write_file(root.path(), "bucket/data/w", 1000);
    fs::create_dir(root.path().join("mirror")).unwrap();
    let s3 = S3Server::start(root.path(), Some(keys.clone()));
    let machine = Machine::new()
        .env("AWS_REGION", "us-east-1")
        .env("AWS_ACCESS_KEY_ID", &keys.access)
        .env("AWS_SECRET_ACCESS_KEY", &keys.secret);
    let local = machine.directory("local");
    write_file(&local, "x", 1000);
    let config = machine.directory("files").join("w.toml");
    let text = format!(
        "[[weights]]\nsource = 'file://{}'\nmount_location = '/a'\n[[weights]]\nsource = 's3://bucket/data'\n\
         mount_location = '/b'\n",
        local.display()
    );
    fs::write(&config, text).unwrap();
    let (endpoint, root) = (s3.server.url(), machine.directory("root"));
    let options = ["--config", config.to_str().unwrap(), "--mirror", "s3://mirror", "--endpoint", &endpoint];
    machine.run(&[&["mirror", "add"], &options[..]].concat()).succeeds();
    let place = ["--root", root.to_str().unwrap(), "--cache-dir", machine.cache().to_str().unwrap()];
    let mounted = machine.run(&[&["mount", "--wait"], &options[..], &place].concat());
    assert!(!mounted.err.contains("note: "), "{}", mounted.err);
    mounted.succeeds();
    assert!(root.join("a/x").is_file() && root.join("b/w").is_file());
}

#[test]
fn configuration_with_bad_source_mounts_nothing() {
    let machine = Machine::new();
    let source = machine.directory("source");
    write_file(&source, "w", 1000);
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
    write_file(&other, "x", 10);
    let other = format!("file://{}", other.display());
    attempt(&other, "/link/c").fails(&["is a symbolic link, which may lead out of --root"]);
    assert_eq!(fs::read_dir(&root).unwrap().count(), 1);
    attempt(&other, "/c").succeeds();
    assert!(root.join("a/b/w").is_file() && root.join("c/x").is_file());
}
