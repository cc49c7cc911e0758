"""Fill the results of README and pages from the tables in results/.

python experiments/shipped/readme.py            # rewrites the pages between their markers
python experiments/shipped/readme.py --quick    # only says whether the pages agree with the tables
python experiments/shipped/readme.py --figures  # draws the README's pictures anew: the first looks a year back
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # the harness

import pandas as pd
from harness.board.report import page_table, sentence
from harness.classification.models import COMPONENTS
from harness.classification.models import MODELS as CLASSIFIERS
from harness.classification.report import DATASETS as CLASSIFICATION_SETS
from harness.classification.report import PATHS, accuracy_cell, cited_rows
from harness.command_line import script_parser
from harness.detection.results import MEASURES
from harness.forecasting.models import FEWER, HORIZONS, MODELS, SEARCHED
from harness.forecasting.report import CITED, CITED_FREE, average
from harness.forecasting.zero_shot_sets import SETS
from harness.paper import tables as paper
from harness.study import grid, paragraphs, spread
from harness.tables import RESULTS, machines, read_rows

from mvpa_ts.datasets.forecasting import FORECASTING_DATASETS
from mvpa_ts.files import write_text

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in ("results", "panels", "pretrained"))]
TRACED = PAGES[:2]
"""Pages whose every measured number a table gives."""
# The row of each set whose settings were chosen without its test errors: after the search, on ETTh1, by blocked
# cross-validation.
CHOSEN = "MVPA, chosen on validation data"
CHOSEN_ROWS = {"ETTh1": FEWER, "ETTh2": SEARCHED, "Weather": "MVPA"}


def main() -> None:
    """Rewrite the pages, or check them."""
    parser = script_parser(__doc__, "check only; write nothing")
    parser.add_argument("--figures", action="store_true", help="draw the README's pictures anew")
    arguments = parser.parse_args()
    quick = arguments.quick
    if arguments.figures and not quick:
        draw(RESULTS / "readme")
    for page in PAGES:
        old = page.read_text(encoding="utf-8")
        new = filled(old)
        if not quick:
            write_text(page, new)
        elif new != old:
            raise SystemExit(f"{page.name} differs from the tables: run python experiments/shipped/readme.py")
        if page in TRACED and (lost := orphans(new)):
            raise SystemExit(f"{page.name} has numbers that no table gives: {', '.join(lost)}")
        print(f"{page.name} holds what the tables say")


def draw(folder: Path) -> None:
    """Write pictures of what the README's examples give."""
    import matplotlib.pyplot as plt
    from harness.figures import style
    from harness.quiet import silence
    from neuralforecast import NeuralForecast
    from neuralforecast.losses.pytorch import MQLoss
    from neuralforecast.utils import AirPassengersPanel

    from mvpa_ts.adapters.neuralforecast import MVPA
    from mvpa_ts.ieeg import Detector, simulate_recording
    from mvpa_ts.ieeg.figures import save_figure

    silence()
    style.apply()
    folder.mkdir(parents=True, exist_ok=True)
    panel = AirPassengersPanel[["unique_id", "ds", "y"]]
    model = MVPA.from_pretrained("base", h=12, loss=MQLoss(level=[80]), alias="MVPA")
    forecast = NeuralForecast([model], freq="ME").cross_validation(panel, n_windows=1)
    figure, axes = plt.subplots(1, 2, figsize=(9, 2.8))
    for axis, (name, ahead) in zip(axes, forecast.groupby("unique_id"), strict=True):
        past = AirPassengersPanel[AirPassengersPanel["unique_id"] == name].tail(48)
        axis.plot(past["ds"], past["y"], color="0.4", label="passengers")
        axis.plot(ahead["ds"], ahead["MVPA-median"], color="C0", label="forecast")
        axis.fill_between(ahead["ds"], ahead["MVPA-lo-80"], ahead["MVPA-hi-80"], color="C0", alpha=0.25, label="80 %")
        axis.set_title(name)
    axes[0].set_ylabel("thousands a month")
    axes[0].legend(loc="upper left")
    save_figure(figure, folder / "forecast.png")
    recording = simulate_recording("S01", seed=5, num_channels=6, duration=360.0, num_seizures=1)
    save_figure(Detector("demo").detect(recording).plot(), folder / "seizure.png")


