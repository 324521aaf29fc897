//! What is bound and has no record: removed where it is left over, and never where a pod may read from it.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use bdnfs_tests::disk::LoopDisk;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::mounts::{is_mounted, unmount};
use bdnfs_tests::process::{eventually, waits_in};
use bdnfs_tests::proxy::NetworkFault;
use bdnfs_tests::test_env::TestEnv;
use rustix::mount::{UnmountFlags, mount_bind};
use serde_json::json;

use crate::kit::{
    assert_nothing_left, bases, bound, config, entries, publish, put, records, request, targets, unpublish,
};

/// Where in the kernel a write waits for a disk that is frozen.
const FROZEN_DISK_WAIT: &str = "percpu_rwsem_wait";

/// Damages the record of a publication, so that nobody can read it.
fn damage_record(machine: &Machine, key: &str) {
    fs::write(machine.cache().join(format!("state/publications/{key}.json")), "garbage").unwrap();
}

/// The device of a directory, which tells mounts apart.
fn device(path: &Path) -> u64 {
    fs::metadata(path).unwrap().dev()
}

#[test]
fn bind_without_a_record_is_removed_when_the_next_agent_starts() {
    let env = TestEnv::new();
    env.put("file", 5);
    let agent = env.machine.agent(&config(&env.machine));
    let (first, target) = bound(&env, "", "orphan");
    publish(&agent, "orphan", &first);
    publish(&agent, "base", &request(&env, ""));
    agent.crash();
    fs::remove_file(env.machine.cache().join("state/publications/orphan.json")).unwrap();
    let _agent = env.machine.agent(&config(&env.machine));
    eventually("the bind is gone", || !is_mounted(&target) && !target.exists());
    assert_eq!(bases(&env.machine).len(), 1);
}

#[test]
fn subpath_that_a_kubelet_has_bound_stays_when_the_next_agent_starts() {
    let env = TestEnv::new();
    env.put("directory/weights", 5);
    env.put("config.json", 6);
    let agent = env.machine.agent(&config(&env.machine));
    let pod = targets(&env.machine).join("pods/uid");
    let volume = pod.join("volumes/kubernetes.io~csi/model");
    fs::create_dir_all(&volume).unwrap();
    fs::write(volume.join("vol_data.json"), "{}").unwrap();
    let (mut asked, target) = (request(&env, ""), volume.join("mount"));
    asked["target"] = json!(target);
    publish(&agent, "pod", &asked);
    let subpaths = pod.join("volume-subpaths/model/main");
    let [directory, file, all] = ["0", "1", "2"].map(|number| subpaths.join(number));
    fs::create_dir_all(&directory).unwrap();
    fs::create_dir_all(&all).unwrap();
    File::create(&file).unwrap();
    for (part, at) in [("directory", &directory), ("config.json", &file), (".", &all)] {
        mount_bind(target.join(part), at).unwrap();
    }
    agent.crash();
    let agent = env.machine.agent(&config(&env.machine));
    publish(&agent, "pod", &asked);
    assert_eq!(fs::read(directory.join("weights")).unwrap().len(), 5, "{}", agent.log());
    assert_eq!(fs::read(&file).unwrap().len(), 6, "{}", agent.log());
    assert_eq!(fs::read(all.join("config.json")).unwrap().len(), 6, "{}", agent.log());
    for at in [&directory, &file, &all] {
        unmount(at);
    }
    unpublish(&agent, "pod");
    assert!(!target.exists() && bases(&env.machine).is_empty());
}

