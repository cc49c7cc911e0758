"""Module names of before 0.2: they still import, warn once, and hand on what the modules in their place hold.

Code and pickles (sktime's ``save``) name them. A module whose old name is a package today hands on its names there.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# Old name: the modules that hold its names now, the main one first.
_MOVED = {
    "mvpa_ts.averaging": "mvpa_ts.weight_averaging",
    "mvpa_ts.fields": "mvpa_ts.checks",
    "mvpa_ts.forecast_fitting": "mvpa_ts.forecasting.training mvpa_ts.forecasting.fitted mvpa_ts.forecasting.quantiles",
    "mvpa_ts.forecast_windows": "mvpa_ts.windows",
    "mvpa_ts.forecasting_config": "mvpa_ts.forecasting.configuration",
    "mvpa_ts.linear_start": "mvpa_ts.forecasting.closed_form",
    "mvpa_ts.quantiles": "mvpa_ts.forecasting.quantiles",
    "mvpa_ts.uea": "mvpa_ts.datasets.uea",
    "mvpa_ts.adapters.neuralforecast.averaging": "mvpa_ts.adapters.neuralforecast.mixins",
    "mvpa_ts.adapters.neuralforecast.linear_rate": "mvpa_ts.adapters.neuralforecast.mixins",
    "mvpa_ts.adapters.neuralforecast.masked_windows": "mvpa_ts.adapters.neuralforecast.host_overrides",
    "mvpa_ts.adapters.neuralforecast.trials": "mvpa_ts.adapters.neuralforecast.studies",
    "mvpa_ts.adapters.sktime.timeline": "mvpa_ts.adapters.sktime.frames",
    "mvpa_ts.classification.fitting": "mvpa_ts.classification.training",
    "mvpa_ts.ieeg.agreement": "mvpa_ts.ieeg.scoring.kappa",
    "mvpa_ts.ieeg.checkpoints": "mvpa_ts.ieeg.training.checkpoints",
    "mvpa_ts.ieeg.cohort_plots": "mvpa_ts.ieeg.scoring.plots",
    "mvpa_ts.ieeg.cohort_report": "mvpa_ts.ieeg.scoring.cohort mvpa_ts.ieeg.scoring.regression",
    "mvpa_ts.ieeg.command_line": "mvpa_ts.ieeg.commands.main mvpa_ts.ieeg.constants",
    "mvpa_ts.ieeg.configuration": "mvpa_ts.ieeg.model.configuration mvpa_ts.ieeg.constants",
    "mvpa_ts.ieeg.connectivity": "mvpa_ts.ieeg.model.component_maps",
    "mvpa_ts.ieeg.contrastive": "mvpa_ts.ieeg.training.contrastive",
    "mvpa_ts.ieeg.data": "",
    "mvpa_ts.ieeg.data.annotations": "mvpa_ts.ieeg.recordings.annotations",
    "mvpa_ts.ieeg.data.channel_table": "mvpa_ts.ieeg.recordings.bids",
    "mvpa_ts.ieeg.data.channels": "mvpa_ts.ieeg.recordings.channels mvpa_ts.ieeg.preprocessing.selection",
    "mvpa_ts.ieeg.data.cohort": "mvpa_ts.ieeg.datasets.cohort mvpa_ts.ieeg.datasets.swec",
    "mvpa_ts.ieeg.data.edf": "mvpa_ts.ieeg.recordings.edf",
    "mvpa_ts.ieeg.data.files": "mvpa_ts.ieeg.recordings.reading mvpa_ts.ieeg.recordings.raw",
    "mvpa_ts.ieeg.data.filters": "mvpa_ts.ieeg.preprocessing.filters",
    "mvpa_ts.ieeg.data.hdf5": "mvpa_ts.ieeg.recordings.hdf5",
    "mvpa_ts.ieeg.data.masks": "mvpa_ts.ieeg.preprocessing.bad_samples",
    "mvpa_ts.ieeg.data.module": "mvpa_ts.ieeg.training.data_module",
    "mvpa_ts.ieeg.data.nejedly": "mvpa_ts.ieeg.datasets.nejedly",
    "mvpa_ts.ieeg.data.preprocessing": "mvpa_ts.ieeg.preprocessing.signal mvpa_ts.ieeg.preprocessing.settings"
    " mvpa_ts.ieeg.preprocessing.bad_samples mvpa_ts.ieeg.constants",
    "mvpa_ts.ieeg.data.recording": "mvpa_ts.ieeg.recordings.recording",
    "mvpa_ts.ieeg.data.sampling": "mvpa_ts.ieeg.training.sampling",
    "mvpa_ts.ieeg.data.segments": "mvpa_ts.ieeg.preprocessing.segments",
    "mvpa_ts.ieeg.data.subjects": "mvpa_ts.ieeg.recordings.subjects",
    "mvpa_ts.ieeg.data.swec": "mvpa_ts.ieeg.recordings.swec",
    "mvpa_ts.ieeg.data.treebank": "mvpa_ts.ieeg.datasets.treebank",
    "mvpa_ts.ieeg.data.treebank_tasks": "mvpa_ts.ieeg.datasets.treebank_tasks",
    "mvpa_ts.ieeg.data.units": "mvpa_ts.ieeg.recordings.units",
    "mvpa_ts.ieeg.data.windows": "mvpa_ts.ieeg.training.spans",
    "mvpa_ts.ieeg.data.writing": "mvpa_ts.ieeg.simulation.writing",
    "mvpa_ts.ieeg.decoding": "mvpa_ts.ieeg.scoring.decoding",
    "mvpa_ts.ieeg.embedding": "mvpa_ts.ieeg.model.embedding",
    "mvpa_ts.ieeg.epileptor": "mvpa_ts.ieeg.simulation.epileptor",
    "mvpa_ts.ieeg.finetuned": "mvpa_ts.ieeg.model.lora",
    "mvpa_ts.ieeg.finetuning": "mvpa_ts.ieeg.training.finetuning",
    "mvpa_ts.ieeg.llama": "mvpa_ts.ieeg.model.rotary",
    "mvpa_ts.ieeg.noise": "mvpa_ts.ieeg.recordings.noise",
    "mvpa_ts.ieeg.plots": "mvpa_ts.ieeg.detection.plots",
    "mvpa_ts.ieeg.positions": "mvpa_ts.ieeg.recordings.bids",
    "mvpa_ts.ieeg.pretraining": "mvpa_ts.ieeg.training.pretraining",
    "mvpa_ts.ieeg.released": "mvpa_ts.ieeg.model.released",
    "mvpa_ts.ieeg.report": "mvpa_ts.ieeg.detection.report mvpa_ts.ieeg.detection.detection mvpa_ts.ieeg.figures"
    " mvpa_ts.ieeg.scoring.results",
    "mvpa_ts.ieeg.results": "mvpa_ts.ieeg.scoring.results mvpa_ts.ieeg.events",
    "mvpa_ts.ieeg.saving": "mvpa_ts.weights",
    "mvpa_ts.ieeg.similarity": "mvpa_ts.ieeg.training.similarity",
    "mvpa_ts.ieeg.simulated_source": "mvpa_ts.ieeg.simulation.source",
    "mvpa_ts.ieeg.simulated_subject": "mvpa_ts.ieeg.simulation.subject",
    "mvpa_ts.ieeg.simulator": "mvpa_ts.ieeg.simulation.simulate",
    "mvpa_ts.ieeg.store": "mvpa_ts.ieeg.detection.store mvpa_ts.weights",
    "mvpa_ts.ieeg.streaming": "mvpa_ts.ieeg.model.streaming",
    "mvpa_ts.ieeg.streaming_detection": "mvpa_ts.ieeg.detection.streaming",
    "mvpa_ts.ieeg.training_command": "mvpa_ts.ieeg.commands.training",
    "mvpa_ts.ieeg.training_files": "mvpa_ts.ieeg.training.run_folder",
    "mvpa_ts.ieeg.training_module": "mvpa_ts.ieeg.training.module mvpa_ts.ieeg.random_streams",
    "mvpa_ts.ieeg.training_subjects": "mvpa_ts.ieeg.training.seen_subjects",
    "mvpa_ts.ieeg.wavelet": "mvpa_ts.ieeg.model.wavelet",
}


def hand_on(module: str, names: dict[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a module: names that other modules hold, loaded on first use.

    Parameters
    ----------
    module : str
        The module that hands on.
    names : dict
        Module that holds names: the names, with spaces between them.

    Examples
    --------
    >>> hand_on("mvpa_ts", {"mvpa_ts.forecasting.quantiles": "quantiles_at checked_levels"})("quantiles_at").__name__
    'quantiles_at'
    """
    homes = {name: home for home, held in names.items() for name in held.split()}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return getattr(importlib.import_module(homes[name]), name)

    return get


class _OldModule(ModuleType):
    """A module of before, without names of its own."""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__"):
            for home in _MOVED[self.__name__].split():
                module = importlib.import_module(home)
                if hasattr(module, name):
                    return getattr(module, name)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")


class _OldNames:
    """Finds old modules; stands behind all other finders, so that it is asked for missing modules only."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=not _MOVED[name]) if name in _MOVED else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _OldModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        if homes := _MOVED[module.__name__].split():
            text = f"{module.__name__} is now {' and '.join(homes)}; the old name goes with version 1.0"
            warnings.warn(text, DeprecationWarning, stacklevel=2)


def install() -> None:
    """Let old names be imported."""
    if not any(isinstance(finder, _OldNames) for finder in sys.meta_path):
        sys.meta_path.append(_OldNames())