def filled(text: str) -> str:
    """A page with what stands between its markers made anew."""
    step = json.loads((RESULTS / "forecasting" / "training_step.json").read_text())
    attention = json.loads((RESULTS / "attention" / "attention_cpu.json").read_text())
    classification = read_rows(RESULTS / "classification" / "classification.csv")
    board = read_rows(RESULTS / "board" / "panels.csv")
    parts = {
        "forecasting": forecasting_summary(read_rows(RESULTS / "forecasting" / "forecasting.csv")),
        "classification": classification_summary(classification),
        "detection": detection_summary(read_rows(RESULTS / "detection" / "hard_cohort.csv")),
        "untrained": untrained_summary(RESULTS / "forecasting" / "pretrained.md"),
        "panels": page_table(board),
        "changing": sentence(board),
        "patient": patient_summary(RESULTS / "detection" / "patient_drift.md"),
        "pretrained": without_sets(RESULTS / "forecasting" / "pretrained.md"),
        "cost": step_summary(step) + "\n" + attention_summary(attention),
    }
    for name, part in parts.items():
        pattern = rf"(<!-- results:{name} -->\n).*?(<!-- /results -->)"
        text = re.sub(pattern, lambda found, part=part: found[1] + part + found[2], text, flags=re.DOTALL)
    return text


def orphans(text: str) -> list[str]:
    """Measured numbers of a page, those with a decimal point or a percent sign, that no script has filled in."""
    for filled_in in (
        r"<!-- results:(\w+) -->.*?<!-- /results -->",
        r"```.*?```",
        r"\]\([^)]*\)",
        r"Python 3\.\d+",
        "Apache-2.0",
    ):
        text = re.sub(filled_in, "", text, flags=re.DOTALL)
    return re.findall(r"\d*\.\d+|\d+ ?%", text)


def patient_summary(page: Path) -> str:
    """AUROC of one patient's detector and of simple rules on animals whose background drifts."""
    cells = [[cell.strip() for cell in line.split("|")] for line in page.read_text("utf-8").splitlines() if "|" in line]
    *rules, ours = [f"{name} {area}" for _, name, area, *_ in cells[2:]]
    text = f"AUROC on simulated animals whose background drifts as it assumes: {ours}, {', '.join(rules)}."
    text = text.replace("one patient's detector", "[one patient's detector](docs/patient.md)")
    return wrapped(text)


def wrapped(text: str) -> str:
    """A paragraph of a page."""
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False) + "\n"


def untrained_summary(page: Path) -> str:
    """Mean errors of the pretrained forecaster and of others over all sets, and its ranks on a public board."""
    lines = [[cell.strip(" *") for cell in line.split("|")[1:-1]] for line in page.read_text("utf-8").splitlines()]
    heading = next(cells for cells in lines if cells and cells[0] == "MASE")
    means = next(cells for cells in lines if cells and cells[0] == "MASE over seasonal naive, all sets")
    said = [f"{name} {mean}" for name, mean in zip(heading[1:-1], means[1:-1], strict=True) if name != "seasonal naive"]
    looks = read_rows(RESULTS / "shipped" / "gift_eval_looks.csv")
    look = looks[~looks["reason"].str.contains("not shipped")].iloc[-1]
    text = (
        f"Absolute error over that of seasonal naive, geometric mean over 20 sets: {', '.join(said)}. Of the sets, 17 "
        "served to develop the pretrained one. On the 17 configurations of GIFT-Eval that are at hand, which did not, "
        f"its rank is {look['rank_mase']:.0f} by MASE and {look['rank_crps']:.0f} by CRPS among 120 published models "
        "([both tables](docs/pretrained.md#on-a-public-board))."
    )
    return wrapped(text)


def without_sets(page: Path) -> str:
    """A page of results below its heading, means over groups of sets alone."""
    sets = tuple(f"| {name} |" for name in SETS)
    lines = [line for line in page.read_text(encoding="utf-8").splitlines() if not line.startswith(sets)]
    text = "\n".join(lines[2:]) + "\n"
    return text.replace("MASE over seasonal naive, ", "").replace("| MASE |", "| MASE over seasonal naive |")


