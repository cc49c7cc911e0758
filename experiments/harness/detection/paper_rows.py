"""The table of a study with the paper's printed row below each of ours."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd
from harness.detection.settings import Configuration
from harness.paper import tables as paper

CITED = {"Brant-2": "Brant-2", "BrainBERT": "18_patients_brainbert"}
"""Rows of the paper's tables whose models this project does not hold, and where their numbers stand."""
# Printed twice the sensitivity: in these tables nearly every cell of false detections repeats the one before it.
_MISPRINTED = ("18_patients_small_allchannels", "58_patients_small")
COLUMNS = {
    "kappa_episodic": "kappa, post-processed",
    "kappa": "kappa, raw",
    "event_f1": "episodic F1",
    "event_sensitivity": "sensitivity",
    "false_positives_per_hour": "false detections/h",
    "segment_f1": "raw F1",
}
# The paper's one kappa is of post-processed decisions.
_PRINTED = {ours: theirs for ours, theirs in COLUMNS.items() if ours != "kappa"} | {"kappa_episodic": "kappa"}


def printed(name: str) -> dict[str, float]:
    """The paper's numbers by our columns: of its summaries, or the means over a table's subjects."""
    summary, noise = paper.seizure_summary(), paper.noise()
    if name in summary.index:
        numbers = summary.loc[name]
    elif name.endswith("dB"):
        numbers = noise.loc[name.rpartition("_")[2]]
    else:
        table = paper.seizures(name)
        if name == "58_patients_teston40":  # it lists the ten that are left out of the text's numbers, too
            table = table.loc[paper.seizures("18_patients_teston40").index]
        numbers = table.mean()
    found = {ours: float(numbers[theirs]) for ours, theirs in _PRINTED.items()}
    if name in _MISPRINTED:
        found["false_positives_per_hour"] = float("nan")
    return found


def markdown(rows: pd.DataFrame, configurations: list[Configuration]) -> str:
    """Baselines, then means over seeds, each row followed by the paper's."""
    lines = [f"| | {' | '.join(COLUMNS.values())} |", "|---|" + "---|" * len(COLUMNS)]
    baselines = rows[~rows["configuration"].isin([configuration.name for configuration in configurations])]
    for name, own in baselines.groupby("row", sort=False):
        lines.append(line(str(name), own[[*COLUMNS]].mean().to_dict()))
    for configuration in configurations:
        own = rows[rows["configuration"] == configuration.name]
        if not own.empty:
            lines.append(line(own["row"].iloc[0], own[[*COLUMNS]].mean().to_dict()))
        if configuration.printed is not None:
            theirs = configuration.row.replace("-tiny", "-S").replace("-small", "-M")
            text = "the paper" if not own.empty else f"the paper: {theirs}, not run here"
            lines.append(line(f"*{text}*", printed(configuration.printed)))
    lines += [line(f"*the paper: {model}, cited, not run*", printed(name)) for model, name in CITED.items()]
    return "\n".join(lines) + "\n"


def line(name: str, numbers: dict[str, float], columns: Iterable[str] = COLUMNS) -> str:
    """A row of a table; a dash where there is no number."""
    cells = ["–" if pd.isna(numbers.get(key, float("nan"))) else f"{numbers[key]:.2f}" for key in columns]
    return f"| {name} | {' | '.join(cells)} |"
