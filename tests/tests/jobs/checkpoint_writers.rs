//! How what writers leave at each moment gets into the mirror.

use std::fs;

use bdnfs_tests::process::eventually;
use bdnfs_tests::tools::python_path;
use bdnfs_tests::tree::total_bytes;
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

use super::kit::{events, job, text};
use super::saving::{Files, SavingMachine, checkpoints, file, mirror, saved};

#[test]
fn large_file_is_uploaded_while_the_rest_of_its_checkpoint_is_written() {
    let saving = SavingMachine::new();
    let flag = saving.machine.directory("flag");
    let number = saving.submit(
        "ahead",
        &format!(
            "mkdir $BT_CHECKPOINT_DIR/step && cd $BT_CHECKPOINT_DIR/step && head -c 20000000 /dev/urandom > model
             exec 3> optimizer; while [ ! -e {0}/go ]; do echo more >&3; sleep 0.1; done; exec 3>&-
             if [ -e {0}/change ]; then head -c 20000000 /dev/urandom > model; fi; sha256sum model; echo > optimizer",
            text(&flag)
        ),
    );
    let blobs = mirror(&saving.machine).join("tenants/default");
    eventually("its content is in the mirror", || blobs.exists() && total_bytes(&blobs) > 20_000_000);
    assert_eq!(saving.files("bt://p@ahead/step"), None, "it is not seen there");
    fs::write(flag.join("change"), "").unwrap();
    fs::write(flag.join("go"), "").unwrap();
    let status = saving.ended(&number);
    assert_eq!(checkpoints(&status), [saved("step", true, 1)], "{status}");
    let log = job(&saving.machine, &["logs", &number]).succeeds();
    let model = ("model".to_owned(), log.split(' ').next().unwrap().to_owned());
    assert_eq!(saving.files("bt://p@ahead/step"), Some(Files::from([model, file("optimizer", "\n")])));
    assert!(total_bytes(&blobs) > 40_000_000, "both states of it were uploaded");
    saving.verify();

    // One that is not written to again is not uploaded again.
    fs::remove_file(flag.join("go")).unwrap();
    fs::remove_file(flag.join("change")).unwrap();
    let before = total_bytes(&blobs);
    let again = saving.submit(
        "once",
        &format!(
            "mkdir $BT_CHECKPOINT_DIR/step && cd $BT_CHECKPOINT_DIR/step && head -c 20000000 /dev/urandom > model
             exec 3> optimizer; while [ ! -e {0}/go ]; do echo more >&3; sleep 0.1; done; exec 3>&-",
            text(&flag)
        ),
    );
    eventually("its content is in the mirror", || total_bytes(&blobs) > before + 20_000_000);
    fs::write(flag.join("go"), "").unwrap();
    let status = saving.ended(&again);
    assert_eq!(checkpoints(&status), [saved("step", true, 1)], "{status}");
    let grown = total_bytes(&blobs) - before;
    assert!(grown < 21_000_000, "{grown}");
}

#[test]
fn checkpoints_of_safetensors_and_numpy_are_saved_as_they_were_closed() {
    let saving = SavingMachine::new();
    let script = "import hashlib, os, time
import numpy, safetensors.numpy
os.chdir(os.environ['BT_CHECKPOINT_DIR'])
def closed(path):
    with open(path, 'rb') as file:
        print(hashlib.sha256(file.read()).hexdigest(), path, flush=True)
for step in range(1, 4):
    os.makedirs(f'checkpoint-{step}')
    weights = {f'layer.{number}': numpy.random.rand(512, 512) for number in range(10)}
    safetensors.numpy.save_file(weights, f'checkpoint-{step}/model.safetensors')
    closed(f'checkpoint-{step}/model.safetensors')
    numpy.savez(f'checkpoint-{step}/optimizer.npz', **weights)
    closed(f'checkpoint-{step}/optimizer.npz')
    # One file that is written again and again, in place.
    numpy.save('latest.npy', weights['layer.0'])
    closed('latest.npy')
    open(f'checkpoint-{step}/trainer_state.json', 'w').close()
    closed(f'checkpoint-{step}/trainer_state.json')
    time.sleep(4)";
    let path = saving.machine.directory("specs").join("writer.py");
    fs::write(&path, script).unwrap();
    let number = saving.submit("real", &format!("{} {}", text(&python_path()), text(&path)));
    let status = saving.ended(&number);
    assert_eq!(status["state"], "TRAINING_JOB_COMPLETED", "{status}");
    let log = job(&saving.machine, &["logs", &number]).succeeds();
    let closed = |unit: &str| {
        let lines = log.lines().map(|line| line.split_once(' ').unwrap());
        let files =
            lines.filter_map(|(sum, path)| Some((path.strip_prefix(unit)?.to_owned(), sum.to_owned())));
        files.collect::<Files>()
    };
    for step in 1..=3 {
        let unit = format!("checkpoint-{step}");
        assert!(checkpoints(&status).contains(&saved(&unit, true, 1)), "{status}");
        assert_eq!(saving.files(&format!("bt://p@real/{unit}")), Some(closed(&format!("{unit}/"))));
    }
    let loose = saving.files("bt://p@real/.").unwrap();
    let last = log.lines().rfind(|line| line.ends_with("latest.npy")).unwrap().split(' ').next().unwrap();
    assert_eq!(loose, Files::from([("latest.npy".to_owned(), last.to_owned())]));
    saving.verify();
}

#[test]
fn checkpoint_of_a_job_whose_writers_are_not_all_known_is_torn() {
    let saving = SavingMachine::new();
    let flag = saving.machine.directory("flag");
    let command = format!(
        "cd $BT_CHECKPOINT_DIR && mkdir a b && echo a > a/model && touch a/.metadata
         while [ ! -e {}/go ]; do sleep 0.1; done; echo b > b/model; exit 3",
        text(&flag)
    );
    let number = saving.submit("unknown", &command);
    saving.await_event(&number, "saved a ");
    // It seals nothing from now on.
    let savers = saving.machine.savers();
    savers.iter().for_each(|pid| kill_process(*pid, Signal::STOP).unwrap());
    fs::write(flag.join("go"), "").unwrap();
    let path = saving.machine.cache().join("jobs").join(&number).join("ended.json");
    eventually("the job's commands end", || path.exists() && saving.machine.supervisors().is_empty());
    // As where its supervisor could not look at all processes in time.
    let mut end: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    end["cut_incomplete"] = json!(true);
    let draft = path.with_extension("draft");
    fs::write(&draft, end.to_string()).unwrap();
    fs::rename(draft, &path).unwrap();
    savers.iter().for_each(|pid| kill_process(*pid, Signal::CONT).unwrap());
    let status = saving.ended(&number);
    let torn = ("b".to_owned(), "torn".to_owned(), false, 0);
    assert_eq!(checkpoints(&status), [saved("a", true, 1), torn], "{status}");
    assert_eq!(saving.files("bt://p@unknown/b"), None, "{status}");
    let unknown = events(&status).iter().filter(|event| event.contains("before it was found")).count();
    assert_eq!(unknown, 1, "{status}");
}
