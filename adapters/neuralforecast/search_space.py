"""What AutoMVPA searches by default."""

from __future__ import annotations

from typing import Any, NamedTuple

from ray import tune


class Range(NamedTuple):
    """Numbers from low to high; drawn by their logarithm if `log`."""

    low: float
    high: float
    log: bool = False


# What is searched, in one place for both backends: a list of choices or a range.
SPACE: dict[str, list[Any] | Range] = {
    "hidden_size": [16, 32, 64],
    "encoder_layers": [1, 2, 3],
    "dropout": Range(0.0, 0.5),
    "head_dropout": Range(0.0, 0.6),
    "learning_rate": Range(1e-4, 1e-2, log=True),
    "linear_learning_rate": Range(1e-3, 5e-2, log=True),
    "weight_averaging": [None, 0.9, 0.99],
    "channel_vectors": [None, False],
    "channel_order": [None, "correlation"],
    "windows_batch_size": [32, 64, 128],
    "max_steps": [500, 1000, 2000],
    "random_seed": list(range(1, 11)),
}


def space_of(h: int) -> dict[str, list[Any] | Range]:
    """Choices and ranges by name of an argument, for a horizon of h steps."""
    return {"input_size": [h, 2 * h, 4 * h], **SPACE}


def for_ray(space: dict[str, list[Any] | Range]) -> dict[str, Any]:
    """The same as distributions of Ray."""
    return {
        name: tune.choice(values)
        if isinstance(values, list)
        else (tune.loguniform if values.log else tune.uniform)(values.low, values.high)
        for name, values in space.items()
    }
