"""MVPFormer over several processes, with plain torch.distributed: sharded weights (FSDP2) and divided heads.

Processes form a mesh with the axes "data" and "tensor". The processes of a "tensor" group read the same batch and share
the work: each has some of the heads and a part of every gated MLP. Their results are summed, twice in a block. Along
"data" every process has another batch and keeps a part of the weights, which are gathered block by block when needed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from mvpa_ts.ieeg.model.mvpformer import MVPFormer

_COLUMNS = ("attention.query", "attention.key", "attention.value", "attention.time_key", "attention.channel_key")
_PLAN: dict[str, ParallelStyle] = {name: ColwiseParallel() for name in (*_COLUMNS, "mlp.gate", "mlp.up")}
_PLAN |= {name: RowwiseParallel() for name in ("attention.output", "mlp.down")}


def parallelize(model: MVPFormer, mesh: DeviceMesh, *, precision: MixedPrecisionPolicy | None = None) -> MVPFormer:
    """Divide a model among the processes of a mesh, in place; make the optimizer afterwards.

    Parameters
    ----------
    model : MVPFormer
        The same in all processes. Weights that are divided by heads are taken from the first process.
    mesh : DeviceMesh
        With an axis "data", or "tensor", or both in this order.
    precision : MixedPrecisionPolicy, optional
        For the sharded weights, for example ``MixedPrecisionPolicy(torch.bfloat16, torch.float32,
        cast_forward_inputs=False)``, which keeps signals in float32 until they are embedded.

    Returns
    -------
    MVPFormer
        The model. Divided parameters are DTensors;
        ``torch.distributed.checkpoint.state_dict.get_model_state_dict`` joins them.

    Raises
    ------
    ValueError
        The mesh has other axes, or key/value heads or the MLP cannot be divided by the size of "tensor".

    Notes
    -----
    Processes of a "tensor" group must draw the same dropout: seed them alike.

    Examples
    --------
    In a program that torchrun has started on 8 GPUs::

        mesh = init_device_mesh("cuda", (4, 2), mesh_dim_names=("data", "tensor"))
        model = parallelize(MVPFormer(mvpformer_m()).cuda(), mesh)
    """
    axes = mesh.mesh_dim_names or ()
    if axes not in (("data",), ("tensor",), ("data", "tensor")):
        raise ValueError(f"mesh must have the axes 'data', 'tensor', or 'data' and 'tensor', got {axes}")
    if "tensor" in axes:
        divide_heads(model, mesh["tensor"])
    if "data" in axes:
        for module in (*model.stack.blocks, model):
            fully_shard(module, mesh=mesh["data"], mp_policy=precision or MixedPrecisionPolicy())
        # A training calls these beside the model itself; weights outside of the blocks are gathered for them too.
        for method in ("encode", "encode_onward", "decode", "predict", "classify"):
            register_fsdp_forward_method(model, method)
    return model


def divide_heads(model: MVPFormer, mesh: DeviceMesh) -> None:
    """Give each process of a mesh with one axis some heads and a part of the MLP, in every block."""
    config, size = model.config, mesh.size()
    if config.attention != "mvpa":
        raise ValueError(f"model must have attention='mvpa' for its heads to be divided, got {config.attention!r}")
    for name in ("num_kv_heads", "mlp_dim"):
        # Query heads share key heads, so a process must hold whole groups of them.
        if (count := getattr(config, name)) % size:
            raise ValueError(f"{name} ({count}) must be a multiple of the mesh's 'tensor' size ({size})")
    for block in model.stack.blocks:
        parallelize_module(block, mesh, _PLAN)
        attention: Any = block.attention
        for name in ("content_bias", "time_bias", "channel_bias"):
            # One bias a head: it must lie where its head is.
            bias = distribute_tensor(getattr(attention, name).detach(), mesh, [Shard(0)])
            setattr(attention, name, nn.Parameter(bias))


def clip_gradients(parameters: Iterable[nn.Parameter], largest: float) -> Tensor:
    """Scale gradients so that their norm over all processes is at most `largest`; return the norm before."""
    of_mesh: dict[DeviceMesh | None, list[nn.Parameter]] = defaultdict(list)
    for parameter in parameters:
        if parameter.grad is not None:
            of_mesh[parameter.grad.device_mesh if isinstance(parameter.grad, DTensor) else None].append(parameter)
    norms = []
    for group in of_mesh.values():
        norm = nn.utils.get_total_norm([parameter.grad for parameter in group if parameter.grad is not None])
        # Gradients of one mesh are divided in one way, and only their norms can be put together.
        norms.append(norm.full_tensor() if isinstance(norm, DTensor) else norm)
    total = torch.linalg.vector_norm(torch.stack(norms))
    for group in of_mesh.values():
        nn.utils.clip_grads_with_norm_(group, largest, total)
    return total
