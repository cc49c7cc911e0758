"""Steps of training of MVPFormer divided among processes: sharded weights (FSDP2), divided heads, or both.

Each step is on noise; the loss is the mean square of the prediction. Printed are the weights that a process holds, the
loss, the seconds and, on GPUs, the peak memory of each step. On one machine with 8 GPUs, heads in two:

    torchrun --nproc-per-node 8 experiments/ieeg/model_parallel.py --size m --tensor 2
    torchrun --nproc-per-node 2 experiments/ieeg/model_parallel.py --size tiny --segments 4 --channels 3   # on a CPU
    python experiments/ieeg/model_parallel.py --quick                                                      # one process
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # the harness

import torch
from harness.command_line import script_parser
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy

from mvpa_ts.ieeg import MVPFormer, mvpformer_m, mvpformer_s, mvpformer_tiny
from mvpa_ts.ieeg.constants import SEGMENT_SAMPLES
from mvpa_ts.ieeg.training.parallel import clip_gradients, parallelize

SIZES = {"tiny": mvpformer_tiny, "s": mvpformer_s, "m": mvpformer_m}


def main() -> None:
    """Take the steps, in every process that torchrun has started."""
    arguments = parse_arguments()
    gpus = torch.cuda.is_available() and not arguments.quick
    if arguments.quick:  # without torchrun: one process, at any free port
        os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    if "RANK" not in os.environ:
        raise SystemExit("start me by torchrun, as `torchrun --nproc-per-node 2 experiments/ieeg/model_parallel.py`")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if gpus else "gloo")
    rank, processes = distributed.get_rank(), distributed.get_world_size()
    if processes % arguments.tensor:
        raise SystemExit(f"--tensor {arguments.tensor} does not divide the number of processes, {processes}")
    mesh = init_device_mesh(
        device.type, (processes // arguments.tensor, arguments.tensor), mesh_dim_names=("data", "tensor")
    )
    torch.manual_seed(0)
    model = MVPFormer(SIZES[arguments.size](dropout=0.0)).to(device)
    model.set_gradient_checkpointing(arguments.checkpointing)
    precision = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False) if gpus else None
    parallelize(model, mesh, precision=precision)
    held = sum(getattr(parameter, "_local_tensor", parameter).numel() for parameter in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1)
    # Processes that share heads read the same batch.
    generator = torch.Generator().manual_seed(mesh["data"].get_local_rank())
    samples = arguments.segments * SEGMENT_SAMPLES
    for step in range(arguments.steps):
        started = time.perf_counter()
        signal = torch.randn(arguments.batch, arguments.channels, samples, generator=generator).to(device)
        loss = model.predict_next(signal).float().square().mean()
        loss.backward()
        norm = clip_gradients(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            memory = f", {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB" if gpus else ""
            seconds = time.perf_counter() - started
            print(
                f"step {step + 1}: loss {loss.item():.4f}, gradient {norm.item():.3g}, {seconds:.2f} s{memory}; "
                f"{held / 1e6:.2f} of {sum(p.numel() for p in model.parameters()) / 1e6:.2f} M weights in process 0"
            )
    distributed.destroy_process_group()


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = script_parser(__doc__, "one process, a tiny model and window")
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--tensor", type=int, default=1, help="processes that share the heads (default 1: none)")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--batch", type=int, default=2, help="windows of a process (default 2)")
    parser.add_argument("--segments", type=int, default=20)
    parser.add_argument("--channels", type=int, default=16)
    parser.add_argument("--checkpointing", action="store_true", help="recompute each block in the backward pass")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.size, arguments.segments, arguments.channels, arguments.steps = "tiny", 3, 2, 1
    return arguments


if __name__ == "__main__":
    main()
