# SPDX-License-Identifier: Apache-2.0
"""Trains the network of train_digits.py with the Trainer of Hugging Face transformers, on uneven batches.

atoll run --island a:1,device=cpu --island b:1,device=cpu examples/digits_trainer.py

Rank 0 takes three quarters of each batch, as if it were three times as fast; without `uneven` the ranks are measured.
The network learned is that of one process with batches of 64."""

import tempfile

import torch
import torch.distributed as dist
from torch import nn
from transformers import TrainingArguments

import atoll
from atoll.adapters.huggingface import Trainer
from train_digits import SEED, accuracy, load_data, make_network

EPOCHS = 4


class Digits(nn.Module):
    """The network and its loss, as the Trainer expects them."""

    def __init__(self) -> None:
        super().__init__()
        self.net = make_network()

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.net(images)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("atoll")  # before TrainingArguments, which would make their own group
    torch.manual_seed(SEED)
    train_data, test_data = load_data()
    model = Digits()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, use_cpu=atoll.device().type == "cpu", num_train_epochs=EPOCHS, learning_rate=2e-3, seed=SEED,
            lr_scheduler_type="constant", save_strategy="no", logging_strategy="epoch", report_to=[],
            disable_tqdm=True, ddp_find_unused_parameters=False,
        )  # fmt: skip
        trainer = Trainer(
            model, arguments, train_dataset=[{"images": image, "labels": label} for image, label in train_data],
            global_batch=64, uneven={"policy": "fixed", "shares": [3.0] + [1.0] * (dist.get_world_size() - 1)},
        )  # fmt: skip
        trainer.train()
    if dist.get_rank() == 0:
        print(f"accuracy on the held-out fifth: {accuracy(model.net, test_data):.1%}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
