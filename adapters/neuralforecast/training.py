"""How a model of the host is trained: averaged weights, a rate for each path; and what the host's losses want of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import wraps
from numbers import Real
from typing import Any

import torch
from einops import rearrange
from neuralforecast.losses.pytorch import GMM, NBMM, PMM, DistributionLoss, HuberIQLoss, HuberMQLoss, IQLoss, MQLoss
from torch import Tensor, nn

from mvpa_ts.adapters.options import temporarily
from mvpa_ts.forecasting.errors import forecast_loss
from mvpa_ts.forecasting.training import LINEAR_RATE, ForecasterTraining
from mvpa_ts.learning_rates import lower_rates, on_linear_path, one_cycle, parameter_groups
from mvpa_ts.training import TrainingClock
from mvpa_ts.weight_averaging import WeightAverage

_SHORTER = (
    "Fewer steps (max_steps), fewer windows a step (windows_batch_size), or encoder_layers=0, which leaves out the "
    "attention, take less"
)


class HostTraining:
    """The training of one model; the model's hooks call it.

    Validation sees averaged weights, and training ends with them; with early stopping, with those of the best
    validation. The average starts at each fit's first step. No buffer is saved: after training the weights are the
    average. `linear_ratio` is the rate of the linear path over that of the attention path where `settings` has none;
    `on_linear_path` says which parameters, by their names, learn at it.
    """

    def __init__(
        self,
        settings: ForecasterTraining,
        *,
        linear_ratio: float = LINEAR_RATE,
        on_linear_path: Callable[[str], bool] = on_linear_path,
    ) -> None:
        self.settings, self.linear_ratio, self.on_linear_path = settings, linear_ratio, on_linear_path
        # Called after each validation with the steps done and the loss; what it raises ends the training.
        self.validated: Callable[[int, float], None] | None = None
        self.best_loss = math.inf  # of the validation whose weights were kept; without early stopping it stays
        self.prepare(None, None)
        self.average = WeightAverage(nn.Module(), None)  # nothing to exchange before a training
        self._best: list[Tensor] | None = None  # weights of the best validation
        self._target: tuple[Tensor, Tensor] | None = None
        self._forecast: Tensor | None = None  # of the last step, [B, h, N, m]

    def prepare(self, windows: int | None, largest_deviation: float | None) -> None:
        """Note what the rates depend on in the panel to train on.

        They are lower where there are more steps than whole `windows`, where those were counted, and for heads that
        read other series by `mixing_share`, see the core. `largest_deviation` is of series in units of their own.
        """
        self._windows, self.mixing_share, self._largest_deviation = windows, 1.0, largest_deviation

    def lowers_rates(self, model: Any) -> bool:
        """Whether rates depend on the panel: not under a schedule that the user gave to the host."""
        return _schedule_is_free(model) and self._windows is not None and self.settings.full_rate_steps is not None

    def begin(self, model: nn.Module) -> None:
        """Start a new average."""
        settings = self.settings
        self.average = WeightAverage(model, settings.weight_averaging, warm_up=settings.averaging_warm_up)
        self._clock = TrainingClock(_SHORTER)
        self._best, self.best_loss = None, math.inf

    def after_step(self, steps: int, all_steps: int) -> None:
        """Take the weights after an optimiser step into the average, and say once if the training will be long."""
        self._clock.after_step(steps, all_steps)
        self.average.update()

    def after_validation(self, model: Any) -> None:
        """Note the loss of the average, and go on training the weights."""
        trainer = model.trainer
        # Lightning's first validation comes before any step, so its loss says nothing of the training.
        loss = None if trainer.sanity_checking else trainer.callback_metrics.get("ptl/val_loss")
        if loss is not None and model.early_stop_patience_steps > 0 and float(loss) < self.best_loss:
            self.best_loss = float(loss)
            self._best = [weight.detach().clone() for weight in model.parameters()]
        self.average.exchange()
        if self.validated is not None and loss is not None:
            self.validated(trainer.global_step, float(loss))

    @torch.no_grad()
    def end(self, model: nn.Module) -> None:
        """Keep the average, or that of the best validation."""
        self.average.keep()
        if self._best is not None:
            for weight, best in zip(model.parameters(), self._best, strict=True):
                weight.copy_(best)
            self._best = None

    def optimizers(self, model: Any, of_host: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The host's optimiser and schedule, with a group for the linear path if its rate differs.

        The schedule is one cycle of all rates where the user gave the host none: neither `lr_scheduler` nor
        `num_lr_decays`.
        """
        settings = self.settings
        groups = parameter_groups(
            model.network,
            learning_rate=model.learning_rate,
            linear_rate=settings.linear_learning_rate or self.linear_ratio * model.learning_rate,
            mixing_share=self.mixing_share,
            others=[weight for name, weight in model.named_parameters() if not name.startswith("network.")],
            linear=self.on_linear_path,
        )
        chosen = model.optimizer
        kind = chosen or torch.optim.Adam  # the host's default

        @wraps(kind)
        def grouped(params: Any, **options: Any) -> torch.optim.Optimizer:
            return kind(groups, **options)

        # The host makes the optimiser of one list of weights, so it is handed a maker that has the groups.
        with temporarily(model, optimizer=grouped):
            configured = of_host()
        optimizer = configured["optimizer"]
        if chosen is None and self._largest_deviation is not None:
            # Gradients have the unit of the series: Adam would take those of 1e-9 for none. Squares stay in float32.
            for group in optimizer.param_groups:
                group["eps"] = max(1e-18, group["eps"] * min(1.0, self._largest_deviation))
        if _schedule_is_free(model):
            if self._windows is not None and settings.full_rate_steps is not None:
                lower_rates(optimizer.param_groups, model.max_steps, self._windows, settings.full_rate_steps)
            configured["lr_scheduler"]["scheduler"] = one_cycle(optimizer, model.max_steps)
            return configured
        # A warm-up may begin at zero for both; what it multiplies differs.
        rates = {group.get("initial_lr", group["lr"]) for group in optimizer.param_groups}
        rates_differ = settings.linear_learning_rate not in (None, model.learning_rate)
        if len(groups) > len(rates) and rates_differ:
            raise ValueError(
                f"lr_scheduler {model.lr_scheduler.__name__} sets one rate for all weights, which leaves "
                f"linear_learning_rate ({settings.linear_learning_rate}) without effect: give it a list of two rates, "
                "of the attention path and of the linear path"
            )
        return configured

    def note_target(self, target: Tensor, mask: Tensor) -> None:
        """Count the targets of the windows at hand, and keep them for the loss over frequencies."""
        self._targets = mask.sum()
        self._target = (target, mask) if self.settings.frequency_weight else None

    def note_forecast(self, forecast: Tensor | None) -> None:
        """Keep the forecast of a training step, [B, h, N, m], for the loss over frequencies."""
        self._forecast = forecast if self.settings.frequency_weight else None

    def with_frequencies(self, loss: Tensor, loss_of_host: nn.Module) -> Tensor:
        """The loss of a training step, a share of it over frequencies, see `forecast_loss`."""
        share = self.settings.frequency_weight
        if not share or self._target is None or self._forecast is None:
            return loss
        (target, mask), forecast = self._target, self._forecast
        # Both hold the step's graph, which must not outlive it.
        self._target = self._forecast = None
        spectrum = forecast_loss(forecast, target, mask > 0, levels=levels_of(loss_of_host), frequency_weight=1.0)
        return (1.0 - share) * loss + share * spectrum

    def over_processes(self, loss: Tensor, trainer: Any) -> Tensor:
        """Weigh the mean loss of a process, so that the mean over processes is that over all targets of a step."""
        if trainer.world_size == 1:
            return loss
        # Windows at the end of a panel have fewer targets, and their process would count as much as the others.
        total = trainer.strategy.reduce(self._targets.clone(), reduce_op="sum")
        return loss * (trainer.world_size * self._targets / total.clamp(min=1.0))


