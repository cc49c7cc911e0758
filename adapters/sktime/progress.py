"""A progress bar for those who ask for one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any


@contextmanager
def progress_bar(verbose: bool) -> Iterator[Callable[..., None]]:
    """A function to tell how far a run is; a new label begins a new bar. Nothing is shown unless `verbose`."""
    bars: dict[str, Any] = {}
    shown = ExitStack()

    def show(label: str, step: int, steps: int, **facts: float | None) -> None:
        if not verbose:
            return
        from tqdm.auto import tqdm

        if label not in bars:
            shown.close()
            bars[label] = shown.enter_context(tqdm(total=steps, desc=label))
        bars[label].update(step - bars[label].n)
        values = {name: f"{value:.4f}" for name, value in facts.items() if value is not None}
        bars[label].set_postfix(values, refresh=False)

    with shown:
        yield show