#[test]
fn bind_whose_record_cannot_be_read_stays_until_it_is_asked_for() {
    let env = TestEnv::new();
    env.put("file", 5);
    let agent = env.machine.agent(&config(&env.machine));
    let [(lost, lost_target), (kept, kept_target)] = ["lost", "kept"].map(|name| bound(&env, "", name));
    publish(&agent, "lost", &lost);
    publish(&agent, "kept", &kept);
    let before = device(&lost_target);
    agent.crash();
    damage_record(&env.machine, "lost");
    let agent = env.machine.agent(&config(&env.machine));
    unpublish(&agent, "kept");
    assert!(!is_mounted(&kept_target));
    assert_eq!(fs::read(lost_target.join("file")).unwrap().len(), 5, "{}", agent.log());
    // The key of a client says nothing about the target.
    let refused = agent.ask("DELETE", "/v1/publications/lost", "");
    assert_eq!((refused.code, refused.json()["kind"].as_str()), (409, Some("busy")), "{}", refused.body);
    assert!(refused.body.contains("state/publications/lost.json"), "{}", refused.body);
    assert!(refused.body.contains(lost_target.to_str().unwrap()), "{}", refused.body);
    let mut other = lost.clone();
    other["allow"] = json!(["other"]);
    let refused = put(&agent, "lost", &other, 10);
    assert_eq!((refused.code, refused.json()["kind"].as_str()), (409, Some("busy")), "{}", refused.body);
    // Another agent is as careful.
    agent.crash();
    let agent = env.machine.agent(&config(&env.machine));
    env.proxy.set(NetworkFault { refuse: true, ..NetworkFault::default() });
    let status = publish(&agent, "lost", &lost);
    assert_eq!((&status["abnormal"], device(&lost_target)), (&json!(false), before), "{status}");
    agent.crash();
    let agent = env.machine.agent(&config(&env.machine));
    assert_eq!(agent.get("/v1/publications/lost").json()["state"], "published", "its record is written anew");
    unpublish(&agent, "lost");
    assert_nothing_left(&env);
}

#[test]
fn bind_whose_record_cannot_be_read_and_that_was_unmounted_is_forgotten() {
    let env = TestEnv::new();
    env.put("file", 5);
    let agent = env.machine.agent(&config(&env.machine));
    let (lost, target) = bound(&env, "", "lost");
    publish(&agent, "lost", &lost);
    agent.crash();
    damage_record(&env.machine, "lost");
    let agent = env.machine.agent(&config(&env.machine));
    assert!(is_mounted(&target) && bases(&env.machine).len() == 1, "{}", agent.log());
    unmount(&target);
    fs::remove_dir(&target).unwrap();
    unpublish(&agent, "lost");
    // The comparison with the mount table after the start may be about to end it.
    eventually("its base has ended", || entries(&env.machine.cache().join("bases")).is_empty());
    assert_nothing_left(&env);
}

#[test]
fn unpublish_while_the_publication_is_taken_over_waits_and_ends_it() {
    let Some(disk) = LoopDisk::new(64 << 20) else { return };
    let env = TestEnv::new();
    env.put("file", 5);
    // Of the cache, the records of publications alone lie on that disk.
    let state = env.machine.cache().join("state/publications");
    fs::create_dir_all(&state).unwrap();
    fs::set_permissions(disk.path(), fs::Permissions::from_mode(0o700)).unwrap();
    mount_bind(disk.path(), &state).unwrap();
    let agent = env.machine.agent(&config(&env.machine));
    let (asked, target) = bound(&env, "", "pod");
    // By its key, like that of a pod, the agent knows the target.
    let digest = blake3::hash(&[b"\0", target.as_os_str().as_encoded_bytes()].concat()).to_hex();
    let key = format!("csi-{}", &digest[..32]);
    publish(&agent, &key, &asked);
    agent.crash();
    damage_record(&env.machine, &key);
    let agent = env.machine.agent(&config(&env.machine));
    let frozen = disk.freeze();
    std::thread::scope(|scope| {
        let frozen = frozen;
        let publishing = scope.spawn(|| put(&agent, &key, &asked, 50));
        eventually("its new record is written", || waits_in(agent.pid(), FROZEN_DISK_WAIT));
        let unpublishing = scope.spawn(|| agent.ask("DELETE", &format!("/v1/publications/{key}"), ""));
        // Time enough to end what is not known yet.
        std::thread::sleep(Duration::from_secs(1));
        assert!(is_mounted(&target), "it waits until it is known");
        drop(frozen);
        let told = publishing.join().unwrap();
        assert!(told.code == 200 || told.body.contains("unpublished meanwhile"), "{}", told.body);
        let ended = unpublishing.join().unwrap();
        assert_eq!(ended.code, 200, "{}", ended.body);
    });
    assert_eq!(agent.get(&format!("/v1/publications/{key}")).code, 404);
    assert!(!is_mounted(&target) && records(&env.machine).iter().all(|record| record.is_dir()));
    agent.stop();
    rustix::mount::unmount(&state, UnmountFlags::DETACH).unwrap();
}
