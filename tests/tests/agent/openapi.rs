//! The API's description: every operation in it is asked of a real agent, and every answer is held against its schema.
//!
//! A route that is served and not described fails a unit test of `agent/src/server/routes`; one that is described and not
//! asked here fails this suite.

use std::fs;
use std::path::Path;

use bdnfs_tests::agent::AgentProcess;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::openapi::OpenApi;
use bdnfs_tests::process::eventually;
use bdnfs_tests::serve::ReservedPort;
use bdnfs_tests::tree::write_file;
use serde_json::{Value, json};

#[test]
fn agent_api_answers_match_openapi() {
    let machine = Machine::new();
    let targets = machine.directory("targets");
    let config = format!(
        "tenants.alice.quota = \"1G\"\npublications.targets = [{targets:?}]\n[sources.named]\nsource = {}",
        source(&machine, "named")
    );
    let agent = machine.agent(&config);
    let mut api = OpenApi::read();
    health(&mut api, &agent);
    mounts(&mut api, &agent, &machine);
    jobs(&mut api, &agent, &machine);
    publications(&mut api, &agent, &machine, &targets);
    volumes(&mut api, &agent, &targets);
    cache(&mut api, &agent, &machine);
    cluster(&mut api, &agent);
    api.ask(&agent, "POST", "/v1/stop", "", "");
    agent.gone();
    api.assert_all_requested();
}

fn source(machine: &Machine, name: &str) -> Value {
    let source = machine.directory(name);
    write_file(&source, "large", 3 << 20);
    write_file(&source, "small", 5);
    source.to_str().expect("ours are text").into()
}

fn place(path: &Path) -> &str {
    path.to_str().expect("ours are text")
}

fn health(api: &mut OpenApi, agent: &AgentProcess) {
    api.ask(agent, "GET", "/healthz", "", "");
    let ready = api.ask(agent, "GET", "/readyz", "", "").json();
    assert_eq!(ready["ready"], true);
    api.ask(agent, "GET", "/metrics", "", "");
}

fn mounts(api: &mut OpenApi, agent: &AgentProcess, machine: &Machine) {
    let point = machine.directory("mnt");
    let request = json!({
        "source": source(machine, "source"), "mountpoint": place(&point.join("../mnt")), "allow": ["*"], "ignore": ["none"],
        "tenant": "alice", "access": {"allow_http": false}, "offline": false, "allow_other": false, "uid": 7, "gid": null,
    });
    let mounted = api.ask(agent, "POST", "/v1/mounts", "", &request.to_string()).json();
    let id = mounted["id"].to_string();
    assert_eq!(mounted["mountpoint"], place(&point), "as the kernel names it");
    fs::read(point.join("small")).expect("a mounted file");
    api.ask(agent, "GET", "/v1/status", "", "");
    api.fails(agent, ("GET", "/v1/mounts/{id}/stage", &id), "", 404);
    api.ask(agent, "POST", "/v1/mounts/{id}/stage", &id, "");
    eventually("all is staged", || {
        api.ask(agent, "GET", "/v1/mounts/{id}/stage", &id, "").json()["state"] == "done"
    });
    api.ask(agent, "GET", "/v1/status", "", "");
    api.ask(agent, "DELETE", "/v1/mounts/{id}", &format!("{id}?lazy=true"), "");
    eventually("somebody waits in time", || ended(api, agent, &request.to_string()));

    for path in ["/v1/mounts/{id}/stage", "/v1/mounts/{id}/ended"] {
        api.fails(agent, ("GET", path, "99"), "", 404);
        api.fails(agent, ("GET", path, "nine"), "", 400);
    }
    api.fails(agent, ("POST", "/v1/mounts/{id}/stage", "99"), "", 404);
    api.fails(agent, ("DELETE", "/v1/mounts/{id}", "99"), "", 404);
    api.fails(agent, ("DELETE", "/v1/mounts/{id}", "99?lazy=perhaps"), "", 400);
    api.fails(agent, ("POST", "/v1/mounts", ""), "{}", 400);
    let relative = json!({"source": source(machine, "source"), "mountpoint": "mnt"}).to_string();
    api.fails(agent, ("POST", "/v1/mounts", ""), &relative, 400);
    for (key, value) in [("offlien", json!(true)), ("access", json!({"credentialz": "/x"}))] {
        let mut unknown = json!({"source": source(machine, "source"), "mountpoint": place(&point)});
        unknown[key] = value;
        api.fails(agent, ("POST", "/v1/mounts", ""), &unknown.to_string(), 400);
    }
    let nothing = json!({"source": "/no such directory", "mountpoint": place(&point)});
    api.fails(agent, ("POST", "/v1/mounts", ""), &nothing.to_string(), 404);
}

