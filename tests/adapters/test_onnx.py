"""A network in ONNX forecasts what it does in PyTorch, in both hosts; what cannot be written is an error."""

import sys
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from neuralforecast import NeuralForecast
from neuralforecast.losses.pytorch import DistributionLoss, MQLoss
from support.made_up_networks import QUIET

from mvpa_ts.adapters.neuralforecast import MVPA, AutoMVPA
from mvpa_ts.adapters.sktime import MVPAForecaster
from mvpa_ts.forecasting import ForecasterTraining, ForecastingConfig, Scaling, Series, fit_forecaster
from mvpa_ts.forecasting.onnx import base_to_onnx, to_onnx
from mvpa_ts.forecasting.pretrained import BaseConfig, BaseForecaster
from mvpa_ts.forecasting.quantiles import quantiles_at

VALUES = np.random.default_rng(0).standard_normal((150, 3)).cumsum(0)
NAMES = ["a", "b", "c"]


def run(path: Any, values: np.ndarray, **inputs: np.ndarray) -> np.ndarray:
    """What onnxruntime makes of a window [rows, columns]."""
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(str(path))
    return session.run(["quantiles"], {"values": values[None], **inputs})[0][0]


@pytest.fixture
def exporter():
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")


@pytest.mark.usefixtures("exporter")
# Without regressions it is written in `test_in_sktime`, too.
@pytest.mark.parametrize("regressions", [pytest.param(False, marks=pytest.mark.slow), True])
def test_quantiles_equal_those_of_pytorch(tmp_path, regressions):
    config = ForecastingConfig(
        horizon=4, lookback=24, patch_length=8, patch_stride=8, dim=8, num_heads=2, num_outputs=9, cycle_length=7,
        mixing_heads=2, num_channels=3, per_channel=("vectors",), regressions=regressions,
    )  # fmt: skip
    rows = VALUES + 1e6
    fitted, scaling = fit_forecaster([Series(rows)], config, ForecasterTraining(steps=20)), Scaling.of(rows)
    if regressions:
        assert not fitted.network.fitted.off
        fitted.network.regressions.step_score.data.zero_()  # else they hardly count
        fitted.network.regressions.off = False
    units = np.array([[0.0, 1.0]] * 3, dtype=np.float32)
    to_onnx(fitted.network, tmp_path / "f.onnx", scaling=scaling, channel_inputs={"units": torch.from_numpy(units)})
    window = rows[50:74].copy()
    for missing in (0.0, 0.2):
        window[np.random.default_rng(1).random(window.shape) < missing] = np.nan
        window[24 - int(20 * missing) :, 1] = np.nan  # the end, which the network forecasts first
        quantiles = run(tmp_path / "f.onnx", window, phase=np.array([50]))
        expected = fitted.predict(Series(window, position=50), scaling)
        np.testing.assert_allclose(quantiles, expected, rtol=0, atol=1e-5 * scaling.scale.max())


@pytest.mark.usefixtures("exporter")
@pytest.mark.filterwarnings("ignore")
def test_in_sktime(tmp_path):
    y = pd.DataFrame(VALUES, columns=NAMES)
    forecaster = MVPAForecaster(
        input_size=24, dim=8, max_steps=3, channel_order=["c", "a", "b"], network={"regressions": False}, random_state=0
    ).fit(y, fh=[1, 2, 3])
    forecaster.to_onnx(tmp_path / "f.onnx")
    quantiles = run(tmp_path / "f.onnx", VALUES[-24:])
    expected = forecaster.predict_quantiles(alpha=list(forecaster.fitted_.levels)).to_numpy().reshape(3, 3, -1)
    np.testing.assert_allclose(quantiles, expected, rtol=0, atol=1e-5 * VALUES.std())


@pytest.mark.usefixtures("exporter")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "places",
    [
        pytest.param({"channel_order": ["c", "a", "b"]}, marks=pytest.mark.slow),  # of `test_in_sktime`, too
        {"channel_order": "correlation"},
        {"channel_positions": {"c": [0.0, 1.0], "a": [1.0, 1.0], "b": [3.0, 2.0]}},
    ],
    ids=["order", "correlation", "positions"],
)
def test_in_neuralforecast(tmp_path, places, fit):
    steps = pd.date_range("2024-01-01", periods=len(VALUES), freq="D")
    df = pd.concat([pd.DataFrame({"unique_id": name, "ds": steps, "y": VALUES[:, i]}) for i, name in enumerate(NAMES)])
    options: dict[str, Any] = {"h": 3, "input_size": 24, "n_series": 3, "max_steps": 3, "hidden_size": 8, **QUIET}
    model = MVPA(loss=MQLoss(level=[80]), network={"regressions": False}, **places, **options)
    forecaster = fit(model, df, "D")
    frame = forecaster.predict()[["MVPA-lo-80", "MVPA-median", "MVPA-hi-80"]].to_numpy().reshape(3, 3, 3)
    forecaster.save(tmp_path / "saved")
    forecaster.predict(df.replace({"a": "c", "c": "a"}))  # the file is of the panel of the fit
    again = forecaster if "channel_positions" in places else NeuralForecast.load(str(tmp_path / "saved"))
    again.models[0].to_onnx(tmp_path / "f.onnx")
    quantiles = run(tmp_path / "f.onnx", VALUES[-24:])
    np.testing.assert_allclose(quantiles, frame.transpose(1, 0, 2), rtol=0, atol=1e-5 * VALUES.std())