def forecasting_summary(rows: pd.DataFrame) -> str:
    """Averages of the models that were run at every horizon of a dataset, above what was published."""
    datasets = [name for name in FORECASTING_DATASETS if name in set(rows["dataset"])]
    table = []
    for model in [*MODELS[: MODELS.index("MVPA")], CHOSEN, *MODELS[MODELS.index("MVPA") :]]:
        if model == FEWER:  # in the row of what validation data choose
            continue
        names = CHOSEN_ROWS if model == CHOSEN else dict.fromkeys(datasets, model)
        cells = [average(rows[(rows["model"] == names[name]) & (rows["dataset"] == name)]) for name in datasets]
        if any(cells):
            table.append([model, *(cell or "–" for cell in cells)])
    cited = {f"{source}, paper": averages for source, averages in paper.forecasting_averages().items()} | CITED
    table += [[f"*{source}*", *(averages[dataset] for dataset in datasets)] for source, averages in cited.items()]
    shown = rows[rows["model"].isin(MODELS)]
    seeds = sorted(shown.groupby("model")["seed"].nunique().unique())
    counted = f"{seeds[0]} seed(s)" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds"
    reading = [
        "- ETTh2 and Weather: the best settings of a search with Optuna on the validation part. "
        "The bounds of Weather's forecasts come from blocked cross-validation.",
        "- ETTh1: the winner of the same search, with fewer epochs. Blocked cross-validation chose fewer, after the "
        "winner's test error was known. The row *best of the search* has the winner itself.",
        "- The row *MVPA* and the ablation below it are optimistic on ETT: test errors were known when their settings "
        "were picked.",
        "- *Best of the search*: what Optuna ranked first, used without a change.",
        f"- {tested_summary(rows, datasets)}",
        "- Peers minimise squared errors and see no calendar, as published. MVPA minimises absolute errors and "
        "knows the hour of the day. Peers with *cycle, absolute errors* in their name have both.",
    ]
    return paragraphs(
        grid([f"test MSE / MAE, average of horizons {', '.join(map(str, HORIZONS))}", *datasets], table),
        "Look-back 96, scaled units. Every window of the test set counts. "
        f"{counted}. {machines(shown)} Rows in italics are those of papers and their authors; we did not run them.",
        f"Compare others with the row **{CHOSEN}**.",
        reading,
        *free_lookback(datasets),
    )


def free_lookback(datasets: list[str]) -> tuple[list[str], str]:
    """A table of MVPA at the look-back whose validation error is lowest and of others, and how to read it."""
    tables = [read_rows(RESULTS / "forecasting" / f"forecasting{name}.csv") for name in ("", "_336", "_720")]
    rows = pd.concat(tables)
    rows = rows[rows["model"] == "MVPA"]
    errors = rows.groupby(["dataset", "lookback"])["validation_mse"].mean()
    lowest = {name: errors[name].idxmin() for name in datasets}
    chosen = {name: rows[(rows["dataset"] == name) & (rows["lookback"] == lowest[name])] for name in datasets}
    table = [["MVPA", *(f"{average(runs)} ({lowest[name]})" for name, runs in chosen.items())]]
    table += [[f"*{source}*", *(cited[name] for name in datasets)] for source, cited in CITED_FREE.items()]
    return grid(["look-back free", *datasets], table), (
        "Average over the horizons, MSE / MAE and in brackets the steps; of others the MSE. MVPA was run at "
        f"{', '.join(map(str, sorted(set(rows['lookback']))))} steps (Weather not at 720), and the lowest validation "
        "error decides. Test errors of other settings were known when these were picked. The numbers of others are "
        "quoted at second hand. AMD's are a rerun: a public list of its authors' has .407, .351 and .222. Who printed "
        "the other two was not found."
    )


def tested_summary(rows: pd.DataFrame, datasets: list[str]) -> str:
    """How many configurations of MVPA were tested: those of the tables, and those that went with their commit."""
    tables = [rows, *(read_rows(RESULTS / "forecasting" / f"{name}.csv") for name in ("forecasting_terms", "tested"))]
    tested = pd.concat(tables)[["dataset", "model"]].drop_duplicates()
    counts = tested[tested["model"].str.startswith("MVPA")]["dataset"].value_counts()
    numbers = ", ".join(f"{counts.get(name, 0)} on {name}" for name in datasets)
    return f"Configurations of MVPA that were tested at this look-back, so looks at the test parts: {numbers}."


