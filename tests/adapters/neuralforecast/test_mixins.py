"""The linear path's own learning rate, under the host's optimisers and schedules."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

pytest.importorskip("neuralforecast")


@pytest.mark.parametrize("optimizer", [None, torch.optim.NAdam])
@pytest.mark.parametrize("encoder_layers", [0, 1])
def test_the_linear_path_has_its_own_learning_rate(
    encoder_layers: int, optimizer: type | None, tiny: Callable, panel: Callable, dataset: Callable
):
    """Adam's first step moves every weight by the learning rate, whatever its gradient."""

    def step(rate: float | None) -> tuple[float, float]:
        model = tiny(
            max_steps=1,
            learning_rate=1e-3,
            linear_learning_rate=rate,
            encoder_layers=encoder_layers,
            optimizer=optimizer,
        )
        model.fit(dataset(panel(4)))  # both paths start at zero
        encoder = model.network.encoder
        return (
            model.network.linear.weight.abs().mean().item(),
            encoder.head.weight.abs().mean().item() if encoder else 0.0,
        )

    linear, head = step(None)
    further, same = step(2e-2)
    assert further == pytest.approx(20 * linear, rel=1e-3)
    assert same == pytest.approx(head, rel=1e-6)


def test_a_schedule_that_undoes_the_linear_paths_rate_is_refused(tiny: Callable, panel: Callable, dataset: Callable):
    def fit(max_lr: float | list[float]) -> None:
        schedule = {
            "lr_scheduler": torch.optim.lr_scheduler.OneCycleLR,
            "lr_scheduler_kwargs": {"max_lr": max_lr, "total_steps": 9},
        }
        tiny(linear_learning_rate=0.1, **schedule).fit(dataset(panel(4)))

    with pytest.raises(ValueError, match="OneCycleLR sets one rate for all weights"):
        fit(0.01)
    fit([0.01, 0.1])


def test_a_warm_up_from_zero_keeps_both_rates(tiny: Callable, panel: Callable, dataset: Callable):
    warm_up = {
        "lr_scheduler": torch.optim.lr_scheduler.LambdaLR,
        "lr_scheduler_kwargs": {"lr_lambda": lambda step: min(1.0, step / 10)},
    }
    tiny(learning_rate=1e-3, linear_learning_rate=3e-2, **warm_up).fit(dataset(panel(4)))
