"""Weights that the package ships: a `BaseForecaster` trained on made-up series, and forecasts of any length with it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mvpa_ts.files import read_config, write_bytes
from mvpa_ts.forecasting.base import LEVELS, BaseConfig, BaseForecaster
from mvpa_ts.forecasting.quantiles import quantiles_at
from mvpa_ts.weights import load_strictly, read_weights

NAMES = ("base",)
"""Names of the forecasters that the package holds."""
PATHS = 16
"""Paths drawn where the horizon is longer than the network's own."""
_CONFIG, _WEIGHTS, _CARD = "config.json", "model.safetensors", "README.md"


def load_base(name: str | Path = "base") -> BaseForecaster:
    """A pretrained forecaster, in evaluation mode.

    Parameters
    ----------
    name : str or path
        A name of `NAMES`, or a folder that `save_base` wrote.

    Raises
    ------
    FileNotFoundError
        There is no such forecaster.
    ValueError
        The folder holds something else, or weights that do not fit.

    Examples
    --------
    >>> import torch
    >>> from mvpa_ts.forecasting.pretrained import load_base
    >>> load_base("base")(torch.randn(1, 48, 3)).shape  # 48 steps of three series
    torch.Size([1, 64, 3, 9])
    """
    if str(name) in NAMES:
        with resources.as_file(resources.files("mvpa_ts.forecasting") / "weights" / str(name)) as folder:
            return _read(folder)
    folder = Path(name)
    if not (folder / _CONFIG).is_file():
        raise FileNotFoundError(
            f"there is no forecaster {name}: name one of {', '.join(NAMES)} or a folder with {_CONFIG}"
        )
    return _read(folder)


def save_base(network: BaseForecaster, folder: str | Path, card: str = "") -> None:
    """Write a forecaster's folder: config.json, weights in half precision (safetensors), and a model card.

    Raises ValueError where a weight is not finite, or too large for half precision.
    """
    from safetensors.torch import save

    folder = Path(folder)
    weights = {name: tensor.detach().cpu().half().contiguous() for name, tensor in network.state_dict().items()}
    for name, tensor in weights.items():
        if not tensor.isfinite().all():
            raise ValueError(f"{name} holds weights that are not finite in half precision: nothing was written")
    write_bytes(folder / _WEIGHTS, save(weights))
    write_bytes(folder / _CONFIG, (json.dumps(asdict(network.config), indent=2) + "\n").encode())
    if card:
        write_bytes(folder / _CARD, card.encode())


def _read(folder: Path) -> BaseForecaster:
    fields: dict[str, Any] = read_config(folder / _CONFIG)
    try:
        config = BaseConfig(**fields)
    except TypeError as error:
        raise ValueError(f"{folder / _CONFIG} is no configuration of a base forecaster: {error}") from None
    network = BaseForecaster(config)
    weights = {name: tensor.float() for name, tensor in read_weights(folder / _WEIGHTS).items()}
    load_strictly(network, weights, folder / _WEIGHTS)
    return network.eval()


def forecast_quantiles(
    network: BaseForecaster,
    x: Tensor,
    mask: Tensor | None = None,
    *,
    horizon: int,
    levels: Sequence[float] = LEVELS,
    ordered: bool = False,
    paths: int = PATHS,
) -> Tensor:
    """Quantiles of a horizon of any length.

    Past the network's own horizon, paths are drawn: each takes one level of the distribution of every series for a
    whole block, is read as history, and is forecast in turn. The quantiles are those of all paths together; feeding a
    quantile back would make the next one far too narrow or too wide. The levels are spread evenly over (0, 1) and dealt
    to the series from a fixed seed, so that equal input gives equal output.

    Parameters
    ----------
    network : BaseForecaster
    x, mask, ordered
        As in `BaseForecaster.forward`.
    horizon : int
    levels : sequence of float
        Increasing, within (0, 1).
    paths : int

    Returns
    -------
    Tensor, shape (B, horizon, C, len(levels))
    """
    blocks = [network(x, mask, ordered=ordered)]
    B, _, C = x.shape
    if horizon > network.config.horizon:
        mask = torch.ones_like(x, dtype=torch.bool) if mask is None else mask
        x, mask = (tensor.repeat_interleave(paths, 0) for tensor in (x, mask))
        drawn = blocks[0].repeat_interleave(paths, 0)  # [B·S, h, C, Q]
        generator = torch.Generator().manual_seed(0)
        while sum(block.shape[1] for block in blocks) < horizon:
            order = torch.rand(B, C, paths, generator=generator).argsort(2).movedim(2, 1).reshape(B * paths, 1, C)
            path = _at_level(drawn, ((order + 0.5) / paths).to(x))
            x = torch.cat([x, path], dim=1)
            mask = torch.cat([mask, torch.ones_like(path, dtype=torch.bool)], dim=1)
            drawn = network(x, mask, ordered=ordered)
            pooled = drawn.unflatten(0, (B, paths)).movedim(1, 3).flatten(3)  # [B, h, C, S·Q]
            blocks.append(torch.quantile(pooled, torch.tensor(LEVELS).to(pooled), dim=3).movedim(0, 3))
    forecast = torch.cat(blocks, dim=1)[:, :horizon]
    return forecast if tuple(levels) == LEVELS else quantiles_at(forecast, LEVELS, levels)


def _at_level(quantiles: Tensor, level: Tensor) -> Tensor:
    """The value of [N, h, C, Q] at a level [N, 1, C], linear in the level's normal score; [N, h, C]."""
    known = torch.special.ndtri(torch.tensor(LEVELS, dtype=level.dtype))
    score = torch.special.ndtri(level).expand(quantiles.shape[:3])
    left = (torch.searchsorted(known, score.contiguous(), right=True) - 1).clamp(0, len(known) - 2)
    low, high = (quantiles.gather(3, place[..., None])[..., 0] for place in (left, left + 1))
    return low + (score - known[left]) / (known[left + 1] - known[left]) * (high - low)
