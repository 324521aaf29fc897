//! Models that transformers loads by their name, without a network, from mounts with the layout of the Hub's cache.

use std::fs;
use std::path::Path;
use std::process::Command;

use bdnfs_tests::hub::HubServer;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::tools::{run, writers_python_path};

/// Writes a small model with its tokenizer into a directory.
const SAVE: &str = r#"
import os, sys, torch
from transformers import BertConfig, BertModel, BertTokenizer
torch.manual_seed(1)
directory = sys.argv[1]
os.makedirs(directory)
words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "weights", "in", "a", "mount"]
vocabulary = os.path.join(directory, "words.txt")
with open(vocabulary, "w") as file:
    file.write("\n".join(words))
BertTokenizer(vocabulary).save_pretrained(directory)
config = BertConfig(vocab_size=len(words), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
BertModel(config).save_pretrained(directory)
os.remove(vocabulary)
"#;

/// Loads a model by its name or directory, and prints what it makes of a sentence.
const LOAD: &str = r#"
import hashlib, sys, torch
from transformers import AutoModel, AutoTokenizer
tokenizer, model = (kind.from_pretrained(sys.argv[1]) for kind in (AutoTokenizer, AutoModel))
words = tokenizer("weights in a mount", return_tensors="pt")
assert words["input_ids"].tolist() == [[2, 5, 6, 7, 8, 3]], words
with torch.no_grad():
    print(hashlib.sha256(model.eval()(**words).last_hidden_state.numpy().tobytes()).hexdigest())
"#;

#[test]
#[ignore = "needs PyTorch and transformers: scripts/training-libraries; cargo nextest run --test compatibility --run-ignored all transformers"]
fn model_is_loaded_by_its_name_from_a_mount_with_the_layout_of_the_hub_cache() {
    let Some(python) = writers_python_path() else { return };
    let hub = HubServer::start();
    let machine = Machine::new().env("HF_ENDPOINT", hub.url());
    let saved = machine.directory("out").join("tiny");
    let python = |script: &str, argument: &str, cache: &Path| {
        let mut command = Command::new(&python);
        command.args(["-c", script, argument]).env("HF_HUB_CACHE", cache).env("HF_HUB_OFFLINE", "1");
        run(command.env("HF_HOME", machine.directory("home-of-the-hub")))
    };
    let nowhere = machine.directory("nowhere");
    python(SAVE, saved.to_str().unwrap(), &nowhere);
    let expected = python(LOAD, saved.to_str().unwrap(), &nowhere);

    let files: Vec<_> = fs::read_dir(&saved)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
        .collect();
    let files: Vec<_> = files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
    hub.publish("models/owner/tiny", "main", &files);
    for (place, options) in
        [("lazy", &[][..]), ("staged", &["--wait"]), ("native", &["--wait", "--via", "native"])]
    {
        let options = [options, &["--layout", "hf-cache"]].concat();
        let point = machine.mount_with("hf://owner/tiny", place, &options);
        assert_eq!(python(LOAD, "owner/tiny", &point), expected, "{place}");
        machine.umount(&point);
    }
}
