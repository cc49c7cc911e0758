"""What must not change a forecast of sktime's forecaster, and names of any kind through files."""

import datetime
import decimal
import pickle
import uuid
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support.library import run_python
from support.made_up_series import fitted, waves

from mvpa_ts.adapters.sktime import MVPAClassifier, MVPAForecaster

_DAY = datetime.date(2024, 1, 1)
_NAMES: dict[str, list[Any]] = {
    "text": ["b", "a", "c"],
    "numbers": [3, 1, 2.5],
    "moments": list(pd.to_datetime(["2024-03-01", "2024-01-01", "2024-02-01"])),
    "days": [_DAY + datetime.timedelta(days) for days in (4, 0, 2)],
    "identifiers": [uuid.UUID(int=number) for number in (9, 5, 7)],
    "decimals": [decimal.Decimal(text) for text in ("1.10", "2", "0.5")],
    "bytes": [b"x", b"a", b"c"],
}


@pytest.mark.parametrize("kind", _NAMES)
def test_names_of_any_kind_come_back_from_files(kind, tmp_path):
    y, names = waves(columns=3), _NAMES[kind]
    y.columns = pd.Index(names, dtype=object)
    X = pd.DataFrame({names[0]: np.sin(np.arange(len(y) + 5)), names[1]: 1.0})
    X.index = pd.period_range(y.index[0], periods=len(X), freq="M")
    forecaster = fitted(y, X=X[: len(y)], network={"per_channel": ["vectors"]})
    expected = forecaster.predict(X=X[len(y) :])
    forecaster.to_files(tmp_path)
    again = MVPAForecaster.from_files(tmp_path, finetune_steps=0)
    again.fit(y, X=X[: len(y)][names[1::-1]], fh=[1, 2, 3, 4, 5])
    pd.testing.assert_frame_equal(again.predict(X=X[len(y) :][names[1::-1]]), expected, check_exact=True)


def test_a_group_of_processes_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 3)
    message = r"runs in one process, and this one belongs to a group of 3 \(torch.distributed\)"
    with pytest.raises(RuntimeError, match=message):
        fitted(waves(columns=3))
    with pytest.raises(RuntimeError, match=message):
        MVPAClassifier().fit(np.random.default_rng(0).standard_normal((12, 2, 20)), np.arange(12) % 2)


_LOAD = """
import pickle
import sys
from pathlib import Path
import numpy as np
from mvpa_ts.adapters.sktime import MVPAForecaster
for folder in sorted(Path(sys.argv[1]).iterdir()):
    y, expected = pickle.loads((folder / "y.pickle").read_bytes())
    again = MVPAForecaster.from_files(folder / "files", finetune_steps=0).fit(y, fh=[1, 2, 3, 4, 5])
    same = [again.predict().equals(expected) for _ in range(2)]
    print(folder.name, *same, sep="|", file=sys.stderr)
"""


def test_a_new_process_forecasts_the_same_for_names_of_every_kind(tmp_path):
    for kind, names in _NAMES.items():
        y = waves(columns=3)
        y.columns = pd.Index(names, dtype=object)
        forecaster = fitted(y, network={"per_channel": ["vectors"]})
        forecaster.to_files(tmp_path / kind / "files")
        (tmp_path / kind / "y.pickle").write_bytes(pickle.dumps((y, forecaster.predict())))
    compared = [line for line in run_python(_LOAD, tmp_path).stderr.splitlines() if line.count("|") == 2]
    assert compared == [f"{kind}|True|True" for kind in sorted(_NAMES)]


def test_columns_that_are_saved_alike_are_refused():
    y = waves()
    y.columns = pd.Index([decimal.Decimal("1"), "1"], dtype=object)
    with pytest.raises(ValueError, match=r"y must have columns that differ as text, got .* more than once: rename one"):
        fitted(y)


@pytest.mark.parametrize(("unit", "level"), [(1000.0, 0.0), (1.0, 1e8), (1e-6, 0.0)])
def test_units_and_levels(unit, level):
    y = waves()
    forecast = fitted(y * unit + level).predict()
    np.testing.assert_allclose((forecast - level) / unit, fitted(y).predict(), rtol=1e-5)


@pytest.mark.parametrize("level", [3e-9, 0.02, 4e7])
def test_what_never_varied_stays_beside_others_that_do(level):
    """Its forecasts were moved by a share of 1, whatever its unit."""
    y = waves(columns=3)
    y.isetitem(1, level)
    forecaster = fitted(y[:-9], network={"per_channel": ["vectors"]})
    forecaster.update(y[-9:], update_params=False)
    quantiles = forecaster.predict_quantiles(alpha=[0.1, 0.5, 0.9])[y.columns[1]]
    np.testing.assert_allclose(quantiles, level, rtol=1e-5)


@pytest.mark.parametrize("kind", ["dates", "microseconds", "zone", "numbers"])
def test_kinds_of_index(kind):
    y = waves()
    expected = fitted(y).predict()
    dates = y.index.to_timestamp()
    kinds = {"dates": dates, "microseconds": dates.as_unit("us"), "numbers": pd.RangeIndex(len(y))}
    y.index = kinds.get(kind, dates.tz_localize("Europe/Zurich"))
    forecaster = fitted(y)
    np.testing.assert_array_equal(forecaster.predict(), expected)
    np.testing.assert_array_equal(forecaster.predict(), expected)  # a second time


@pytest.mark.parametrize("label", [b"left", _DAY, decimal.Decimal("1.5")], ids=lambda label: type(label).__name__)
def test_labels_that_no_file_keeps_leave_no_folder(label, tmp_path):
    sizes = {"num_heads": 1, "mlp_dim": 4, "width": 4, "conv_layers": 1, "tokens": 4}
    classifier = MVPAClassifier(
        dim=4, num_layers=1, network=sizes, max_steps=1, kernel_features=0, validation_fraction=0.0, num_networks=1
    )
    X = np.random.default_rng(0).standard_normal((6, 1, 12))
    other = type(label)(2) if isinstance(label, decimal.Decimal) else label[:2] if isinstance(label, bytes) else _LATER
    classifier.fit(X, np.array([label, other] * 3, dtype=object if not isinstance(label, bytes) else None))
    with pytest.raises(ValueError, match="to_files keeps labels that are text, numbers or numpy's dates, got"):
        classifier.to_files(tmp_path / "new")
    assert not (tmp_path / "new").exists()


_LATER = _DAY + datetime.timedelta(1)
