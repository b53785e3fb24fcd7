# SPDX-License-Identifier: Apache-2.0
"""atoll.adapters.huggingface: the Trainer's steps are those of one process with the whole batch."""

import os
import subprocess
import sys
import tempfile
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import atoll
from client_ranks import on_layouts
from support import later, run_script
from test_loader import BATCH, EXACT, SAMPLES, UNMEASURED
from test_loader_steps import IGNORED, sentences
from training import check_close, check_equal_bits, network
from uneven_training import sgd

EPOCHS, SEED = 2, 5
VOCABULARY, LENGTH = 31, 12
UNEVEN: dict[str, Any] = {"policy": "fixed", "shares": [1, 4], "settings": UNMEASURED}


class Tagger(nn.Module):
    """A tagger whose loss is the mean over valid labels, or uses `num_items_in_batch` as transformers' models do."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor, **options: Any) -> dict[str, torch.Tensor]:
        from transformers.loss.loss_utils import fixed_cross_entropy

        logits = self.net(inputs)
        return {"loss": fixed_cross_entropy(logits.flatten(0, 1), labels.flatten(), **options), "logits": logits}


def tagged() -> list[dict[str, torch.Tensor]]:
    return [{"inputs": inputs, "labels": labels} for inputs, labels in sentences()]


def stack(samples: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}


def settings(**options: Any) -> Any:
    from transformers import TrainingArguments

    os.environ["LOCAL_WORLD_SIZE"] = os.environ["WORLD_SIZE"]  # as set by launchers
    given = {"output_dir": tempfile.mkdtemp(), "use_cpu": True, "num_train_epochs": EPOCHS, "learning_rate": 0.05,
             "lr_scheduler_type": "constant", "max_grad_norm": 0.0, "seed": SEED, "logging_steps": 1, "report_to": [],
             "save_strategy": "no", "disable_tqdm": True}  # fmt: skip
    return TrainingArguments(**(given | options))


def trainer(model: nn.Module, data: Any, uneven: dict[str, Any], **options: Any) -> Any:
    from atoll.adapters.huggingface import Trainer

    optimizers = (sgd(model.parameters()), None)
    return Trainer(model, settings(**options), train_dataset=data, data_collator=stack, optimizers=optimizers,
                   global_batch=BATCH, uneven=uneven)  # fmt: skip


def steps_of(samples: int) -> list[list[int]]:
    orders = [atoll.plan.permutation(samples, SEED, epoch) for epoch in range(EPOCHS)]
    return [list(order[first : first + BATCH]) for order in orders for first in range(0, samples, BATCH)]


def train_alone(model: nn.Module, data: Any, *, items: bool = False) -> list[float]:
    """Trains in one process. `items`: with the number of valid labels as the model's `num_items_in_batch`."""
    update = sgd(model.parameters())
    losses = []
    for chosen in steps_of(len(data)):
        update.zero_grad()
        batch = stack([data[index] for index in chosen])
        options = {"num_items_in_batch": (batch["labels"] != IGNORED).sum()} if items else {}
        loss = model(**batch, **options)["loss"]
        loss.backward()
        update.step()
        losses.append(loss.item())
    return losses


@on_layouts(later("AA"), "AAA")
def test_trains_as_one_process(rank: int, size: int) -> None:
    """With and without the Trainer's counting of labels for all ranks, and with and without parts; one of three
    ranks has no share."""
    shares = [1, 4] if size == 2 else [0, 3, 1]
    alone = Tagger()
    losses = train_alone(alone, tagged())
    for across, micro_batch in ((True, None), (False, None), (True, 2 + rank)):
        model = Tagger()
        run = trainer(
            model,
            tagged(),
            UNEVEN | {"shares": shares, "micro_batch": micro_batch},
            average_tokens_across_devices=across,
        )
        run.train()
        check_equal_bits(model)
        check_close(model, alone, EXACT)
        logged = [entry["loss"] for entry in run.state.log_history if "loss" in entry]
        assert torch.allclose(torch.tensor(logged), torch.tensor(losses), atol=1e-4)  # the Trainer's own rounding


def sentences_of(vocabulary: int) -> list[dict[str, torch.Tensor]]:
    """Returns sentences of different lengths; the rest of the labels is masked."""
    chance = torch.Generator().manual_seed(1)
    tokens = torch.randint(vocabulary, (SAMPLES, LENGTH), generator=chance)
    labels = tokens.clone()
    for row, length in zip(labels, torch.randint(2, LENGTH, (SAMPLES,), generator=chance), strict=True):
        row[length:] = IGNORED
    return [{"input_ids": row, "labels": label} for row, label in zip(tokens, labels, strict=True)]


