"""Operators of the pretrained network that ONNX lacks, written in those that it has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from onnxscript import DOUBLE, ir, script
from onnxscript import opset18 as op
from onnxscript.values import Opset
from torch import Tensor

aten = torch.ops.aten


def decompositions() -> dict[Any, Callable[..., Any]]:
    """For `torch.export`: running extremes, medians, and writing into parts of a tensor."""

    def running(x: Tensor, dim: int) -> Tensor:
        """The largest number so far."""
        least = -torch.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
        length, x, step = x.shape[dim], x.movedim(dim, -1), 1
        while step < length:  # twice as far back each time
            x = torch.maximum(x, torch.cat([torch.full_like(x[..., :step], least), x[..., :-step]], -1))
            step *= 2
        return x.movedim(-1, dim)

    # Places are not asked for.
    def cummax(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        return running(x, dim), torch.zeros_like(x, dtype=torch.long)

    def cummin(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        return -running(-x, dim), torch.zeros_like(x, dtype=torch.long)

    def nanmedian(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
        count = (~x.isnan()).sum(dim, keepdim=True)
        ordered = torch.where(x.isnan(), torch.inf, x).sort(dim).values
        median = torch.where(count > 0, ordered.gather(dim, ((count - 1) // 2).clamp(min=0)), torch.nan)
        median = median if keepdim else median.squeeze(dim)
        return median, torch.zeros_like(median, dtype=torch.long)

    def copy(x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
        return source.to(x.dtype).expand(x.shape).clone(memory_format=torch.contiguous_format)

    def empty_permuted(size: list[int], order: list[int], dtype: torch.dtype | None = None, **_: Any) -> Tensor:
        return torch.zeros(size, dtype=dtype)

    return torch.export.default_decompositions() | {
        aten.cummax.default: cummax,
        aten.cummin.default: cummin,
        aten.nanmedian.dim: nanmedian,
        aten.copy.default: copy,
        aten.empty_permuted.default: empty_permuted,
    }


@script(Opset("mvpa_ts", 1), default_opset=op)
def solve_positive(matrix: DOUBLE[...], right: DOUBLE[...]) -> DOUBLE[...]:
    both = op.Concat(matrix, right, axis=-1)
    size = op.Squeeze(op.Shape(matrix, start=-1))
    rows = op.Range(op.Constant(value_int=0), size, op.Constant(value_int=1))
    for index in range(size):  # each takes the first column away, in all rows
        column = op.Gather(both, 0, axis=-1)
        others = op.Slice(both, [1], op.Shape(both, start=-1), [-1])
        pivot = op.Gather(column, op.Unsqueeze(index, [0]), axis=-1)
        row = op.Gather(others, index, axis=-2) / pivot
        # What is taken from the pivot's own row leaves the row divided by the pivot.
        column = op.Where(rows == index, pivot - 1.0, column)
        both = others - op.Unsqueeze(column, [-1]) * op.Unsqueeze(row, [-2])
    return both


def translations() -> dict[Any, Callable[..., Any]]:
    """For `torch.onnx`: sorting, and equations of positive definite matrices, in double precision."""

    def solved(matrix: Any, right: Any) -> Any:
        double = ir.DataType.DOUBLE
        return op.CastLike(solve_positive(op.Cast(matrix, to=double), op.Cast(right, to=double)), right)

    # The factor is left to where it is used.
    def cholesky_ex(matrix: Any, upper: bool = False, check_errors: bool = False) -> Any:
        return matrix, op.Constant(value_int=0)

    def cholesky_solve(right: Any, matrix: Any, upper: bool = False) -> Any:
        return solved(matrix, right)

    def solve_ex(matrix: Any, right: Any, left: bool = True, check_errors: bool = False) -> Any:
        return solved(matrix, right), matrix, op.Constant(value_int=0), op.Constant(value_int=0)

    def stable_sort(x: Any, stable: bool = True, dim: int = -1, descending: bool = False) -> Any:
        return op.TopK(x, op.Gather(op.Shape(x), op.Constant(value_ints=[dim])), axis=dim, largest=descending)

    return {
        aten.sort.stable: stable_sort,
        aten.linalg_cholesky_ex.default: cholesky_ex,
        aten.cholesky_solve.default: cholesky_solve,
        aten._linalg_solve_ex.default: solve_ex,
    }