def _schedule_is_free(model: Any) -> bool:
    return model.lr_scheduler is None and model.num_lr_decays <= 0


def scaled_by_host(loss: nn.Module) -> bool:
    """Whether the loss maps the network's numbers itself, so that only the host can undo a scaling after it.

    True for distributions, whose parameters are no levels, and for implicit quantiles, where the loss adds a layer.
    """
    return bool(loss.is_distribution_output) or isinstance(loss, (IQLoss, HuberIQLoss))


def flattened(output: Tensor, loss: nn.Module) -> Tensor:
    """[B, h, N, m] to the [B, h, N·m] that `loss.domain_map` takes apart.

    Distributions split it into parameters first, all other losses (ISQF and the mixtures too) into series first.
    """
    if isinstance(loss, DistributionLoss) and loss.distribution != "ISQF":
        return rearrange(output, "b h n m -> b h (m n)")
    return rearrange(output, "b h n m -> b h (n m)")


def sorted_quantiles(output: Tensor, loss: nn.Module) -> Tensor:
    """The network's quantiles [B, h, N, Q], which increase, in the order of a multi-quantile loss; others unchanged."""
    if (levels := levels_of(loss)) is None:
        return output
    return output.sort(dim=-1, stable=True).values[..., levels.argsort().argsort()]


