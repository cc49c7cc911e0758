"""Orders in which training sees spans: shuffled, subject-balanced or ictal-balanced; resumable and distributed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Sampler

from mvpa_ts.checks import check_choices

Balance = Literal["none", "subject", "ictal"]
# Share of the draws with a seizure under balance "ictal".
ICTAL_SHARE = 0.5


class SpanSampler(Sampler[int]):
    """Indices of spans, in an order that follows from seed and epoch.

    All processes share one order, and each takes every `world_size`-th index of it. The sampler runs in the main
    process, so the number of workers changes nothing.

    Parameters
    ----------
    subjects : sequence of str
        Subject of each span; `SpanDataset.subjects`.
    ictal : array of bool, optional
        Whether each span holds a seizure; needed for balance "ictal".
    balance : {"none", "subject", "ictal"}
        "none" shuffles all spans: every span once in an epoch. "subject" draws all subjects equally often. "ictal"
        draws a span with a seizure in `ICTAL_SHARE` of the draws, and one without in the others; for each kind, all
        subjects that have such spans are drawn equally often. No span comes twice before all others of its subject
        and kind came once.
    num_samples : int, optional
        Draws in an epoch, over all processes; default: the number of spans.
    seed : int
    rank, world_size : int
        Number of this process, and number of all processes.

    Raises
    ------
    ValueError
        "ictal" without spans of both kinds, or a number out of range.

    Examples
    --------
    >>> sampler = SpanSampler(["S01"] * 6 + ["S02"] * 2, balance="subject", seed=1)
    >>> [sum(i < 6 for i in sampler), len(sampler)]
    [4, 8]
    """

    def __init__(
        self,
        subjects: Sequence[str],
        ictal: NDArray[np.bool_] | None = None,
        *,
        balance: Balance = "none",
        num_samples: int | None = None,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.balance: Balance = balance
        check_choices(self, balance=get_args(Balance))
        if not len(subjects):
            raise ValueError("subjects must hold at least one span, got none")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank must lie in [0, world_size = {world_size}), got {rank}")
        if balance == "ictal":
            if ictal is None:
                raise ValueError("balance='ictal' needs ictal, a flag for each span, got None")
            if not np.any(ictal):
                raise ValueError(
                    "the recordings that train hold no seizure, and balance='ictal' needs stretches of both kinds: add "
                    "recordings, or annotate their seizures"
                )
            if np.all(ictal):
                raise ValueError(
                    "the recordings that train hold only seizures, or less than a span beside them, and "
                    "balance='ictal' needs stretches of both kinds: add recordings without a seizure, or make spans "
                    "shorter (--data.windows)"
                )
        if num_samples is not None and num_samples < 1:
            raise ValueError(f"num_samples must be positive, got {num_samples}")
        self.subjects = np.array(subjects)
        self.ictal = np.zeros(len(subjects), bool) if ictal is None else np.asarray(ictal, bool)
        self.total = len(subjects) if num_samples is None else num_samples
        self.seed = seed
        self.rank, self.world_size = rank, world_size

    def order(self, epoch: int) -> NDArray[np.intp]:
        """Return the indices of all processes in an epoch; a few come twice to make the shares of processes equal."""
        # All processes draw the whole order and take their share, so that the order does not depend on their number.
        rng = np.random.default_rng([self.seed, epoch])
        everything = np.arange(len(self.subjects))
        if self.balance == "none":
            drawn = _rounds(everything, self.total, rng)
        elif self.balance == "subject":
            drawn = self._by_subject(everything, self.total, rng)
        else:
            count = round(self.total * ICTAL_SHARE)
            # Drawn apart and mixed, as seizures are a thousandth of most recordings.
            seizures = self._by_subject(everything[self.ictal], count, rng)
            others = self._by_subject(everything[~self.ictal], self.total - count, rng)
            drawn = rng.permutation(np.concatenate([seizures, others]))
        return np.resize(drawn, -(-self.total // self.world_size) * self.world_size)

    def of_process(self, epoch: int) -> NDArray[np.intp]:
        """Return the indices of this process in an epoch."""
        return self.order(epoch)[self.rank :: self.world_size]

    def _by_subject(self, indices: NDArray[np.intp], count: int, rng: np.random.Generator) -> NDArray[np.intp]:
        names = np.unique(self.subjects[indices])
        # If the draws do not divide evenly, the subjects with one draw more are drawn too.
        who = _rounds(np.arange(len(names)), count, rng)
        drawn = np.empty(count, np.intp)
        for i, name in enumerate(names):
            places = np.flatnonzero(who == i)
            drawn[places] = _rounds(indices[self.subjects[indices] == name], len(places), rng)
        return drawn

    def __len__(self) -> int:
        """Count the indices of this process in a whole epoch."""
        return -(-self.total // self.world_size)

    def __iter__(self) -> Iterator[int]:
        """Yield the indices of this process in the first epoch."""
        yield from self.of_process(0).tolist()

    def settings(self) -> dict[str, Any]:
        """What decides the order, apart from the spans."""
        return {"seed": self.seed, "balance": self.balance, "total": self.total, "world_size": self.world_size}


class EndlessBatches(Sampler[list[int]]):
    """Batches of indices, epoch after epoch, from batch number `done` on; earlier draws do not change them.

    Parameters
    ----------
    sampler : SpanSampler
    batch_size : int
    done : int or function
        Number of batches that training has finished. A function is called whenever iteration begins. This is needed if
        `limit_train_batches` begins iteration several times in a run: workers draw ahead, so draws do not count.
    """

    def __init__(self, sampler: SpanSampler, batch_size: int, done: int | Callable[[], int] = 0) -> None:
        self.sampler = sampler
        self.batch_size = batch_size
        self.done = done

    def __iter__(self) -> Iterator[list[int]]:
        """Yield lists of `batch_size` indices; a batch may reach into the next epoch."""
        done = self.done if isinstance(self.done, int) else self.done()
        epoch, position = divmod(done * self.batch_size, len(self.sampler))
        batch: list[int] = []
        while True:
            # The sampler keeps no position: Lightning would set it back when a run goes on, and workers draw ahead.
            for index in self.sampler.of_process(epoch)[position:].tolist():
                batch.append(index)
                if len(batch) == self.batch_size:
                    yield batch
                    batch = []
            epoch, position = epoch + 1, 0


def _rounds(values: NDArray[np.intp], count: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Draw `count` values in rounds; each round shuffles all values."""
    rounds = [rng.permutation(values) for _ in range(-(-count // len(values)))]
    return np.concatenate([*rounds, values[:0]])[:count]
