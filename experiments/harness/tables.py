"""Where results are kept, rows that outlive a kill, and the machine that they were measured on."""

from __future__ import annotations

import json
import os
import platform
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mvpa_ts.files import write_text

if TYPE_CHECKING:
    import pandas as pd

RESULTS = Path(__file__).parents[1] / "results"


def results_folder(subject: str, *, quick: bool = False) -> Path:
    """The folder of one subject's committed results; a quick run gets a temporary folder instead."""
    if quick:
        return Path(tempfile.mkdtemp(prefix="mvpa-ts-"))
    folder = RESULTS / subject
    folder.mkdir(parents=True, exist_ok=True)
    return folder


# pandas is imported where it is used: the attention scripts run on GPU machines that have torch, triton, numpy and
# einops only.
def read_rows(table: Path) -> pd.DataFrame:
    """The rows written so far, or an empty frame."""
    import pandas as pd

    return pd.read_csv(table) if table.is_file() else pd.DataFrame()


def append_row(table: Path, *rows: dict[str, Any]) -> None:
    """Add the row or rows of a run; the file is replaced as a whole: a kill leaves the old or the new one."""
    import pandas as pd

    write_text(table, pd.concat([read_rows(table), pd.DataFrame(rows)]).to_csv(index=False))


def write_page(table: Path, text: str) -> None:
    """Write the Markdown page that lies beside a table, and print it."""
    write_text(table.with_suffix(".md"), text)
    print(text)


def write_record(folder: Path, name: str, record: Any, page: str) -> None:
    """Write a record as JSON and the page that is made of it."""
    write_text(folder / f"{name}.json", json.dumps(record, indent=1) + "\n")
    write_page(folder / f"{name}.json", page)


def write_table(folder: Path, name: str, rows: pd.DataFrame, page: str) -> None:
    """Write rows as CSV and the page that is made of them."""
    write_text(folder / f"{name}.csv", rows.to_csv(index=False))
    write_page(folder / f"{name}.csv", page)


def machines(rows: pd.DataFrame) -> str:
    """One sentence for each kind of machine that the rows were measured on."""
    kinds = rows.groupby(["hardware", "threads", "torch"]).size().index
    return " ".join(f"Measured on {name}; {threads} thread(s), torch {version}." for name, threads, version in kinds)


def hardware(device: str = "cpu") -> str:
    """The name of the processor or the graphics card."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} cores"
