"""Hugging Face Trainer with a tiny Llama, which keeps its two newest checkpoints, and resumes from the one that was loaded."""

import closed

import safetensors.torch
import torch
import transformers.modeling_utils
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

closed.after(torch, "save", 1)
closed.after(safetensors.torch, "save_file", 1)
closed.after(transformers.modeling_utils, "safe_save_file", 1)


class Pace(TrainerCallback):
    def on_train_begin(self, args, state, control, **_):
        if state.global_step:
            closed.resumed(state.global_step)

    def on_save(self, args, state, control, **_):
        closed.whole(f"checkpoint-{state.global_step}")
        closed.pause()

    def on_step_end(self, args, state, control, **_):
        control.should_training_stop = closed.stopped()


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        tokens = torch.randint(4096, (16,))
        return {"input_ids": tokens, "labels": tokens}


config = LlamaConfig(
    vocab_size=4096, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4
)
arguments = TrainingArguments(
    output_dir=closed.ROOT,
    per_device_train_batch_size=4,
    max_steps=1_000_000,
    save_steps=3,
    save_total_limit=2,
    use_cpu=True,
    report_to=[],
    disable_tqdm=True,
)
trainer = Trainer(LlamaForCausalLM(config), arguments, train_dataset=Tokens(), callbacks=[Pace()])
trainer.train(resume_from_checkpoint=closed.loaded("checkpoint-"))
