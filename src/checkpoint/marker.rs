//! Markers: files that libraries write last. Each is a hint that a checkpoint is complete, none a proof: subclasses of
//! the Trainer write after its `trainer_state.json`.

/// The files that libraries write last into a checkpoint: torch's DCP, by renaming it, and Hugging Face's Trainer.
const MARKERS: [&[u8]; 2] = [b".metadata", TRAINER_MARKER];
/// The Trainer's, which it writes in place.
const TRAINER_MARKER: &[u8] = b"trainer_state.json";
/// DeepSpeed's file beside its checkpoints, which holds the name of the newest.
const DEEPSPEED_TRACKER: &[u8] = b"latest";
/// Megatron's, which holds the number of its iteration, or `release`; verl writes the same with other names.
const MEGATRON_TRACKER: &[u8] = b"latest_checkpointed_iteration.txt";

/// Whether the file at `path` in a checkpoint says that this is complete.
pub fn is_marker(path: &[u8]) -> bool {
    MARKERS.contains(&path.rsplit(|b| *b == b'/').next().unwrap_or_default())
}

/// Whether the marker at `path` is there whole, by its `content`: DCP's is renamed when it is; the Trainer's is JSON, maybe with
/// NaN, whose last line alone is not indented.
pub fn is_whole_marker(path: &[u8], content: &[u8]) -> bool {
    !path.ends_with(TRAINER_MARKER)
        || content.ends_with(b"\n}\n")
        || serde_json::from_slice::<serde::de::IgnoredAny>(content).is_ok()
}

/// Whether the file called `name`, beside the checkpoints, tells which of them is complete.
pub fn is_tracker(name: &[u8]) -> bool {
    name == DEEPSPEED_TRACKER || name == MEGATRON_TRACKER
}

/// The directories beside the tracker `name` that its `content` may mean.
pub fn tracked(name: &[u8], content: &str) -> Vec<String> {
    let content = content.trim();
    match name {
        _ if content.is_empty() || content.contains('/') => Vec::new(),
        DEEPSPEED_TRACKER => vec![content.to_owned()],
        MEGATRON_TRACKER => match content.parse::<u64>() {
            Ok(step) => vec![format!("iter_{step:07}"), format!("global_step_{step}")],
            Err(_) => vec![content.to_owned()],
        },
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tracker_names_the_directories_of_its_library() {
        assert_eq!(tracked(b"latest", "global_step100\n"), ["global_step100"]);
        let megatron = b"latest_checkpointed_iteration.txt";
        assert_eq!(tracked(megatron, "500"), ["iter_0000500", "global_step_500"]);
        assert_eq!(tracked(megatron, "release"), ["release"]);
        assert_eq!(tracked(b"latest", "../x"), [""; 0]);
        assert_eq!(tracked(b"latest", ""), [""; 0]);
        assert_eq!(tracked(b"other", "x"), [""; 0]);
    }

    #[test]
    fn marker_of_the_trainer_is_whole_with_its_last_line() {
        let state = "{\n  \"log_history\": [\n    {\n      \"loss\": NaN\n    }\n  ]\n}\n";
        assert!(is_whole_marker(b"a/trainer_state.json", state.as_bytes()));
        for end in 0..state.len() {
            assert!(!is_whole_marker(b"a/trainer_state.json", &state.as_bytes()[..end]), "{end}");
        }
        assert!(is_whole_marker(b"a/trainer_state.json", b"{\"epoch\": 1}"));
        assert!(is_whole_marker(b"a/.metadata", b""));
    }

    #[test]
    fn marker_at_any_depth_is_recognized_by_its_name() {
        assert!(is_marker(b".metadata") && is_marker(b"model/.metadata") && is_marker(b"trainer_state.json"));
        assert!(!is_marker(b".metadata.tmp") && !is_marker(b"config.json") && !is_marker(b""));
        assert!(is_tracker(b"latest") && !is_tracker(b"latest.pt"));
    }
}
