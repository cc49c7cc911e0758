"""One study: rows by key that outlive a kill, and the page that is made of them.

A script declares its key columns, the function that measures one case, and the function that makes the page:

    study = Study("forecasting", "short_runs", ["panel", "model", "seed"], markdown, quick=arguments.quick)
    study.run(itertools.product(MODELS, HORIZONS, SEEDS), measure)
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from harness.tables import append_row, hardware, read_rows, results_folder, write_page

if TYPE_CHECKING:
    import pandas as pd

Row = Mapping[str, Any]
Measure = Callable[..., Row | Iterable[Row] | None]


class Study:
    """A table of rows in the folder of its subject, which a quick run replaces by a temporary one.

    Attributes
    ----------
    table : Path
    key : list of str
        Columns that name a case. Cases that the table holds are not measured again.
    page : callable
        Makes the Markdown page beside the table from all rows.
    """

    def __init__(
        self,
        subject: str,
        name: str,
        key: Sequence[str],
        page: Callable[[pd.DataFrame], str],
        *,
        quick: bool = False,
        table: Path | None = None,
    ) -> None:
        self.table = table or results_folder(subject, quick=quick) / f"{name}.csv"
        self.key, self.page = [*key], page

    @property
    def rows(self) -> pd.DataFrame:
        """All rows so far."""
        return read_rows(self.table)

    def missing(self, cases: Iterable[Sequence[Any]]) -> list[tuple[Any, ...]]:
        """The cases that the table lacks, in their order."""
        rows = self.rows
        done = set() if rows.empty else set(rows[self.key].itertuples(index=False, name=None))
        return [tuple(case) for case in cases if tuple(case) not in done]

    def run(
        self,
        cases: Iterable[Sequence[Any]],
        measure: Measure,
        *,
        minutes: float | None = None,
        device: str = "cpu",
    ) -> None:
        """Measure the cases that the table lacks, each with its rows when it ends, and write the page.

        `measure` takes a case and gives its row or rows without the key, or nothing where the case cannot be run.
        """
        pending, started = self.missing(cases), time.perf_counter()
        machine = {"hardware": hardware(device), "threads": torch.get_num_threads(), "torch": torch.__version__}
        for index, case in enumerate(pending):
            if minutes is not None and time.perf_counter() - started > 60 * minutes:
                print(f"{len(pending) - index} runs left: start the same command again", flush=True)
                break
            measured = measure(*case)
            rows = [] if measured is None else [measured] if isinstance(measured, Mapping) else [*measured]
            if not rows:
                continue
            rows = [{**dict(zip(self.key, case, strict=True)), **row} for row in rows]
            append_row(self.table, *({**row, **machine} for row in rows))
            left = (time.perf_counter() - started) / (index + 1) * (len(pending) - index - 1) / 60
            # A terminal shows the progress of a run on the line that its result takes.
            start = "\r\033[K" if sys.stdout.isatty() else ""
            print(f"{start}[{index + 1}/{len(pending)}] {_summary(rows)}; {left:.0f} min left", flush=True)
        self.write()

    def write(self) -> None:
        """Write the page from the rows at hand."""
        if self.rows.empty:
            raise SystemExit(f"{self.table} holds no run yet")
        write_page(self.table, self.page(self.rows))


def _summary(rows: Sequence[Row]) -> str:
    """The first values of the first row, numbers short."""
    shown = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in [*rows[0].values()][:8]]
    return ", ".join(shown) + (f" and {len(rows) - 1} more" if len(rows) > 1 else "")


def grid(heads: Sequence[Any], lines: Iterable[Sequence[Any]]) -> list[str]:
    """Lines of a Markdown table."""
    cells = [heads, ["---"] * len(heads), *lines]
    rows = [f"| {' | '.join(map(str, line))} |" for line in cells]
    return [rows[0], rows[1].replace(" ", ""), *rows[2:]]


def paragraphs(*parts: str | Sequence[str]) -> str:
    """A page of sentences and of tables in lines, with an empty line between two of them."""
    return "\n\n".join(part if isinstance(part, str) else "\n".join(part) for part in parts) + "\n"


def spread(values: pd.Series, digits: int = 3) -> str:
    """Mean of runs, with their standard deviation where there are several; a dash where there is none."""
    if values.empty:
        return "–"
    deviation = f" ± {values.std():.{digits}f}" if len(values) > 1 else ""
    return f"{values.mean():.{digits}f}{deviation}"