/// Mounts as `request` says, waits for the end of the mount, and ends it. False: it ended before the wait.
fn ended(api: &mut OpenApi, agent: &AgentProcess, request: &str) -> bool {
    let id = api.ask(agent, "POST", "/v1/mounts", "", request).json()["id"].to_string();
    let waited = std::thread::scope(|scope| {
        let wait = || {
            let mut api = OpenApi::read();
            let answer = api.try_ask(agent, "GET", "/v1/mounts/{id}/ended", &id, "");
            (answer.code == 200).then_some(api)
        };
        let waiting = scope.spawn(wait);
        api.ask(agent, "DELETE", "/v1/mounts/{id}", &id, "");
        waiting.join().expect("no panic")
    });
    waited.map(|waited| api.merge(waited)).is_some()
}

fn jobs(api: &mut OpenApi, agent: &AgentProcess, machine: &Machine) {
    let weights = json!([{"source": source(machine, "read"), "mountpoint": "/models/read"}]);
    let request = json!({
        "name": "job", "weights": weights, "start_commands": ["printf hello; test -s /models/read/small && exit 3"],
        "environment": {"WHO": "me"}, "secrets": [], "workdir": "/", "umask": 18, "grace": 1, "tenant": null,
        "mirror": null, "direct": true, "attached": false, "notes": ["first"],
    });
    let job = |api: &mut OpenApi, id: &str| api.ask(agent, "GET", "/v1/jobs/{id}", id, "").json();
    let id = api.ask(agent, "POST", "/v1/jobs", "", &request.to_string()).json()["id"].to_string();
    eventually("the job failed", || job(api, &format!("{id}?seen=3"))["state"] == "TRAINING_JOB_FAILED");
    assert_eq!(job(api, &id)["exit"]["code"], 3);
    let printed = api.ask(agent, "GET", "/v1/jobs/{id}/log", &format!("{id}?from=1&wait=true"), "");
    assert_eq!(printed.body.len(), 4, "all but the first of five bytes");
    let request = json!({"start_commands": ["sleep 1000"], "workdir": "/", "direct": true}).to_string();
    let id = api.ask(agent, "POST", "/v1/jobs", "", &request).json()["id"].to_string();
    api.ask(agent, "POST", "/v1/jobs/{id}/stop", &format!("{id}?now=true"), "");
    eventually("the job stopped", || job(api, &id)["state"] == "TRAINING_JOB_STOPPED");
    api.ask(agent, "GET", "/v1/jobs", "", "");
    api.fails(agent, ("POST", "/v1/jobs", ""), "{\"workdir\": \"/\"}", 400);
    api.fails(agent, ("GET", "/v1/jobs/{id}", "99"), "", 404);
    api.fails(agent, ("GET", "/v1/jobs/{id}/log", "99"), "", 404);
    api.fails(agent, ("POST", "/v1/jobs/{id}/stop", "99"), "", 404);
}

fn publications(api: &mut OpenApi, agent: &AgentProcess, machine: &Machine, targets: &Path) {
    let (route, target) = ("/v1/publications/{key}", targets.join("pod"));
    let mut request = json!({
        "source": source(machine, "published"), "allow": ["*"], "ignore": ["none"], "access": {"allow_http": false},
        "secrets": {}, "mirror": null, "tenant": "alice", "uid": 7, "gid": null, "target": place(&target),
        "holder": "pod default/a", "staging": "wait", "trusted": true, "keep": false,
    });
    let published = api.ask(agent, "PUT", route, "one?wait=60", &request.to_string()).json();
    assert_eq!((&published["state"], &published["path"]), (&json!("published"), &json!(place(&target))));
    assert_eq!(fs::read(target.join("small")).expect("a file").len(), 5);
    api.ask(agent, "GET", route, "one", "");
    api.ask(agent, "GET", "/v1/publications", "", "");
    api.ask(agent, "GET", "/v1/status", "", "");
    request["uid"] = json!(8);
    api.fails(agent, ("PUT", route, "one"), &request.to_string(), 409);
    api.fails(agent, ("PUT", route, "other"), &request.to_string(), 409);
    request["trusted"] = json!(false);
    api.fails(agent, ("PUT", route, "other"), &request.to_string(), 403);
    api.fails(agent, ("PUT", route, "o%20ther"), &request.to_string(), 400);
    api.fails(agent, ("PUT", route, "other?wait=long"), &request.to_string(), 400);
    api.fails(agent, ("PUT", route, "other"), "{}", 400);
    api.ask(agent, "DELETE", route, "one", "");
    api.ask(agent, "DELETE", route, "one", "");
    api.fails(agent, ("GET", route, "one"), "", 404);
    api.ask(agent, "PUT", "/v1/sources/{name}", "named?wait=60", "");
    api.ask(agent, "GET", "/v1/sources", "", "");
    api.fails(agent, ("PUT", "/v1/sources/{name}", "unnamed"), "", 404);
}

