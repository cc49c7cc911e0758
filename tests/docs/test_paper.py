"""docs/paper.md: what it names exists, and its numbers are those of the committed results."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
from harness.paper import tables as paper
from harness.tables import RESULTS

from mvpa_ts.ieeg.datasets.cohort import PAPER_TRAIN
from mvpa_ts.ieeg.datasets.swec import swec_subjects

PAGE = Path(__file__).parents[2] / "docs" / "paper.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_files_that_are_named_exist() -> None:
    root = PAGE.parents[1]
    named = re.findall(r"`((?:mvpa_ts|ieeg|experiments)/[\w./]+)`", TEXT)
    assert len(named) > 15
    assert not [name for name in named if not (root / name).exists()]


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)", TEXT):
        assert (PAGE.parent / target).exists(), target


def test_numbers_are_those_of_the_results() -> None:
    rows = pd.read_csv(RESULTS / "attention" / "attention_dual.csv")
    chosen = rows[(rows["codes"] == "sinusoids") & (rows["strength"] == 0.3)]
    assert f"within {chosen['scores'].mean():.2f} of dual scores" in TEXT
    subjects = {subject.subject: subject for subject in swec_subjects()}
    assert f"ID01–ID18 hold {sum(subjects[name].events for name in PAPER_TRAIN)} events" in TEXT
    for name in ("18_patients_small_allchannels", "58_patients_small"):
        table = paper.seizures(name)
        assert (table["sensitivity"] == table["false detections/h"]).mean() >= 0.9


def test_kappas_of_the_paper_are_not_all_on_raw_decisions() -> None:
    """Said in docs/detection.md; two tables repeat rows of another."""
    repeated = {"18_patients_selected", "18_patients_teston40"}
    names = {path.stem for path in paper.FOLDER.glob("*_patients_*.tsv")} - repeated
    rows = pd.concat([paper.seizures(name) for name in names])
    above = (rows["kappa"] > rows["raw F1"] + 0.1 + 1e-9).sum()
    assert f"in {above} of the {len(rows)} rows" in (PAGE.parent / "detection.md").read_text(encoding="utf-8")
    whole = paper.seizures("18_patients_small_manual")
    for name in repeated:
        part = paper.seizures(name)
        pd.testing.assert_frame_equal(part, whole.loc[part.index])
