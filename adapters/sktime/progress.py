"""A progress bar for those who ask for one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(total: int, label: str, verbose: bool) -> Iterator[Callable[[int, float], None] | None]:
    """What to tell the steps done and the last loss; None, and nothing shown, unless `verbose`."""
    if not verbose:
        yield None
        return
    from tqdm.auto import tqdm

    with tqdm(total=total, desc=label) as bar:

        def show(step: int, loss: float) -> None:
            bar.update(step - bar.n)
            bar.set_postfix(loss=f"{loss:.4f}", refresh=False)

        yield show
