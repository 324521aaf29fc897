"""PyTorch Lightning with loose files: the two newest checkpoints, and last.ckpt, which is written again and again in place."""

import closed

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback, ModelCheckpoint

# Steps between checkpoints.
EVERY = 3


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Linear(512, 512))

    def training_step(self, batch, _):
        loss = self.layers(batch).square().mean()
        self.log("step", float(self.global_step))
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())

    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.rand(4096, 512), batch_size=8)


class Pace(Callback):
    # Checkpoints are written at the end of a batch, after all else that happens there.
    def on_train_batch_start(self, trainer, model, batch, index):
        if trainer.global_step and trainer.global_step % EVERY == 0:
            closed.whole(".")
            closed.pause()
        trainer.should_stop = closed.stopped()

    def on_fit_end(self, trainer, model):
        closed.whole(".")


if last := closed.loaded("last.ckpt"):
    closed.resumed(torch.load(last, weights_only=False)["global_step"])
checkpoints = ModelCheckpoint(
    dirpath=closed.ROOT, save_last=True, save_top_k=2, monitor="step", mode="max", every_n_train_steps=EVERY
)
pl.Trainer(
    accelerator="cpu",
    max_steps=1_000_000,
    callbacks=[Pace(), checkpoints],
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
).fit(Model(), ckpt_path=last)
