# SPDX-License-Identifier: Apache-2.0
"""Trains a byte-level language model, divided among the ranks, on the source of Python's standard library.

atoll run --island fast:1,device=cpu --island slow:1,device=cpu examples/train_pipeline.py
atoll run --island a:2,device=cpu --island b:2,device=cpu examples/train_pipeline.py --replicas 2 --plan 3,1
torchrun --nproc-per-node 2 examples/train_pipeline.py --model gpt2 --schedule gpipe

Without --plan the devices are measured and the fastest plan is used. Prints the plan, the loss, and the loss on files
that training never sees."""

import argparse
import sysconfig
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Dataset

import atoll

SEED = 2024
BYTES = 256


class Source(Dataset[torch.Tensor]):
    """Sequences of bytes from the files; every tenth file is held out."""

    def __init__(self, tokens: int, pieces: int, held_out: bool) -> None:
        files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        chosen = [file for number, file in enumerate(files) if (number % 10 == 0) == held_out]
        text = bytearray()
        for file in chosen:
            if len(text) < tokens * pieces:
                text += file.read_bytes()
        count = min(pieces, len(text) // tokens)
        self.rows = torch.frombuffer(text[: count * tokens], dtype=torch.uint8).long().view(count, tokens)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index]


def make(kind: str, blocks: int, width: int, tokens: int) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    if kind == "gpt2":
        return GPT2LMHeadModel(GPT2Config(
            vocab_size=BYTES, n_positions=tokens, n_embd=width, n_layer=blocks, n_head=4, resid_pdrop=0, embd_pdrop=0,
            attn_pdrop=0, bos_token_id=0, eos_token_id=0,
        ))  # fmt: skip
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=BYTES, hidden_size=width, intermediate_size=3 * width, num_hidden_layers=blocks,
        num_attention_heads=4, max_position_embeddings=tokens, bos_token_id=0, eos_token_id=0,
    ))  # fmt: skip


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("llama", "gpt2"), default="llama")
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--micro-batches", type=int, default=4, help="micro-batches of each pipeline in a step")
    parser.add_argument("--plan", default="auto", help='auto, equal, or blocks of each stage such as "3,1"')
    parser.add_argument("--schedule", default="1f1b")
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--save", default="", metavar="FOLDER", help="write a checkpoint at the end")
    return parser.parse_args()


def main() -> None:
    chosen = options()
    plan = [int(count) for count in chosen.plan.split(",")] if chosen.plan[0].isdigit() else chosen.plan
    torch.manual_seed(SEED)
    dist.init_process_group("atoll")
    data = Source(chosen.tokens, chosen.batch * chosen.steps, held_out=False)
    pipe = atoll.pipeline.Pipeline(
        lambda: make(chosen.model, chosen.blocks, chosen.width, chosen.tokens), data.rows[: chosen.batch],
        micro_batches=chosen.micro_batches, plan=plan, schedule=chosen.schedule, replicas=chosen.replicas, seed=SEED,
    )  # fmt: skip
    is_first = dist.get_rank() == 0
    if is_first:
        print(pipe)
    optimizer = torch.optim.AdamW(pipe.parameters(), lr=3e-3, foreach=False)
    loader = pipe.loader(data, chosen.batch, seed=SEED)
    for step, rows in enumerate(loader, start=1):
        loss = pipe.step(rows, rows)
        pipe.clip_grad_norm_(1.0)
        optimizer.step()
        if is_first and (step % 10 == 0 or step == len(loader)):
            print(f"step {step} of {len(loader)}: loss {loss.item():.4f}", flush=True)
    test = pipe.loader(Source(chosen.tokens, 4 * chosen.batch, held_out=True), chosen.batch, shuffle=False)
    losses = [pipe.eval().evaluate(rows, rows).item() for rows in test]
    if is_first:
        print(f"loss on held-out files: {sum(losses) / len(losses):.4f}")
    if chosen.save:
        pipe.save(chosen.save, optimizer, loader=loader.state_dict())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