def classification_summary(rows: pd.DataFrame) -> str:
    """Accuracies of MVPA and the peers, without the ablation; empty where nothing was run."""
    if rows.empty:
        return ""
    rows = rows[rows["model"].isin(["MVPA", *(name for name in CLASSIFIERS if name not in COMPONENTS)])]
    datasets = [name for name in CLASSIFICATION_SETS if name in set(rows["dataset"])]
    table = []
    for model in [name for name in CLASSIFIERS if name in set(rows["model"])]:
        found = [rows[(rows["model"] == model) & (rows["dataset"] == dataset)]["accuracy"] for dataset in datasets]
        table.append([model, *map(accuracy_cell, found)])
        for path, column in PATHS.items() if model == "MVPA" and "attention_accuracy" in rows else ():
            by_set = [rows[(rows["model"] == model) & (rows["dataset"] == name)] for name in datasets]
            table.append([path, *(accuracy_cell(values[column].dropna()) for values in by_set)])
    seeds = rows[rows["model"] == "MVPA"].groupby("dataset")["seed"].nunique()
    return paragraphs(
        grid(["test accuracy %", *datasets], table) + cited_rows(datasets),
        "Trained on the archive's TRAIN files and tested once on its TEST files. All sets have one configuration, "
        f"which was chosen on held-out folds of TRAIN. MVPA: {seeds.min()} seed(s) or more, ± standard deviation. MVPA "
        "changes its series at random and is the mean of two networks; the other models have neither. "
        f"{machines(rows)} Rows in italics are printed in the paper; we did not run them.",
    )


def detection_summary(rows: pd.DataFrame) -> str:
    """Seizure detection in simulated recordings by SzCORE's rules; empty where nothing was run."""
    if rows.empty:
        return ""
    # Noise, channels and finetuning of the pretrained model have their lines in the table that the page links.
    rows = rows[(rows["rules"] == "szcore") & ~rows["row"].str.contains("pretrained, ")]
    by_row = rows.groupby("row", sort=False)
    table = [[name, *(spread(runs[column], 2) for column in MEASURES)] for name, runs in by_row]
    first, seeds = rows.iloc[0], by_row["seed"].nunique().max()
    return paragraphs(
        grid(["simulated, unseen subjects", *MEASURES.values()], table),
        f"{first['subjects']} subjects, {first['hours']:.0f} h, {first['seizures']} seizures; SzCORE's rules. "
        f"Thresholds were chosen on validation subjects. {seeds} seed(s), ± standard deviation "
        f"({', '.join(rows['hardware'].unique())}).",
    )


def step_summary(step: dict[str, Any]) -> str:
    """What one training step costs beside those of the peers."""
    ratios = {row["model"]: row["times_mvpa"] for row in step["rows"]}
    ours = next(row for row in step["rows"] if row["model"] == "MVPA")
    return (
        f"A training step of MVPA ({ours['parameters']:,} parameters) on 32 windows of ETTh1 takes "
        f"{ours['milliseconds']:.0f} ms. With their published settings, iTransformer takes "
        f"{ratios['iTransformer']:.1f} times as long, TimeMixer {ratios['TimeMixer']:.0f} times and PatchTST "
        f"{ratios['PatchTST']:.0f} times ({step['machine']}; steps interleaved).\n"
    )


def attention_summary(machines: list[dict[str, Any]]) -> str:
    """Time and memory of the linear-memory attention on CPUs; the machine where it does worst comes first."""
    times, peaks = [], []
    for machine in machines:
        size = next(
            row for row in machine["sizes"] if (row["T"], row["C"], row["dense_last_segment"]) == (50, 50, False)
        )
        forward, both = (size[f"{name}_separable_ratio"] for name in ("forward", "forward_backward"))
        text = f"{forward:.2f} and {both:.2f} times on {machine['hardware']['cpu']}"
        if "forward_sdpa_onednn_ratio" in size:
            faster = (size[f"{name}_sdpa_onednn_ratio"] for name in ("forward", "forward_backward"))
            text += " ({:.2f} and {:.2f} if PyTorch's own products went to oneDNN, too)".format(
                *(ratio / least for ratio, least in zip((forward, both), faster, strict=True))
            )
        times.append((forward, text))
        peaks += [row for row in machine["memory"] if (row["T"], row["C"]) == (50, 50)]
    separable, reference = (
        max(row["peak_gib"] for row in peaks if row["implementation"] == name) for name in ("separable", "reference")
    )
    return (
        f"Exact MVPA over 50 segments × 50 channels ({machines[0]['setting']}) takes, forward and with the backward "
        f"pass, {'; '.join(text for _, text in sorted(times, reverse=True))} what PyTorch's fused causal attention "
        f"takes on the same tokens. It takes {separable:.2f} GiB; the plain "
        f"evaluation takes {reference:.2f} (1 thread, torch {machines[0]['hardware']['torch']}; runs interleaved, "
        "medians of ratios).\n"
    )


if __name__ == "__main__":
    main()
