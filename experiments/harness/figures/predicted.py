"""Figures of pretrained models: how near their predictions are to what came, and what attention looks at."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from harness.detection.training import quiet_trainer
from harness.figures.style import REFERENCE_COLOURS
from matplotlib.ticker import MaxNLocator

from mvpa_ts.ieeg import MVPFormer, mvpformer_tiny
from mvpa_ts.ieeg.model.component_maps import ComponentMaps, component_maps
from mvpa_ts.ieeg.training.data_module import RecordingDataModule, Simulation
from mvpa_ts.ieeg.training.pretraining import PretrainingModule, measure_similarity
from mvpa_ts.ieeg.training.similarity import REFERENCES, STATES, Similarity

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COMPARED = ("MVPFormer-small", "MVPFormer-tiny", "MV-Llama-tiny")
"""Stand for the paper's M, S and MV-Llama."""
SEEDS = (1, 2, 3)
LABELS = {"true": "next segment", "two_step": "the one after", "random": "random later one"}


class Predicted:
    """An MVPFormer-tiny pretrained on simulated subjects with each seed, and its predictions on others."""

    def __init__(self, *, quick: bool = False) -> None:
        self.quick = quick
        self.context = 6 if quick else 20  # segments of a window

    @cached_property
    def data(self) -> RecordingDataModule:
        """Simulated subjects, the last of them for measuring."""
        size = {"subjects": 4, "hours": 0.07, "seizures": 1} if self.quick else {"subjects": 12, "hours": 0.3}
        count = size["subjects"]
        simulation = Simulation(**{"channels": (8,), "seizures": 3, "seed": 0, **size})
        measured = tuple(f"S{number:02d}" for number in range(count // 2 + 1, count + 1))
        data = RecordingDataModule(
            simulation=simulation, validation_subjects=measured, context=self.context, in_memory=True, seed=1
        )
        data.setup()
        return data

    def module(self, seed: int) -> PretrainingModule:
        """A model before its training."""
        return PretrainingModule(mvpformer_tiny(context=self.context), learning_rate=1e-3, warmup_steps=2, seed=seed)

    @cached_property
    def models(self) -> list[MVPFormer]:
        """After training, with each seed."""
        modules = [self.module(seed) for seed in SEEDS]
        for module in modules:
            quiet_trainer(4 if self.quick else 200).fit(module, self.data)
        return [module.model.eval() for module in modules]

    @cached_property
    def similarities(self) -> list[Similarity]:
        """Of subjects that training did not see, with each seed."""
        return [measure_similarity(model, self.data.val_dataloader(), seed=1) for model in self.models]

    def similarity(self) -> Figure:
        """Distributions over all segments, and over those of the best, the median and the worst subject; one seed."""
        segments = self.similarities[0].segments
        order = segments.groupby("subject")["true"].mean().sort_values(ascending=False)
        chosen = {
            "best subject": order.index[0],
            "median subject": order.index[(len(order) - 1) // 2],
            "worst subject": order.index[-1],
        }
        figure, axes = plt.subplots(1, 4, figsize=(10, 2.8), sharex=True, layout="constrained")
        parts = {f"all {len(order)} subjects": segments}
        parts |= {f"{title} ({name})": segments[segments["subject"] == name] for title, name in chosen.items()}
        for axis, (title, part) in zip(axes, parts.items(), strict=True):
            for reference in REFERENCES:
                axis.hist(
                    part[reference], bins=np.linspace(-0.6, 1.0, 41), density=True, alpha=0.65,
                    color=REFERENCE_COLOURS[reference], label=LABELS[reference],
                )  # fmt: skip
            axis.set(title=title, xlabel="cosine similarity", yticks=[])
            axis.spines["left"].set_visible(False)
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
        return figure

    def by_state(self) -> Figure:
        """Each subject's segments: all, between seizures, at their edges and within them; a dash for each seed."""
        segments = mean_over_seeds([similarity.segments for similarity in self.similarities]).segments
        names = sorted(segments["subject"].unique())
        figure, axes = plt.subplots(4, 1, figsize=(10, 7), sharex=True, sharey=True, layout="constrained")
        for axis, state in zip(axes, ("all", *STATES), strict=True):
            chosen = segments if state == "all" else segments[segments["state"] == state]
            rows = [chosen.index[chosen["subject"] == name] for name in names]
            for shift, reference in zip((-0.22, 0.0, 0.22), REFERENCES, strict=True):
                values = [segments.loc[row, reference].to_numpy() for row in rows]
                seeds = [[s.segments.loc[row, reference].mean() for s in self.similarities] for row in rows]
                _boxes(axis, values, np.arange(len(names)) + shift, reference, seeds)
            axis.set(title=f"{state}: {len(chosen)} segments", ylabel="cosine")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
        axes[-1].set_xticks(range(len(names)), names)
        return figure

    def components(self) -> Figure:
        """Time and channel term before and after training, mean over heads of each layer."""
        before, after = (self._maps(model) for model in (self.module(SEEDS[0]).model.eval(), self.models[0]))
        layers = len(after.time)
        figure, axes = plt.subplots(2, 2 * layers, figsize=(2.3 * 2 * layers + 0.8, 4.6), layout="constrained")
        for row, (when, maps) in enumerate((("before", before), ("after", after))):
            for layer in range(layers):
                for column, (term, values) in enumerate((("channel", maps.channel), ("time", maps.time))):
                    axis = axes[row, column * layers + layer]
                    mean = _centred(values[layer].mean(0))
                    # One scale for before and after, so that growth is seen.
                    limit = np.nanmax(np.abs(_centred(getattr(after, term)[layer].mean(0))))
                    image = axis.imshow(mean, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
                    label = "segment" if term == "time" else "channel"
                    axis.set(title=f"{term} term, layer {layer + 1},\n{when} training", xlabel=f"{label} of the key")
                    axis.spines[:].set_visible(False)
                    if row:
                        bar = figure.colorbar(image, ax=axes[:, column * layers + layer], shrink=0.5, location="bottom")
                        bar.locator = MaxNLocator(3)
                        bar.update_ticks()
            axes[row, 0].set_ylabel("channel of the query")
        return figure

    def _maps(self, model: MVPFormer) -> ComponentMaps:
        recordings = {segments.recording.subject: segments for segments in self.data.validation.segments}
        signals = [segments.read(0, self.context)[0].astype(np.float32) for segments in list(recordings.values())[:4]]
        return component_maps(model, [torch.from_numpy(signal)[None] for signal in signals])


def by_model(results: Path) -> Figure:
    """Similarities of models that were trained alike, over subjects and by state, from the file of the comparison.

    Boxes are of the subjects' means over seeds; a dash beside them is the mean over subjects of one seed.

    Parameters
    ----------
    results : Path
        What `experiments/ieeg/pretraining_comparison.py` wrote.
    """
    compared = json.loads(results.read_text(encoding="utf-8"))
    tables = {name: pd.DataFrame(compared[name]["subjects"]) for name in COMPARED}
    figure, axes = plt.subplots(1, 4, figsize=(10, 3), sharey=True, layout="constrained")
    for axis, state in zip(axes, ("all", *STATES), strict=True):
        means = [
            [pd.DataFrame(seed).set_index("state").loc[state] for seed in compared[name]["seeds"]] for name in COMPARED
        ]
        for shift, reference in zip((-0.22, 0.0, 0.22), REFERENCES, strict=True):
            values = [_of_subjects(table, state, reference) for table in tables.values()]
            seeds = [[mean[reference] for mean in of_model] for of_model in means]
            _boxes(axis, values, np.arange(len(COMPARED)) + shift, reference, seeds)
        axis.set(title=state, ylim=(-0.2, 0.7))
        axis.set_xticks(range(len(COMPARED)), [name.removeprefix("MVPFormer-") for name in COMPARED], fontsize=7)
    axes[0].set_ylabel("cosine, means of subjects")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


def mean_over_seeds(segments: Sequence[Any]) -> Similarity:
    """Mean in each segment of the tables of one model, which have the same segments with all seeds."""
    tables = [Similarity([pd.DataFrame(table)]).segments for table in segments]
    mean = np.mean([table[[*REFERENCES]] for table in tables], axis=0)
    return Similarity([tables[0].assign(**dict(zip(REFERENCES, mean.T, strict=True)))])


def _of_subjects(table: pd.DataFrame, state: str, reference: str) -> np.ndarray:
    """Mean of each subject in a state; "all" weighs states by their segments."""
    chosen = table if state == "all" else table[table["state"] == state]
    sums = (chosen[reference] * chosen["segments"]).groupby(chosen["subject"]).sum()
    return (sums / chosen.groupby("subject")["segments"].sum()).to_numpy()


def _centred(values: np.ndarray) -> np.ndarray:
    """Less the mean of each row: what is alike for all keys of a query changes no weight."""
    return values - np.nanmean(values, axis=1, keepdims=True)


def _boxes(axis: Axes, values: list[np.ndarray], places: np.ndarray, reference: str, seeds: list[list[float]]) -> None:
    """Quartiles, whiskers from the 5th to the 95th percentile, mean as a dot, maximum as a cross, a dash each seed."""
    colour = REFERENCE_COLOURS[reference]
    filled = [index for index, numbers in enumerate(values) if len(numbers)]
    at, values = places[filled], [values[index] for index in filled]
    axis.boxplot(
        values, positions=at, widths=0.16, whis=(5, 95), showfliers=False, manage_ticks=False,
        **{f"{line}props": {"color": colour} for line in ("median", "box", "whisker", "cap")},
    )  # fmt: skip
    axis.plot(at, [numbers.mean() for numbers in values], ".", color=colour, label=LABELS[reference])
    axis.plot(at, [numbers.max() for numbers in values], "x", color=colour, markersize=4)
    axis.plot(at + 0.1, [seeds[index] for index in filled], "k_", markersize=4)
