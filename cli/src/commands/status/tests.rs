//! The report of `bdnfs status`.

use bdnfs::engine::Usage;
use bdnfs::stage::Progress;

use super::*;
use bdnfs_agent::api::{Failure, MountInfo, StageStatus};

fn mount(stage: Option<StageStatus>) -> MountStatus {
    let mounted = MountInfo {
        id: 1,
        source: "s3://b/p".to_owned(),
        requested: None,
        mountpoint: "/mnt/p".into(),
        snapshot: String::new(),
        files: 12,
        bytes: 1000,
        passthrough: true,
        via: MountBackend::Fuse,
        warnings: Vec::new(),
    };
    let traffic = bdnfs::metrics::Traffic { origin: 450, ..Default::default() };
    MountStatus { mounted, local: Some(450), since: 0, traffic, stage }
}

#[test]
fn status_report_has_a_row_per_mount_and_a_line_per_cache() {
    let progress = Progress { bytes: 1000, bytes_done: 450, ..Progress::default() };
    let status = mount(Some(StageStatus { progress, state: StageState::Running }));
    let usage = Usage { used: Some(450), capacity: Some(2000), free: 9000, reserve: 100, evicted: 0 };
    let report = StatusReport {
        mounts: vec![
            MountReport {
                mountpoint: "/mnt/p".into(),
                source: "s3://b/p".into(),
                state: format_state(&status),
                status: Some(status),
                is_broken: false,
            },
            MountReport {
                mountpoint: "/mnt/q".into(),
                source: "s3://b/q".into(),
                state: "dead".into(),
                status: None,
                is_broken: false,
            },
        ],
        publications: vec![
            serde_json::from_str(
                r#"{"key": "csi-1", "state": "published", "source": "s3://b/p", "holder": "pod a",
                "path": "/pods/a", "target": "/pods/a", "message": "", "abnormal": false}"#,
            )
            .expect("a publication"),
        ],
        volumes: vec![
            serde_json::from_str(
                r#"{"key": "csi-2", "kind": "checkpoints", "project": "llama", "id": "3f1c9a2b", "tenant": "a",
                "holder": "pod b", "state": "saving", "message": "1 of 2 checkpoints saved"}"#,
            )
            .expect("a volume"),
        ],
        unsaved: vec![UnsavedDirectory {
            tenant: "a".into(),
            project: Some("p".into()),
            id: "lost".into(),
            directory: "/v".into(),
            bytes: 2,
            why: None,
        }],
        agents: vec![AgentInfo {
            version: "1".into(),
            pid: 7,
            cache: "/c".into(),
            persistent: true,
            ready: true,
            usage,
            work: Default::default(),
        }],
        unresponsive: Vec::new(),
    };
    let text = "\
MOUNTPOINT  SOURCE    FILES    SIZE  LOCAL  FETCHED  STATE
/mnt/p      s3://b/p     12  1.0 kB   45 %    450 B  staging 45 %
/mnt/q      s3://b/q      -       -      -        -  dead
PUBLICATION  FOR    SOURCE    PATH     STATE
csi-1        pod a  s3://b/p  /pods/a  published
VOLUME       FOR    NAME            PATH  STATE
checkpoints  pod b  llama@3f1c9a2b  -     saving: 1 of 2 checkpoints saved
UNSAVED  TENANT  SIZE  DIRECTORY  REASON
p@lost   a        2 B  /v         -
cache /c: 450 B used of 2.0 kB; disk: 9.0 kB free, 100 B reserved
";
    assert_eq!(format_report(&report), text);
}

#[test]
fn status_report_round_trips_through_json() {
    let failure = Failure { kind: "refused".into(), message: "no".into() };
    let status =
        mount(Some(StageStatus { progress: Progress::default(), state: StageState::Failed(failure) }));
    assert_eq!(format_state(&status), "staging failed: no");
    let text = serde_json::to_string(&status).expect("JSON");
    let back: MountStatus = serde_json::from_str(&text).expect("JSON");
    assert_eq!(back.stage, status.stage);
    assert_eq!(back.mounted.files, 12);
    assert_eq!(format_state(&mount(None)), "ready");
}
