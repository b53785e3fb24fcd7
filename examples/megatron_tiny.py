# SPDX-License-Identifier: Apache-2.0
"""Trains a tiny GPTModel of Megatron-Core on the source of Python's standard library, divided among two ranks or more.

atoll run --island a:1,device=cpu --island b:1,device=cpu examples/megatron_tiny.py --layout pipeline
torchrun --nproc-per-node 2 examples/megatron_tiny.py --layout tensor --backend gloo

--layout divides the layers, their contents, or the batches; model, schedule, gradients and distributed optimizer are
Megatron-Core's own. Megatron-Core requests CUDA by name in places, where this program uses the CPU instead
(docs/frameworks.md). Prints the loss of each step."""

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel.random import initialize_rng_tracker
from megatron.core.transformer import TransformerConfig
from torch.overrides import TorchFunctionMode

from train_pipeline import BYTES, Source

SEED = 2024
TOKENS, ROWS, MICRO_BATCHES = 32, 4, 4


class WithoutCuda(TorchFunctionMode):
    """Makes tensors that are requested on "cuda" on the CPU, and reports a CUDA type when Megatron-Core queries it."""

    def __init__(self) -> None:
        super().__init__()
        self.device = torch.device("cpu")
        torch.cuda.current_device = lambda: self.device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return args[0].to(self.device)
        if func is torch.Tensor.type and len(args) == 1:
            return f"torch.cuda.{args[0].type().rpartition('.')[2]}"
        if str(kwargs.get("device")).startswith("cuda"):
            kwargs["device"] = self.device
        return func(*args, **kwargs)


def make_model(layout: str, ranks: int) -> DistributedDataParallel:
    """Returns this rank's part of the model, with its original weights."""
    divided = {layout: ranks}
    stages, parts = divided.get("pipeline", 1), divided.get("tensor", 1)
    parallel_state.initialize_model_parallel(parts, stages, create_gloo_process_groups=False)
    initialize_rng_tracker(inference_rng_tracker=True)  # training's own keeps the states of CUDA's generators
    config = TransformerConfig(
        num_layers=2 * ranks, hidden_size=32, num_attention_heads=4, attention_dropout=0, hidden_dropout=0,
        tensor_model_parallel_size=parts, pipeline_model_parallel_size=stages, pipeline_dtype=torch.float32,
        use_cpu_initialization=True, batch_p2p_sync=False, bias_activation_fusion=False, bias_dropout_fusion=False,
        finalize_model_grads_func=finalize_model_grads,
    )  # fmt: skip
    torch.manual_seed(SEED)
    model = GPTModel(
        config, get_gpt_layer_local_spec(), vocab_size=BYTES, max_sequence_length=TOKENS,
        pre_process=parallel_state.is_pipeline_first_stage(), post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=True,
    )  # fmt: skip
    return DistributedDataParallel(config, DistributedDataParallelConfig(use_distributed_optimizer=True), model)


def micro_batches() -> Iterator[torch.Tensor]:
    """Yields the micro-batches of this rank's replica, without end."""
    rows = Source(TOKENS + 1, 256, held_out=False).rows
    first, step = parallel_state.get_data_parallel_rank(), parallel_state.get_data_parallel_world_size()
    while True:
        yield from rows.split(ROWS)[first::step]


def forward(data: Iterator[torch.Tensor], model: Any) -> tuple[torch.Tensor, Callable[..., Any]]:
    rows = next(data)
    positions = torch.arange(TOKENS).expand(len(rows), -1)
    later = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
    output = model(rows[:, :-1], positions, later[None, None], labels=rows[:, 1:])

    def loss_of(losses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return losses.mean(), losses.detach().mean()

    return output, loss_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="atoll")
    parser.add_argument("--layout", choices=("data", "pipeline", "tensor"), default="pipeline")
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(arguments.backend)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    with WithoutCuda():
        model = make_model(arguments.layout, ranks)
        group = parallel_state.get_pipeline_model_parallel_group()
        if rank == 0:
            print(f"{arguments.layout} over {dist.get_backend(group)}, {ranks} ranks", flush=True)
        settings = OptimizerConfig(lr=1e-2, clip_grad=1.0, use_distributed_optimizer=True)
        optimizer = get_megatron_optimizer(settings, [model], use_gloo_process_groups=False)
        count = MICRO_BATCHES // parallel_state.get_data_parallel_world_size()
        schedule = partial(
            get_forward_backward_func(), forward_step_func=forward, data_iterator=micro_batches(), model=[model],
            num_microbatches=count, seq_length=TOKENS, micro_batch_size=ROWS, forward_only=False,
        )  # fmt: skip
        for step in range(arguments.steps):
            model.zero_grad_buffer()
            optimizer.zero_grad()
            losses = schedule()
            optimizer.step()
            loss = torch.stack(losses).mean() if losses else torch.zeros(())  # only the last stage has losses
            dist.all_reduce(loss)
            loss /= 1 if arguments.layout == "pipeline" else ranks
            if rank == 0:
                print(f"step {step}: loss {loss.item():.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
