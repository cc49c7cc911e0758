"""The transformer block and the stack, against their equations."""

import pytest
import torch
from torch.nn import functional as F

from mvpa_ts.attention import MVPAttention
from mvpa_ts.blocks import MVPAStack, ParallelBlock, SwiGLU

T, C, D = 5, 3, 16


def make_block(dropout: float = 0.0) -> ParallelBlock:
    return ParallelBlock(MVPAttention(D, num_heads=2, causal=False), SwiGLU(D, 24, dropout), D, dropout)


def make_stack(count: int = 2) -> MVPAStack:
    torch.manual_seed(0)
    return MVPAStack([make_block() for _ in range(count)], D, time_rows=2 * T - 1, channel_rows=C).double()


def make_tokens() -> torch.Tensor:
    return torch.randn(2, T, C, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def test_swiglu_equation():
    torch.manual_seed(0)
    mlp, x = SwiGLU(D, 24).double(), make_tokens()
    gate, up, down = (layer.weight for layer in (mlp.gate, mlp.up, mlp.down))
    torch.testing.assert_close(mlp(x), (F.silu(x @ gate.T) * (x @ up.T)) @ down.T)


def test_block_adds_both_branches_of_one_norm():
    stack, x = make_stack(1), make_tokens()
    (block,) = stack.blocks
    with torch.no_grad():
        block.norm.weight.uniform_(0.5, 2.0)
    normed = rms_norm(x, block.norm.weight)
    attended = block.attention(normed, stack.time_codebook, stack.channel_codebook)
    expected = x + attended + block.mlp(normed)
    torch.testing.assert_close(block(x, stack.time_codebook, stack.channel_codebook), expected)


def test_stack_ends_in_a_norm_and_shares_its_codebooks():
    stack, x = make_stack(), make_tokens()
    expected = x
    for block in stack.blocks:
        expected = block(expected, stack.time_codebook, stack.channel_codebook)
    output = stack(x)
    torch.testing.assert_close(output, rms_norm(expected, stack.norm.weight))
    output.square().sum().backward()
    codebooks = [name for name, _ in stack.named_parameters() if "codebook" in name]
    assert codebooks == ["time_codebook", "channel_codebook"]
    assert stack.time_codebook.grad.any(1).all()
    assert stack.channel_codebook.grad.any(1).all()


@pytest.mark.parametrize("count", [1, 3])
def test_masked_tokens_reach_no_other(count):
    stack, x = make_stack(count), make_tokens()
    mask = torch.rand(2, T, C, generator=torch.Generator().manual_seed(2)) > 0.4
    clean, poisoned = (
        stack(x.masked_fill(~mask[..., None], value), token_mask=mask)[mask] for value in (0.0, float("nan"))
    )
    assert clean.isfinite().all()
    assert torch.equal(clean, poisoned)


def test_dropout_in_training_only():
    torch.manual_seed(0)
    block, x = make_block(dropout=0.5).double(), make_tokens()
    codebooks = torch.randn(2 * T - 1, D).double(), torch.randn(C, D).double()
    assert not torch.equal(block(x, *codebooks), block(x, *codebooks))
    block.eval()
    assert torch.equal(block(x, *codebooks), block(x, *codebooks))
