"""MVPFormer over several processes: one step of training gives the weights of one process."""

import pytest
import torch
import torch.multiprocessing as mp
from support.distributed_mvpformer import NORM, batch, model, process, step
from torch import distributed

from mvpa_ts.ieeg import MVPFormer, mvpformer_tiny

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="this torch has no distributed training")
MESHES = {"data": ((2,), ("data",)), "tensor": ((2,), ("tensor",)), "both": ((2, 2), ("data", "tensor"))}


@pytest.mark.parametrize("kind", ["data", "tensor", pytest.param("both", marks=pytest.mark.slow)])
def test_one_step_is_that_of_one_process(kind, tmp_path):
    shape, axes = MESHES[kind]
    processes = torch.Size(shape).numel()
    mp.spawn(process, (shape, axes, str(tmp_path)), nprocs=processes)
    alone = model()
    before = {name: tensor.clone() for name, tensor in alone.state_dict().items()}
    loss, norm = step(alone, *batch())
    assert norm > NORM
    results = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(processes)]
    assert sum(result["loss"] for result in results) / processes == pytest.approx(loss, rel=1e-12)
    expected = alone.state_dict()
    assert results[0]["state"].keys() == expected.keys()
    for name, tensor in expected.items():
        assert not torch.equal(tensor, before[name]) or not tensor.any(), f"{name} did not learn"
        torch.testing.assert_close(results[0]["state"][name], tensor, atol=1e-9, rtol=1e-9, msg=name)
    assert all(result["norm"] == pytest.approx(norm, rel=1e-9) for result in results)
    whole = sum(parameter.numel() for parameter in alone.stack.blocks.parameters())
    assert max(result["held"] for result in results) < whole * (0.3 if kind == "both" else 0.55)


def test_heads_that_cannot_be_divided_are_refused():
    from types import SimpleNamespace

    from mvpa_ts.ieeg.training.parallel import divide_heads, parallelize

    mesh = SimpleNamespace(size=lambda: 4, mesh_dim_names=("pipeline",))
    network = MVPFormer(mvpformer_tiny(num_heads=4, num_kv_heads=2))
    with pytest.raises(ValueError, match=r"num_kv_heads \(2\) must be a multiple of the mesh's 'tensor' size \(4\)"):
        divide_heads(network, mesh)
    with pytest.raises(ValueError, match=r"axes 'data', 'tensor', or 'data' and 'tensor', got \('pipeline',\)"):
        parallelize(network, mesh)
    with pytest.raises(ValueError, match="model must have attention='mvpa' for its heads to be divided"):
        divide_heads(MVPFormer(mvpformer_tiny(attention="llama")), mesh)