def test_what_cannot_be_written_is_an_error(tmp_path, monkeypatch):
    y, X = pd.DataFrame(VALUES, columns=NAMES), pd.DataFrame({"price": np.arange(150.0)})
    path = tmp_path / "f.onnx"
    with pytest.raises(ValueError, match="pretrained cannot be written as ONNX"):
        MVPAForecaster(pretrained="base").fit(y, fh=[1]).to_onnx(path)
    with pytest.raises(ValueError, match="X cannot be read from ONNX"):
        MVPAForecaster(max_steps=1, dim=4).fit(y, X=X, fh=[1]).to_onnx(path)
    options: dict[str, Any] = {"h": 3, "input_size": 24, "n_series": 3, **QUIET}
    with pytest.raises(ValueError, match="exogenous columns cannot be read from ONNX"):
        MVPA(futr_exog_list=["price"], **options).to_onnx(path)
    with pytest.raises(ValueError, match="got DistributionLoss and windows that the host scales"):
        MVPA(loss=DistributionLoss("Normal"), **options).to_onnx(path)
    for unfitted in (MVPA(**options), AutoMVPA(3, 3)):
        with pytest.raises(ValueError, match=r"fit, and take forecaster\.models\[0\], for a NeuralForecast"):
            unfitted.to_onnx(path)
    trained = MVPAForecaster(max_steps=1, dim=4).fit(y, fh=[1])
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match=r'to_onnx needs onnx: pip install "\.\[onnx\]"'):
        trained.to_onnx(path)
    assert not path.exists()


class OnlyInPyTorch(torch.nn.Module):
    """What ONNX has no operator for."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        gram = x.mT @ x + torch.eye(5)
        lower = torch.linalg.cholesky_ex(gram)[0]
        gaps = torch.where(x > 1.0, torch.nan, x)
        return (
            x.cummax(1).values, x.cummin(-1).values, (10 * x).long().cummax(1).values,
            gaps.nanmedian(1).values, gaps.nanmedian(2, keepdim=True).values, x.round().argsort(dim=1, stable=True),
            torch.cholesky_solve(x.mT, lower), torch.linalg.solve_ex(gram, x.mT).result,
            quantiles_at(x.sort(2).values, (0.1, 0.3, 0.5, 0.7, 0.9), (0.05, 0.5, 0.6)), torch.arange(5.0) + x,
        )  # fmt: skip


@pytest.mark.usefixtures("exporter")
def test_operators_that_onnx_lacks(tmp_path, capfd):
    import onnxruntime

    from mvpa_ts.forecasting.onnx import _write
    from mvpa_ts.forecasting.onnx_operators import decompositions, translations

    x = torch.randn(2, 7, 5, generator=torch.Generator().manual_seed(0))
    program = torch.export.export(OnlyInPyTorch(), (x,)).run_decompositions(decompositions())
    options: dict[str, Any] = {"optimize": False, "custom_translation_table": translations()}
    capfd.readouterr()
    with warnings.catch_warnings(action="error"):
        _write(program, {"values": x}, tmp_path / "f.onnx", **options)
    assert capfd.readouterr().err == ""  # of what the user cannot change
    session = onnxruntime.InferenceSession(str(tmp_path / "f.onnx"))
    assert capfd.readouterr().err == ""
    x[1, :, 3] = 2.0  # no median
    outputs = session.run(None, {"values": x.numpy()})
    torch.testing.assert_close([torch.from_numpy(y) for y in outputs], list(OnlyInPyTorch()(x)), equal_nan=True)


@pytest.mark.usefixtures("exporter")
@pytest.mark.slow  # a minute and a half; in small: the test above
def test_the_pretrained_network(tmp_path):
    torch.manual_seed(0)
    network = BaseForecaster(BaseConfig(dim=24, num_heads=2, mlp_dim=32)).eval()
    options: dict[str, Any] = {"positions": torch.tensor([[0.0], [2.0], [1.0]]), "season": 12}
    base_to_onnx(network, tmp_path / "f.onnx", shape=(150, 3), horizon=40, **options)
    for name, rows in {"walks": VALUES, "waves": np.sin(VALUES / 9) + VALUES % 1}.items():
        x = rows.astype(np.float32)
        x[20:30, 1] = np.nan
        with torch.no_grad():
            expected = network(torch.from_numpy(x)[None], horizon=40, **options)[0].numpy()
        np.testing.assert_allclose(run(tmp_path / "f.onnx", x), expected, atol=1e-4 * np.nanstd(x), err_msg=name)
    for row, value in ((0, np.nan), (-1, np.nan), (-1, 1e4), (60, np.inf)):
        x = VALUES.astype(np.float32)
        x[row, 2] = value
        assert np.isnan(run(tmp_path / "f.onnx", x)).all()
    assert str(tmp_path.anchor) + "usr" not in (tmp_path / "f.onnx").read_bytes().decode("latin-1")


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        *(("shape", shape, r"\(rows, series\), with 16 rows") for shape in ((8, 3), (64,), (64.0, 3), (64, 0), 64)),
        ("network", "base", "a BaseForecaster, such as load_base"),
        ("positions", np.zeros((3, 1)), r"a tensor \[C, k\] = \[3, k\], got"),
        *(("season", season, "a whole number of steps") for season in (-3, 7.5, "12", True)),
    ],
)
def test_arguments_that_are_none(tmp_path, argument, value, message):
    arguments = {"network": BaseForecaster(BaseConfig(dim=8, num_heads=2)), "shape": (64, 3), argument: value}
    with pytest.raises(ValueError, match=f"{argument} must be {message}"):
        base_to_onnx(path=tmp_path / "f.onnx", horizon=4, **arguments)
