//! Jobs that keep only so many of the checkpoints of their project.

use std::fs;

use super::kit::{events, job, spec, submitted, text, toml};
use super::saving::{SavingMachine, checkpoints, mirror, saved};

#[test]
fn keep_of_a_job_removes_older_checkpoints_of_its_project() {
    let saving = SavingMachine::new();
    let step = |number: u32| {
        format!("mkdir {number} && echo {number} > {number}/model && touch -d @{number} {number}/model")
    };
    let number = saving.submit("first", &format!("cd $BT_CHECKPOINT_DIR && {} && {}", step(1), step(2)));
    saving.ended(&number);
    let submit = |keep: &str, checkpoints: &str| {
        let lines = toml(&[], &[&format!("cd $BT_CHECKPOINT_DIR && {}", step(3))]);
        let path = spec(&saving.machine, "keep.toml", &format!("{keep}\n{lines}{checkpoints}"));
        vec![
            "--id".to_owned(),
            "second".to_owned(),
            "--project".to_owned(),
            "p".to_owned(),
            text(&path).to_owned(),
        ]
    };
    let enabled = "[runtime.checkpointing_config]\nenabled = true\n";
    for (keep, checkpoints, said) in
        [("keep = 0", enabled, "keep: must be at least 1"), ("keep = 2", "", "saves no checkpoints")]
    {
        let words = submit(keep, checkpoints);
        let words: Vec<_> = std::iter::once("submit").chain(words.iter().map(String::as_str)).collect();
        job(&saving.machine, &words).fails(&[said]);
    }
    let words = submit("keep = 2", enabled);
    let number = submitted(&saving.machine, &words.iter().map(String::as_str).collect::<Vec<_>>());
    let status = saving.ended(&number);
    let removed =
        events(&status).into_iter().filter(|event| event.starts_with("removed ")).collect::<Vec<_>>();
    assert_eq!(removed, ["removed bt://p@first/1: newer ones are kept"]);
    let url = format!("file://{}", mirror(&saving.machine).display());
    let listed =
        saving.machine.run(&["checkpoint", "ls", "--project", "p", "--json", "--mirror", &url]).succeeds();
    let at = |name: &str| saving.files(&format!("bt://p@{name}"));
    assert_eq!(at("first/1"), None, "{listed}");
    assert!(at("first/2").is_some() && at("second/3").is_some(), "{listed}");
    saving.verify();
}

#[test]
fn keep_of_a_job_whose_files_are_dated_ahead_removes_what_was_saved_before() {
    let saving = SavingMachine::new();
    let flag = saving.machine.directory("flag");
    let lines = |command: &str| {
        format!("keep = 1\n{}[runtime.checkpointing_config]\nenabled = true\n", toml(&[], &[command]))
    };
    let command = format!(
        "cd $BT_CHECKPOINT_DIR && mkdir step-1 step-2 && echo a > step-1/m && touch -d 2099-01-01 step-1/m step-1/.metadata
         while [ ! -e {}/go ]; do sleep 0.1; done; echo b > step-2/m; touch step-2/.metadata",
        text(&flag)
    );
    let path = spec(&saving.machine, "ahead.toml", &lines(&command));
    let number = submitted(&saving.machine, &["--id", "ahead", "--project", "p", text(&path)]);
    saving.await_event(&number, "saved step-1 (generation 1, complete)");
    fs::write(flag.join("go"), "").unwrap();
    let status = saving.ended(&number);
    assert_eq!(checkpoints(&status), [saved("step-1", true, 1), saved("step-2", true, 1)], "{status}");
    assert!(saving.files("bt://p@ahead/step-2").is_some(), "{status}");
    assert_eq!(saving.files("bt://p@ahead/step-1"), None, "{status}");
    saving.verify();
}
