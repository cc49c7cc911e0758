"""The paper's printed numbers, to stand beside ours: the tab-separated tables of this folder, as printed.

They were converted from the text of Carzaniga et al., "A foundation model with multi-variate parallel attention to
generate neuronal activity". A cell that spans columns stands in the first; "/" is as printed. Times of the efficiency
tables say "us" where the sizes can only be milliseconds.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pandas as pd

FOLDER = Path(__file__).parent
HORIZONS = (96, 192, 336, 720)
# The paper's short names of the UEA sets.
UEA = {
    "EtCo": "EthanolConcentration",
    "FaDe": "FaceDetection",
    "HaWr": "Handwriting",
    "HaBe": "Heartbeat",
    "JaVo": "JapaneseVowels",
    "PEMS": "PEMS-SF",
    "SCP1": "SelfRegulationSCP1",
    "SCP2": "SelfRegulationSCP2",
    "SpAr": "SpokenArabicDigits",
    "Uwave": "UWaveGestureLibrary",
}
SEIZURE_COLUMNS = ("kappa", "interval", "raw F1", "episodic F1", "sensitivity", "false detections/h")


def cells(name: str) -> list[list[str]]:
    """Rows of a printed table, headings included."""
    with (FOLDER / f"{name}.tsv").open(encoding="utf-8", newline="") as file:
        return [row for row in csv.reader(file, delimiter="\t") if any(row)]


def number(text: str) -> float:
    """A printed number; NaN for "/" and empty cells."""
    return float("nan") if text.strip() in ("", "/") else float(text)


def forecasting(name: str = "generic_timeseries") -> pd.DataFrame:
    """MSE and MAE of each model, data set and horizon; `name` may be ``generic_timeseries_ablation``."""
    heads, _, *rows = cells(name)
    models = [head.removesuffix(" (ours)") for head in heads[2::2]]
    records, dataset = [], ""
    for row in rows:
        dataset = row[0] or dataset
        for index, model in enumerate(models):
            mse, mae = (number(text) for text in row[2 + 2 * index : 4 + 2 * index])
            records.append({"model": model, "dataset": dataset, "horizon": int(row[1]), "mse": mse, "mae": mae})
    return pd.DataFrame(records)


def forecasting_averages() -> dict[str, dict[str, str]]:
    """MSE / MAE averaged over the horizons, as printed, by model and data set."""
    heads, _, *rows = cells("generic_timeseries_avg")
    return {
        model: {row[0]: f"{row[2 + 2 * index]} / {row[3 + 2 * index]}" for row in rows}
        for index, model in enumerate(heads[2::2])
    }


def classification() -> pd.DataFrame:
    """Accuracy in per cent, a row for each model and a column for each UEA set."""
    heads, *rows = cells("class_results")
    values = [[100 * number(text) for text in row[1:]] for row in rows]
    return pd.DataFrame(values, [row[0] for row in rows], [UEA[head] for head in heads[1:]])


def seizures(name: str) -> pd.DataFrame:
    """One of the tables by SWEC subject, such as ``18_patients_40dB``."""
    rows = [row for row in cells(name) if row[0].startswith("ID")]
    return pd.DataFrame([[number(text) for text in row[1:]] for row in rows], [row[0] for row in rows], SEIZURE_COLUMNS)


def seizure_summary() -> pd.DataFrame:
    """SWEC, MAYO and FNUSA by model."""
    columns = [
        "kappa", "episodic F1", "sensitivity", "false detections/h", "raw F1",
        "MAYO F1", "MAYO sensitivity", "MAYO specificity", "FNUSA F1", "FNUSA sensitivity", "FNUSA specificity",
    ]  # fmt: skip
    rows = cells("genie_summary")[3:]
    return pd.DataFrame([[number(text) for text in row[2:]] for row in rows], [row[0] for row in rows], columns)


def noise() -> pd.DataFrame:
    """Scores by signal-to-noise ratio; the first row, "None", is of MVPFormer-M."""
    rows = cells("noise_summary")[2:]
    columns = ["kappa", "episodic F1", "sensitivity", "false detections/h", "raw F1"]
    return pd.DataFrame([[number(text) for text in row[1:]] for row in rows], [row[0] for row in rows], columns)


def treebank() -> pd.DataFrame:
    """Accuracy of each model on the four tasks of the Brain TreeBank."""
    _, heads, *rows = cells("results_treebank")
    tasks = [head.lower() for head in cells("results_treebank")[0][2:]]
    assert heads[0] == "Model"
    return pd.DataFrame([[number(text) for text in row[2:]] for row in rows], [row[0] for row in rows], tasks)


def treebank_channels() -> pd.DataFrame:
    """Accuracy by number of channels; the standard deviations are left out."""
    heads, *rows = cells("treebank-channels")
    values = [[number(text.split(" ")[0]) for text in row[1:]] for row in rows]
    return pd.DataFrame(values, [int(row[0]) for row in rows], [head.lower() for head in heads[1:]])


def efficiency(name: str) -> pd.DataFrame:
    """Milliseconds and GB over T and C, of a table whose name ends in ``_perf``."""
    heads, *rows = cells(name)
    records = []
    for row in rows:
        for channels, text in zip(heads[1:], row[1:], strict=True):
            time, memory = text.split(" / ")
            records.append((int(row[0]), int(channels), float(time.split()[0]), float(memory.split()[0])))
    return pd.DataFrame(records, columns=["T", "C", "ms", "GB"])
