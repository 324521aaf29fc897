//! A cache that is full of what others hold: what the pod's user is told, and when.

use std::time::{Duration, Instant};

use bdnfs_tests::MIB;
use bdnfs_tests::kubelet::{CALL_DEADLINE, PodVolume};
use bdnfs_tests::mounts::is_local;
use bdnfs_tests::process::eventually;
use tonic::Code;

use crate::events::EventServer;
use crate::kit::KubernetesNode;
use crate::publish::remaining;

/// Calls with this deadline end while the agent still waits for room.
const WAITING_DEADLINE: Duration = Duration::from_secs(8);

/// A node whose cache is full of the volume of the pod `first`, and the volume of the pod `second`, which does not fit beside it.
fn full_node(deadline: Duration) -> (KubernetesNode, EventServer, [PodVolume; 2]) {
    let mut node = KubernetesNode::new(deadline);
    node.agent.take().unwrap().end();
    let config = format!("cache_size = \"32MiB\"\n{}", KubernetesNode::config(&node.env));
    node.agent = Some(node.env.machine.agent(&config));
    let server = EventServer::start(&mut node);
    let volumes = ["first", "second"].map(|name| {
        node.env.put(&format!("{name}/weights"), 20 * MIB);
        let mut volume = PodVolume { id: name.to_owned(), ..node.volume(name) };
        volume.context.insert("source".into(), format!("s3://bucket/{name}"));
        volume
    });
    node.kubelet.mount(&volumes[0]);
    (node, server, volumes)
}

#[test]
fn volume_beside_one_that_fills_the_cache_is_exhausted_in_time_and_says_who_holds_it() {
    let (node, server, [first, second]) = full_node(CALL_DEADLINE);
    let begin = Instant::now();
    let error = node.kubelet.publish(&second).unwrap_err();
    assert!(begin.elapsed() < CALL_DEADLINE / 2, "{:?}", begin.elapsed());
    assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    // Who wants how much, what there is, who has it, and what to do: in the kubelet's event, which has the error, and in ours.
    eventually("an event is posted", || server.find("StagingFailed").is_some());
    let (_, _, event) = server.find("StagingFailed").unwrap();
    assert_eq!(
        (event["type"].as_str(), event["involvedObject"]["name"].as_str()),
        (Some("Warning"), Some("second"))
    );
    for text in [error.message(), event["message"].as_str().unwrap()] {
        let (needed, room) = ((20 * MIB).to_string(), (32 * MIB).to_string());
        for words in ["s3://bucket/second", &needed, &room, "held by s3://bucket/first", "--cache-size"] {
            assert!(text.contains(words), "{words} is not in: {text}");
        }
        assert!(!text.contains('\n'), "{text}");
    }
    // The other pod is left alone, and nothing is left of this one.
    assert!(is_local(&node.kubelet.target(&first).join("weights")));
    assert_eq!(remaining(&node).0, 1);
    // When the other pod goes, the kubelet's next call succeeds.
    node.kubelet.unpublish(&first).unwrap();
    node.kubelet.mount(&second);
    assert!(is_local(&node.kubelet.target(&second).join("weights")));
    node.kubelet.unpublish(&second).unwrap();
    assert_eq!(remaining(&node), (0, 0));
}

#[test]
fn volume_that_waits_for_room_when_its_deadline_comes_is_aborted_and_says_so() {
    let (node, server, [first, second]) = full_node(WAITING_DEADLINE);
    let error = node.kubelet.publish(&second).unwrap_err();
    assert_eq!(error.code(), Code::Aborted, "{error}");
    assert!(error.message().starts_with("waits for room in the cache: s3://bucket/second at "), "{error}");
    eventually("an event is posted", || server.find("Staging").is_some());
    let (_, _, event) = server.find("Staging").unwrap();
    assert!(event["message"].as_str().unwrap().contains("held by s3://bucket/first"), "{event}");
    // It gets the room as soon as that is free: the call is joined, and not begun anew.
    node.kubelet.unpublish(&first).unwrap();
    node.kubelet.mount(&second);
    node.kubelet.unpublish(&second).unwrap();
    assert_eq!(remaining(&node), (0, 0));
}

#[test]
fn volume_that_fits_does_not_wait_behind_one_that_does_not() {
    let (node, _, [first, second]) = full_node(CALL_DEADLINE);
    node.env.put("small/weights", MIB);
    let mut small = PodVolume { id: "small".to_owned(), ..node.volume("small") };
    small.context.insert("source".into(), "s3://bucket/small".into());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| node.kubelet.publish(&second));
        let waits = || node.agent().get("/v1/publications").body.contains("waits for room in the cache");
        eventually("the large one waits", waits);
        node.kubelet.call_publish(&small).unwrap();
        assert!(!waiting.is_finished(), "the large one still does");
        assert_eq!(waiting.join().unwrap().unwrap_err().code(), Code::ResourceExhausted);
    });
    for volume in [&small, &first] {
        node.kubelet.unpublish(volume).unwrap();
    }
    assert_eq!(remaining(&node), (0, 0));
}
