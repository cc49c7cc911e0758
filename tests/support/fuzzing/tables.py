"""Tables and the sets that they list: MAYO/FNUSA, Brain TreeBank, .ts, benchmark CSV, subjects, events."""

import csv
import hashlib
import json
import os
from pathlib import Path
from unittest import mock

import numpy as np
from harness.tables import append_row, read_rows
from support.fuzzing.formats import Format

from mvpa_ts.datasets.forecasting import forecasting_windows, load_forecasting_frame
from mvpa_ts.datasets.uea import read_ts
from mvpa_ts.ieeg.datasets.nejedly import SAMPLES, nejedly_segments, read_nejedly
from mvpa_ts.ieeg.datasets.treebank import read_treebank, read_words
from mvpa_ts.ieeg.recordings.events_table import read_seizures
from mvpa_ts.ieeg.recordings.subjects import read_subjects


def write_nejedly(folder: Path, signals: np.ndarray, rows: list[tuple[int, str, int]]) -> None:
    """Segments of MAYO's layout; of each the number and the name of its class, and its patient."""
    from scipy.io import savemat

    with (folder / "segments.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(
            ["index", "category_id", "category_name", "channel", "electrode_type", "institution", "patient_id",
             "reviewer_id", "segment_id", "soz"]
        )  # fmt: skip
        for i, (number, name, patient) in enumerate(rows):
            table.writerow([i, number, name, f"ch{i}", "depth", "mayo", patient, 1, f"seg{i}", i % 2])
            savemat(folder / f"seg{i}.mat", {"data": signals[i : i + 1]}, do_compression=i == 1)


def make_mayo(folder: Path) -> None:
    x = np.random.default_rng(0).normal(0, 50, (4, SAMPLES))
    write_nejedly(folder, x, [(i, ("physiology", "pathology")[i % 2], i) for i in range(4)])


def read_mayo(folder: Path) -> None:
    for segment in nejedly_segments(folder)[:4]:
        read_nejedly(segment)


def write_treebank(folder: Path, signals: np.ndarray, labels: list[str], clean: list[str]) -> None:
    """Trial 0 of subject 3 in the layout of the TreeBank."""
    import h5py

    (folder / "electrode_labels" / "sub_3").mkdir(parents=True)
    (folder / "electrode_labels" / "sub_3" / "electrode_labels.json").write_text(json.dumps(labels))
    (folder / "corrupted_elec.json").write_text(json.dumps({"subject3": ["A4#", "DC1"], "subject1": []}))
    (folder / "clean_laplacian.json").write_text(json.dumps({"sub_3": clean}))
    with h5py.File(folder / "sub_3_trial000.h5", "w") as file:
        for i, row in enumerate(signals):
            file[f"data/electrode_{i}"] = row


def make_treebank(folder: Path) -> None:
    x = np.random.default_rng(0).normal(0, 50, (6, 4096))
    write_treebank(folder, x, ["A1", "A2*", "A3", "A4#", "DC1", "B1"], ["A2", "A3"])
    (folder / "features.csv").write_text(
        "text,start,end,is_onset,rms,pitch\nhi,11,11.5,1,0.1,100\nyou,,,0,0.2,110\nthere,19,19.2,0,0.3,120\n"
    )
    (folder / "timings.csv").write_text("type,movie_time,index\ntrigger,10,1000\nbegin,,\ntrigger,20,22000\n")


def _read_treebank(folder: Path) -> None:
    recording = read_treebank(folder, 3, 0)
    recording.read(0, min(recording.num_samples, 4096))
    read_words(folder / "features.csv", folder / "timings.csv")


def make_ts(folder: Path) -> None:
    lines = ["@problemName x", "@timeStamps false", "@univariate false", "@dimensions 2", "@equalLength false"]
    lines += ["@classLabel true a b", "@data", "1,2.5,?:-1e-2,0,3:b", "4,5:6,7:a", "1,2,3:7,8,9:a"]
    (folder / "x.ts").write_text("\n".join(lines) + "\n")


def make_benchmark(folder: Path) -> None:
    rows = [f"2016-07-{1 + i // 24:02d} {i % 24:02d}:00:00,{i % 7},{i * 0.5},{-i}" for i in range(400)]
    (folder / "ETT-small").mkdir()
    (folder / "ETT-small" / "ETTh1.csv").write_text("date,HUFL,HULL,OT\n" + "\n".join(rows) + "\n")


def read_benchmark(folder: Path) -> None:
    """The file is listed with its checksum, so that what follows the comparison is tested too."""
    path = folder / "ETT-small" / "ETTh1.csv"
    content = hashlib.sha256(path.read_bytes()).hexdigest()
    (folder / "SHA256SUMS").write_text(f"{content}  ETT-small/ETTh1.csv\n")
    with mock.patch.dict(os.environ, MVPA_TS_DATA=str(folder)):
        frame = load_forecasting_frame("ETTh1")
        if len(frame) > 100:
            forecasting_windows(frame, "Weather", lookback=4, horizon=2)


def make_lists(folder: Path) -> None:
    for name in ("first.edf", "second.edf"):
        (folder / name).touch()
    (folder / "subjects.tsv").write_text("file\tsubject\nfirst.edf\tAda\nsecond.edf\tBob\n")
    (folder / "events.tsv").write_text(
        "onset\tduration\teventType\tconfidence\tchannels\tdateTime\trecordingDuration\n"
        "12.5\t30\tsz_foc_ia\tn/a\tall\t2016-11-06 13:43:04\t3600.00\n100\tn/a\tsz\t0.5\tall\tn/a\t3600.00\n"
    )


def read_lists(folder: Path) -> None:
    read_seizures(folder / "events.tsv", 3600.0)
    read_subjects(folder / "subjects.tsv")


def make_study(folder: Path) -> None:
    rows = ({"model": "MVPA", "horizon": 96, "seed": seed, "mse": 0.37 + seed / 7, "settings": "{}"} for seed in (1, 2))
    append_row(folder / "study.csv", *rows)


FORMATS = (
    Format("MAYO tables", make_mayo, read_mayo, ("segments.csv", "*.mat")),
    Format("TreeBank", make_treebank, _read_treebank, ("**/*.json", "*.csv", "*.h5")),
    Format(".ts", make_ts, lambda folder: read_ts(folder / "x.ts"), ("x.ts",)),
    Format("benchmark CSV", make_benchmark, read_benchmark, ("ETT-small/ETTh1.csv",)),
    Format("study tables", make_study, lambda folder: read_rows(folder / "study.csv"), ("study.csv",)),
    Format("subjects and events", make_lists, read_lists, ("*.tsv",)),
)
