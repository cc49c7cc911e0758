"""What a forecast costs that is served row by row: streams of 50 columns, of a trained and the pretrained forecaster.

It also writes both networks as ONNX and runs them, if onnxruntime is installed (`pip install onnxruntime`). Rows a
second, milliseconds a forecast, and the largest distance to a fresh forecast of all rows, in deviations of the
series. Seconds are of the processor, one thread; the network is trained for five steps, which does not change its cost.

    python experiments/shipped/serving.py            # results/shipped/serving.csv and .md; two minutes
    python experiments/shipped/serving.py --quick    # few rows, written to a temporary folder
"""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # the harness

import numpy as np
import pandas as pd
import torch
from harness.command_line import script_parser
from harness.quiet import silence
from harness.study import grid, paragraphs
from harness.tables import hardware, results_folder, write_table

COLUMNS, FITTED, HORIZON = 50, 600, 24
TRAINED: dict[str, Any] = {"input_size": 96, "max_steps": 5, "random_state": 0}
IN_USE = "trained, with regressions in the window"
FORECASTERS: dict[str, dict[str, Any]] = {"trained": TRAINED, IN_USE: TRAINED, "pretrained": {"pretrained": "base"}}


def seconds(call: Any, times: int) -> float:
    """Least seconds of the processor for one call."""
    taken = []
    for _ in range(times):
        begun = time.process_time()
        call()
        taken.append(time.process_time() - begun)
    return min(taken)


def measured(options: dict[str, Any], rows: int, columns: int, *, regressions: bool) -> dict[str, float]:
    """Speed and exactness of one forecaster's stream."""
    from mvpa_ts.adapters.sktime import MVPAForecaster

    walk = np.random.default_rng(0).standard_normal((FITTED + rows, columns)).cumsum(0)
    index = pd.date_range("2024-01-01", periods=len(walk), freq="h")
    y = pd.DataFrame(walk, index=index, columns=[f"sensor {number}" for number in range(columns)])
    forecaster = MVPAForecaster(**options).fit(y[:FITTED], fh=range(1, HORIZON + 1))
    if regressions:  # which walks without a relation turn off
        forecaster.fitted_.network.regressions.off = False
    forecaster.predict()
    stream = forecaster.stream()
    tables = [y.iloc[row : row + 1] for row in range(FITTED, len(y))]
    begun = time.process_time()
    for table in tables:
        stream.update(table)
    speed = rows / (time.process_time() - begun)
    quantiles = stream.predict()
    forecaster.update(y[FITTED:], update_params=False)
    fresh = forecaster.predict()[stream.columns].to_numpy()
    middle = quantiles[..., list(forecaster.fitted_.levels).index(0.5)]
    return {
        "rows_a_second": round(speed),
        "milliseconds": round(1e3 * seconds(stream.predict, 3 if "pretrained" in options or rows < 20 else 20), 1),
        "difference": float(np.abs((middle - fresh) / y.std()[stream.columns].to_numpy()).max()),
        "rows_kept": len(stream.rows),
    }


def exported() -> list[dict[str, Any]]:
    """Windows of 7 columns in onnxruntime, if it is installed: milliseconds and distance to PyTorch."""
    try:
        import onnxruntime
    except ModuleNotFoundError:
        return []
    from mvpa_ts.adapters.sktime import MVPAForecaster
    from mvpa_ts.forecasting.onnx import base_to_onnx
    from mvpa_ts.forecasting.pretrained import load_base

    walk = np.random.default_rng(0).standard_normal((FITTED, 7)).cumsum(0)
    rows: list[dict[str, Any]] = []

    def add(name: str, write: Callable[[Path], None], values: Any, truth: Any) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "forecaster.onnx"
            write(path)
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads, options.log_severity_level = 1, 3
            session, size = onnxruntime.InferenceSession(str(path), options), path.stat().st_size
        run = partial(session.run, None, {"values": values[None]})
        quantiles = run()[0][0]
        rows.append({
            "forecaster": f"ONNX, {len(values)} × 7, {name}",
            "milliseconds": round(1e3 * seconds(run, 30), 2),
            "difference": float(np.abs((quantiles - truth) / walk.std(0)[:, None]).max()),
            "kilobytes": size // 1000,
        })  # fmt: skip

    y = pd.DataFrame(walk, columns=[f"sensor {number}" for number in range(7)])
    for regressions in (False, True):
        forecaster = MVPAForecaster(input_size=96, max_steps=5, random_state=0).fit(y, fh=range(1, HORIZON + 1))
        shares = forecaster.fitted_.network.regressions
        shares.off = not regressions  # else walks without a relation turn them off
        if regressions:
            shares.step_score.data.zero_()
        truth = forecaster.predict_quantiles(alpha=list(forecaster.fitted_.levels)).to_numpy().reshape(HORIZON, 7, -1)
        name = f"{'with' if regressions else 'without'} regressions in the window"
        add(name, forecaster.to_onnx, walk[-96:], truth)
    network, history = load_base("base"), walk[-512:].astype(np.float32)
    with torch.inference_mode():
        truth = network(torch.from_numpy(history)[None], horizon=HORIZON)[0].numpy()
    add("the pretrained network", partial(base_to_onnx, network, shape=(512, 7), horizon=HORIZON), history, truth)
    return rows


def main() -> None:
    """Measure, write."""
    quick = script_parser(__doc__, "few rows, written to a temporary folder").parse_args().quick
    torch.set_num_threads(1)
    silence()
    warnings.simplefilter("ignore")
    table = pd.DataFrame(
        {"forecaster": name, **measured(options, *((3, 2) if quick else (3000, COLUMNS)), regressions=name == IN_USE)}
        for name, options in FORECASTERS.items()
    )
    files = [] if quick else exported()
    streams = [
        (row.forecaster, row.rows_a_second, row.milliseconds, f"{row.difference:.0e}", row.rows_kept)
        for row in table.itertuples()
    ]
    onnx = [(row["forecaster"], row["milliseconds"], f"{row['difference']:.0e}", row["kilobytes"]) for row in files]
    page = paragraphs(
        "# Forecasts of a stream",
        f"Made by `experiments/shipped/serving.py` on {hardware('cpu')}, one thread: {COLUMNS} columns, {HORIZON} "
        "steps ahead, rows as tables of one row. The difference is to a forecast made of all rows anew, in standard "
        "deviations.",
        grid(["forecaster", "rows a second", "ms a forecast", "largest difference", "rows kept"], streams),
        "The same networks in onnxruntime, without PyTorch, beside what PyTorch forecasts:",
        grid(["file", "ms a window", "largest difference", "kB"], onnx),
    )
    write_table(results_folder("shipped", quick=quick), "serving", pd.concat([table, pd.DataFrame(files)]), page)


if __name__ == "__main__":
    main()