fn volumes(api: &mut OpenApi, agent: &AgentProcess, targets: &Path) {
    let (route, target) = ("/v1/volumes/{key}", targets.join("cache"));
    let mut request = json!({
        "kind": "projectCache", "name": "p", "id": null, "tenant": "alice", "target": place(&target),
        "holder": "pod default/a", "trusted": true,
    });
    let published = api.ask(agent, "PUT", route, "one", &request.to_string()).json();
    assert_eq!((&published["state"], &published["path"]), (&json!("published"), &json!(place(&target))));
    fs::write(target.join("file"), "written").expect("a directory to write to");
    api.ask(agent, "GET", route, "one", "");
    api.ask(agent, "GET", "/v1/volumes", "", "");
    let status = api.ask(agent, "GET", "/v1/status", "", "").json();
    assert_eq!(status["volumes"][0]["key"], "one");
    let caches = api.ask(agent, "GET", "/v1/training-caches", "", "").json();
    assert_eq!(
        (&caches["caches"][0]["tenant"], &caches["caches"][0]["source"]),
        (&json!("alice"), &json!("cache://project/p"))
    );
    request["name"] = json!("q");
    api.fails(agent, ("PUT", route, "one"), &request.to_string(), 409);
    api.fails(agent, ("PUT", route, "other"), &request.to_string(), 409);
    request["trusted"] = json!(false);
    request["target"] = Value::Null;
    api.fails(agent, ("PUT", route, "other"), &request.to_string(), 403);
    api.fails(agent, ("PUT", route, "o%20ther"), &request.to_string(), 400);
    api.fails(agent, ("PUT", route, "other"), "{}", 400);
    api.ask(agent, "DELETE", route, "one", "");
    api.ask(agent, "DELETE", route, "one", "");
    eventually("it has ended", || api.try_ask(agent, "GET", route, "one", "").code == 404);
    api.fails(agent, ("GET", route, "one"), "", 404);
}

fn cache(api: &mut OpenApi, agent: &AgentProcess, machine: &Machine) {
    let point = machine.directory("cached");
    let request = json!({"source": source(machine, "other"), "mountpoint": place(&point)}).to_string();
    let mounted = api.ask(agent, "POST", "/v1/mounts", "", &request).json();
    let which = json!({"which": [mounted["snapshot"]]}).to_string();
    fs::read(point.join("large")).expect("a mounted file");
    for operation in ["pin", "unpin", "evict"] {
        api.ask(agent, "POST", &format!("/v1/cache/{operation}"), "", &which);
        api.fails(agent, ("POST", &format!("/v1/cache/{operation}"), ""), "7", 400);
        let none = json!({"which": ["s3://not/here"]}).to_string();
        api.fails(agent, ("POST", &format!("/v1/cache/{operation}"), ""), &none, 404);
        api.ask(agent, "GET", "/v1/cache", "", "");
    }
    api.ask(agent, "POST", "/v1/cache/verify", "", "");
}

fn cluster(api: &mut OpenApi, alone: &AgentProcess) {
    api.fails(alone, ("GET", "/v1/cluster", ""), "", 404);
    let (machine, port) = (Machine::new(), ReservedPort::take(0));
    let (mirror, listen) = (machine.directory("mirror"), port.address);
    let config = format!(
        "[mirror]\nurl = \"file://{}\"\n[cluster]\nlisten = \"{listen}\"\ninsecure = true",
        mirror.display()
    );
    let agent = machine.agent(&config);
    eventually("the node knows itself", || {
        api.ask(&agent, "GET", "/v1/cluster", "", "").json()["members"][0]["state"] == "alive"
    });
}