def levels_of(loss: nn.Module) -> Tensor | None:
    """Levels of a multi-quantile loss; None for others."""
    return loss.quantiles if isinstance(loss, (MQLoss, HuberMQLoss)) else None


def asked_levels(level: Any, quantiles: Any) -> dict[str, float]:
    """Quantiles that a call of the host asks for, by the ends of their columns' names; raises ValueError for others."""
    argument, values, most = ("quantiles", quantiles, 1) if level is None else ("level", level, 100)
    if values is None:
        return {}
    right = isinstance(values, Iterable) and not isinstance(values, str)
    if not right or any(not isinstance(value, Real) or not 0 < float(value) < most for value in values):
        raise ValueError(f"{argument} must be a list of numbers between 0 and {most}, got {values!r}")
    values = sorted({float(value) for value in values})
    if argument == "quantiles":
        return {"-median": 0.5, **{f"_ql{value}": value for value in values}}
    below = {f"-lo-{value:g}": round(0.5 - value / 200, 6) for value in reversed(values)}
    return {"-median": 0.5, **below, **{f"-hi-{value:g}": round(0.5 + value / 200, 6) for value in values}}


def as_trained(loss: nn.Module) -> Any:
    """Within a block a call may ask for other quantiles; after it, a later call is answered as before."""
    names = ("q", "quantiles", "output_names", "has_predicted")
    return temporarily(loss, **{name: getattr(loss, name) for name in names if hasattr(loss, name)})


def is_central(loss: nn.Module) -> bool:
    """Whether the middle output is a mean or a median."""
    if (levels := levels_of(loss)) is not None:
        return abs(float(levels.sort().values[(len(levels) - 1) // 2]) - 0.5) < 1e-3
    return type(loss).__name__ in ("MAE", "MSE", "RMSE", "HuberLoss")  # not a loss of one quantile


def location_outputs(loss: nn.Module) -> tuple[int, ...] | None:
    """Which outputs move with the series' level, and so with its cycle; None where all do."""
    if isinstance(loss, DistributionLoss):
        if loss.distribution == "StudentT":
            return (1,)  # degrees of freedom come first
        if loss.distribution == "ISQF":
            return (loss.outputsize_multiplier - len(loss.quantiles),)  # the lowest knot; the others are increments
        return (0,)
    if isinstance(loss, (PMM, GMM, NBMM)):
        return tuple(range(loss.n_components))
    # darts tells how many outputs it wants; only its distributions have two, a location mostly first.
    return (0,) if loss.outputsize_multiplier == 2 and levels_of(loss) is None else None


def count_location_scale(loss: nn.Module, location: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """The location and scale that give a count distribution room on both sides of the window's mean.

    The host anchors a positive number to them: a negative binomial's mean is ``scale · positive + location`` and a
    Tweedie's ``location · exp(positive)``, so that with mean and standard deviation neither could fall below the mean.
    """
    if isinstance(loss, DistributionLoss) and loss.distribution == "NegativeBinomial":
        return torch.zeros_like(location), location.clamp(min=1.0)
    if isinstance(loss, DistributionLoss) and loss.distribution == "Tweedie":
        return (location / 4).clamp(min=1.0), scale
    if isinstance(loss, NBMM):
        return location.clamp(min=1.0), scale
    return location, scale