def language_model(kind: str) -> nn.Module:
    import transformers

    torch.manual_seed(3)
    none = {"bos_token_id": None, "eos_token_id": None, "vocab_size": VOCABULARY}
    if kind == "gpt2":
        config = transformers.GPT2Config(n_positions=LENGTH, n_embd=16, n_layer=1, n_head=2, resid_pdrop=0,
                                         embd_pdrop=0, attn_pdrop=0, **none)  # fmt: skip
        return transformers.GPT2LMHeadModel(config).double()
    config = transformers.LlamaConfig(hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
                                      **none)  # fmt: skip
    return transformers.LlamaForCausalLM(config).double()


@on_layouts("AA")
def test_language_models(rank: int, size: int) -> None:
    """Labels are shifted by one, and transformers computes the loss in single precision. The Trainer does not know
    that GPT-2 shifts them, and divides by more labels than its loss has, also in one process."""
    data = sentences_of(VOCABULARY)
    for kind, items in (("llama", False), ("gpt2", True)):
        alone, model = language_model(kind), language_model(kind)
        train_alone(alone, data, items=items)
        trainer(model, data, UNEVEN).train()
        check_close(model, alone, 1e-6)


@on_layouts("AA")
def test_what_contradicts_is_refused(rank: int, size: int) -> None:
    with pytest.raises(ValueError, match="gradient_accumulation_steps=2: leave it at 1"):
        trainer(Tagger(), tagged(), UNEVEN, gradient_accumulation_steps=2)
    with pytest.raises(ValueError, match="include_num_input_tokens_seen"):
        trainer(Tagger(), tagged(), UNEVEN, include_num_input_tokens_seen="all")
    with pytest.raises(
        ValueError, match=r"'group_by_length' is not supported .*: use one of \['random', 'sequential'\], or "
    ):
        trainer(Tagger(), tagged(), UNEVEN, train_sampling_strategy="group_by_length")
    with pytest.raises(ValueError, match="Trainer: training requires a train_dataset"):
        trainer(Tagger(), None, UNEVEN).train()


@on_layouts("AA")
def test_resumes(rank: int, size: int) -> None:
    """Resumes at the beginning of an epoch and in its middle, with other shares."""
    alone = Tagger()
    train_alone(alone, tagged())
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder)
    kept = {"output_dir": folder[0], "save_strategy": "steps", "save_steps": 1}
    trainer(Tagger(), tagged(), UNEVEN, **kept).train()
    per_epoch = -(-SAMPLES // BATCH)
    for done in (per_epoch, per_epoch + 3, 2):
        model = Tagger()
        run = trainer(model, tagged(), UNEVEN | {"shares": [2, 1]}, **(kept | {"save_strategy": "no"}))
        run.train(resume_from_checkpoint=f"{folder[0]}/checkpoint-{done}")
        check_close(model, alone, EXACT)
        assert run.state.global_step == EPOCHS * per_epoch
        epochs = [entry["epoch"] for entry in run.state.log_history if "loss" in entry]
        assert epochs == pytest.approx([(step + 1) / per_epoch for step in range(EPOCHS * per_epoch)], abs=1e-3)


@on_layouts("AA")
def test_measured_shares(rank: int, size: int) -> None:
    """Without `uneven`, every rank first runs the model to measure it, which leaves no trace."""
    alone, model = Tagger(), Tagger()
    train_alone(alone, tagged())
    run = trainer(model, tagged(), {})
    run.train()
    assert all(facts.profile is not None for facts in run._steps.loader.planner.facts)
    check_close(model, alone, EXACT)


def test_libraries_are_left_alone() -> None:
    """`import atoll` and its loader import none of them; adapters name what is missing."""
    libraries = {"accelerate", "transformers", "lightning"}
    program = f"import sys, atoll; atoll.DataLoader; assert not {libraries} & {{*sys.modules}}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_a_missing_library_is_named() -> None:
    source = """
import sys
sys.modules["transformers"] = None
try:
    import atoll.adapters.huggingface
except ImportError as error:
    assert "pip install transformers accelerate" in str(error)
else:
    sys.exit("no error")
"""
    (done,) = run_script(source, 1)
    assert done.returncode == 0, done.stderr
