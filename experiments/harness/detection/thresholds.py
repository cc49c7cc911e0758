"""Whose recordings chose the threshold of a row of simulated seizures."""

from __future__ import annotations

import pandas as pd

VALIDATION = "validation subjects"
"""They neither train nor test. Rows of before say "training subjects": other recordings of these chose."""
STARRED = (
    "Thresholds were chosen on validation subjects, or, with a star, on other recordings of the training subjects."
)


def starred(rows: pd.DataFrame) -> pd.Series:
    """Names of the rows, with a star where the training subjects chose the threshold."""
    if "threshold_from" not in rows:
        return rows["row"]
    return rows["row"] + rows["threshold_from"].eq(VALIDATION).map({True: "", False: " *"})
