"""A progress bar for those who ask for one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol


class Show(Protocol):
    """What is told of a run."""

    def __call__(self, label: str, step: int, steps: int, **facts: float | None) -> None:
        """`step` of `steps` is done; a new label begins a new bar."""


@contextmanager
def progress_bar(verbose: bool) -> Iterator[Show]:
    """What to tell of a run; nothing is shown unless `verbose`."""
    bars: dict[str, Any] = {}

    def show(label: str, step: int, steps: int, **facts: float | None) -> None:
        if not verbose:
            return
        from tqdm.auto import tqdm

        if label not in bars:
            for bar in bars.values():
                bar.close()
            bars[label] = tqdm(total=steps, desc=label)
        bars[label].update(step - bars[label].n)
        known = {name: f"{value:.4f}" for name, value in facts.items() if value is not None}
        bars[label].set_postfix(known, refresh=False)

    try:
        yield show
    finally:
        for bar in bars.values():
            bar.close()
