"""Recordings as training and validation batches for Lightning."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import lightning.pytorch as pl
from torch.utils.data import BatchSampler, DataLoader, Sampler

from mvpa_ts.checks import check_choices, check_switches, keep_whole, listed, warn
from mvpa_ts.ieeg.constants import counted
from mvpa_ts.ieeg.model.seen_subjects import recording_hash
from mvpa_ts.ieeg.preprocessing.segments import Segments
from mvpa_ts.ieeg.preprocessing.selection import with_channels
from mvpa_ts.ieeg.recordings.recording import Recording, warn_of_unannotated
from mvpa_ts.ieeg.recordings.subjects import subject_of_each
from mvpa_ts.ieeg.recordings.swec_table import identity, warn_of_missing_subjects
from mvpa_ts.ieeg.training import division
from mvpa_ts.ieeg.training.sampling import Balance, EndlessBatches, SpanSampler
from mvpa_ts.ieeg.training.similarity import TWO_MINUTES
from mvpa_ts.ieeg.training.spans import HeldSegments, SpanDataset, collate


@dataclass(frozen=True)
class Simulation:
    """Simulated subjects instead of recordings, see `mvpa_ts.ieeg.simulate_cohort`.

    Attributes
    ----------
    subjects : int
    channels : list of int
        Numbers of channels; the subjects take them in turn.
    hours : float
        Length of each subject's recording.
    seizures : int, optional
        For each subject; default: one in an hour.
    seed : int
    """

    subjects: int = 6
    channels: tuple[int, ...] = (4, 6, 8)
    hours: float = 0.5
    seizures: int | None = 4
    seed: int = 0

    def recordings(self) -> list[Recording]:
        """Simulate one recording for each subject, named S01, S02, …"""
        from mvpa_ts.ieeg.simulation.simulate import simulate_cohort

        return simulate_cohort(
            self.subjects,
            seed=self.seed,
            num_channels=self.channels,
            duration=self.hours * 3600,
            num_seizures=self.seizures,
        )


class RecordingDataModule(pl.LightningDataModule):
    """Training and validation spans of different subjects.

    A span has `context` + `windows` segments and is read once. It holds `windows` overlapping windows, each with the
    segment after it. The seed and the number of a batch decide which spans it holds. So training can resume where it
    stopped, with any number of workers.

    Parameters
    ----------
    recordings : list of path, optional
        Recordings, or files and folders, see `mvpa_ts.ieeg.recordings.finding.find_recordings`.
    simulation : Simulation, optional
        Simulated subjects instead of `recordings`.
    validation_subjects : list of str
        Subjects for validation; all others train. A person who is on both sides under two names of SWEC is refused.
    validation_recordings : list of path, optional
        Recordings for validation, instead of subjects: for a detector of one patient. A file in both lists is refused.
        An empty list: all recordings train, and none validates.
    context : int, default 100
        T, segments in a window.
    windows : int, default 1
        Windows in a span.
    batch_size : int, default 8
        Spans in a batch of one process.
    balance : {"subject", "none", "ictal"}, default "subject"
        "subject" draws all subjects equally often. "none" takes every span once in an epoch. "ictal" draws spans with a
        seizure half of the time. A person with two names in SWEC counts as one subject.
    channels : int or "all", default "all"
        Largest number of channels. If a recording has more, this many are selected automatically.
    in_memory : bool, default False
        Read and preprocess all recordings once and keep them in memory; for sets that fit.
    workers : int, default 0
        Processes that read; 0: the training process reads.
    allow_duplicates : bool, default False
        Only warn of a person, or copies of a recording, on both sides, and of a validation subject that the base of a
        finetuning was trained on.
    subjects : path, optional
        Table of subjects and their files, see `mvpa_ts.ieeg.recordings.subjects.read_subjects`. Without it, each file
        outside BIDS counts as a separate subject.
    unit, rate, truncated, seizure_words
        How files are read that do not state a unit, have channels at several rates, were cut short, or name seizures by
        other words; see `mvpa_ts.ieeg.read_recording`.
    seed : int, default 0

    Raises
    ------
    ValueError
        There are no recordings, or none for training or for validation; a validation subject is unknown; a person or a
        file is on both sides; recordings are too short for one span; or the table of subjects names other files.

    Examples
    --------
    >>> from mvpa_ts.ieeg import simulate_cohort
    >>> recordings = simulate_cohort(3, num_channels=4, duration=300)
    >>> data = RecordingDataModule(recordings, validation_subjects=["S03"], context=4, batch_size=2)
    >>> data.setup()
    >>> batch = next(iter(data.train_dataloader()))
    >>> batch["signal"].shape  # spans of five segments: a window and the segment after it
    torch.Size([2, 4, 12800])
    """

    def __init__(
        self,
        recordings: Sequence[str | Path | Recording] | None = None,
        simulation: Simulation | None = None,
        validation_subjects: Sequence[str] = (),
        validation_recordings: Sequence[str | Path | Recording] | None = None,
        context: int = 100,
        windows: int = 1,
        batch_size: int = 8,
        balance: Balance = "subject",
        channels: int | Literal["all"] = "all",
        in_memory: bool = False,
        workers: int = 0,
        allow_duplicates: bool = False,
        subjects: str | Path | None = None,
        unit: str | None = None,
        rate: float | None = None,
        truncated: Literal["error", "read"] = "error",
        seizure_words: Sequence[str] = (),
        seed: int = 0,
    ) -> None:
        super().__init__()
        if (recordings is None) == (simulation is None):
            got = "neither" if recordings is None else "both"
            raise ValueError(
                f"recordings or simulation must be given, got {got}: name files or folders in "
                "recordings (--data.recordings '[night.edf]')"
                + ("" if recordings is None else ", or leave one of the two out")
            )
        if subjects is not None and (recordings is None or any(isinstance(item, Recording) for item in recordings)):
            raise ValueError("subjects is a table of files, so recordings must be paths, not objects")
        if validation_recordings is not None and (validation_subjects or recordings is None):
            raise ValueError(
                "validation_recordings replaces validation_subjects and needs recordings: set "
                "validation_subjects to [] and simulation to null"
            )
        if channels != "all" and (isinstance(channels, str) or channels < 1):
            raise ValueError(f"channels must be 'all' or a number of at least 1, got {channels!r}")
        self.sources = recordings
        self.simulation = simulation
        self.validation_subjects = tuple(validation_subjects)
        self.validation_sources = validation_recordings
        self.context = context
        self.windows = windows
        self.batch_size = batch_size
        self.balance: Balance = balance
        check_choices(self, balance=get_args(Balance))
        self.channels = channels
        self.in_memory = in_memory
        self.workers = workers
        keep_whole(self, 1, "context", "windows", "batch_size")
        keep_whole(self, 0, "workers")
        check_switches(in_memory=in_memory, allow_duplicates=allow_duplicates)
        self.allow_duplicates = allow_duplicates
        self.subjects = subjects
        self.reading = {"unit": unit, "rate": rate, "truncated": truncated, "seizure_words": tuple(seizure_words)}
        self.seed = seed
        self._recordings: tuple[list[Recording], list[Recording]] | None = None
        self.training: SpanDataset | None = None
        self.validation: SpanDataset | None = None
        self.past = False
        """Whether spans come with the log power of the segments before, as a model with amplitude needs it."""
        self._state: dict[str, Any] | None = None
        self._contents: dict[int, str] = {}

    def setup(self, stage: str | None = None) -> None:
        """Open the recordings and split them by subject, or by `validation_recordings`."""
        # Lightning calls this again for validation, and recordings are opened once.
        if self.training is not None:
            return
        train, held_out = self.open()
        if self.trainer is not None:
            config = self.trainer.lightning_module.config
            self.past = config.amplitude == "bands"
            if self.channels == "all" and config.attention == "mvpa":
                # Now, not when the first batch of that recording comes after an hour.
                division.check_channel_counts([*train, *held_out], config.channel_rows)
        self.training = self._dataset([self._segments(item) for item in train], "training")
        if held_out:
            self.validation = self._dataset([self._segments(item) for item in held_out], "validation")
        elif stage == "fit" and self.trainer is not None:
            # Without this Lightning asks for a loader and warns that it is empty.
            self.trainer.limit_val_batches = 0

    @property
    def given_paths(self) -> list[Path]:
        """Files and folders that are to train or to validate, as they were named."""
        sources = (*(self.sources or ()), *(self.validation_sources or ()))
        return [Path(item) for item in sources if isinstance(item, (str, Path))]

    def open(self) -> tuple[list[Recording], list[Recording]]:
        """Recordings that train and those that validate, opened once."""
        if self._recordings is None:
            train, held_out = self._divided()
            division.check_copies(train, held_out, self.allow_duplicates)
            self._recordings = train, held_out
        return self._recordings

    def _divided(self) -> tuple[list[Recording], list[Recording]]:
        if self.simulation is not None:
            simulated = self.simulation.recordings()
            return division.divided_by_subject(simulated, self.validation_subjects, self.allow_duplicates)
        sources = division.found_recordings(self.sources or ())
        held_out = division.found_recordings(self.validation_sources or ())
        # By file, as a file in both lists would be scored after training on it.
        division.check_lists(sources, held_out)
        warn_of_missing_subjects(self.given_paths, [item for item in (*sources, *held_out) if isinstance(item, Path)])
        recordings = self._read([*sources, *held_out])
        if self.validation_sources is None:
            return division.divided_by_subject(recordings, self.validation_subjects, self.allow_duplicates)
        if not sources:
            raise ValueError("no recording is left for training: list other files in validation_recordings")
        return recordings[: len(sources)], recordings[len(sources) :]

    def _dataset(self, segments: Sequence[Segments], use: Literal["training", "validation"]) -> SpanDataset:
        """Cut the recordings that are long enough into spans."""
        # In validation, references reach two minutes past the window, and each segment is predicted once.
        span, shared = self.context + self.windows, self.context + 1
        if use == "validation":
            span, shared = self.context + TWO_MINUTES, TWO_MINUTES + 1
        return SpanDataset(division.long_enough(segments, span, use), span, window=shared, past=self.past)

    def _padded(self) -> int:
        """Length of padded spans in validation, so that a short span does not depend on the others in its batch."""
        return self.context + TWO_MINUTES

    def _read(self, items: Sequence[Path | Recording]) -> list[Recording]:
        from mvpa_ts.ieeg.recordings.finding import warn_of_shared_names
        from mvpa_ts.ieeg.recordings.reading import read_recording

        files = [item for item in items if isinstance(item, Path)]
        if self.subjects is None:
            warn_of_shared_names(files)
        subjects = {} if self.subjects is None else subject_of_each(files, self.subjects)
        return [
            item if isinstance(item, Recording) else read_recording(item, subject=subjects.get(item), **self.reading)  # type: ignore[arg-type]
            for item in items
        ]

    def _segments(self, recording: Recording) -> Segments:
        segments = Segments(recording)
        if self.channels != "all":
            segments = with_channels(segments, "auto", most=self.channels)
        return HeldSegments(segments) if self.in_memory else segments

    def train_dataloader(self) -> DataLoader[dict[str, Any]]:
        """Yield batches without end; training stops at a number of steps."""
        assert self.training is not None
        sampler = self._sampler(self.training)
        # The place in the order follows from the number of finished batches.
        return self._loader(self.training, EndlessBatches(sampler, self.batch_size, self._batches_done))

    def val_dataloader(self) -> DataLoader[dict[str, Any]]:
        """Yield spans of the validation subjects, always in the same order."""
        if self.validation is None:
            raise ValueError("validation_recordings is empty, so there is nothing to validate: list some files")
        sampler = SpanSampler(self.validation.subjects, seed=self.seed, **self._process())
        return self._loader(self.validation, BatchSampler(sampler, self.batch_size, drop_last=False), self._padded())

    def _loader(
        self, dataset: SpanDataset, batches: Sampler[list[int]], segments: int = 1
    ) -> DataLoader[dict[str, Any]]:
        if self.in_memory and not self.workers and self.trainer is not None and self.trainer.progress_bar_callback:
            dataset.read_ahead(progress=self.trainer.is_global_zero)
        return DataLoader(
            dataset,
            batch_sampler=batches,
            num_workers=self.workers,
            collate_fn=partial(collate, segments=segments),
            pin_memory=self.trainer is not None and self.trainer.strategy.root_device.type == "cuda",
            persistent_workers=self.workers > 0,
        )

    def _sampler(self, dataset: SpanDataset) -> SpanSampler:
        return SpanSampler(
            [identity(subject) for subject in dataset.subjects],  # who is in SWEC twice is drawn as one
            dataset.ictal,
            balance=self.balance,
            seed=self.seed,
            **self._process(),
        )

    def _batches_done(self) -> int:
        if self.trainer is not None:
            return self.trainer.lightning_module.batches_done
        return 0 if self._state is None else self._state["batches"]

    def _process(self) -> dict[str, Any]:
        trainer = self.trainer
        return {} if trainer is None else {"rank": trainer.global_rank, "world_size": trainer.world_size}

    def state_dict(self) -> dict[str, Any]:
        """Return everything that decides the order of the data, and the number of finished training batches."""
        assert self.trainer is not None
        return {"batches": self._batches_done(), "settings": self._settings()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on after the batches of a checkpoint; raise a ValueError if the data is not the same."""
        # A validation may use other data than the training did.
        continued = self.trainer is None or self.trainer.training
        ours, theirs = (self._settings(), state_dict["settings"]) if continued else ({}, {})
        if different := [name for name in {**ours, **theirs} if theirs.get(name) != ours.get(name)]:
            changes = [f"{name}: {theirs.get(name)!r} there, {ours.get(name)!r} here" for name in different]
            raise ValueError(f"the checkpoint belongs to a run on other data ({listed(changes)})")
        self._state = dict(state_dict)

    def _settings(self) -> dict[str, Any]:
        assert self.training is not None
        names = ("context", "windows", "batch_size", "channels")
        settings = {name: getattr(self, name) for name in names} | self._sampler(self.training).settings()
        simulation = self.simulation and {**asdict(self.simulation), "channels": list(self.simulation.channels)}
        settings |= {"simulation": simulation, "validation_subjects": list(self.validation_subjects)}
        if self.subjects is not None:
            settings["subjects of the table"] = [item.subject for item in self.training.segments]
        # By number, because the order of the recordings decides what an index of the sampler means.
        for use, dataset in (("training", self.training), ("validation", self.validation)):
            if dataset is None:
                continue
            for number, item in enumerate(dataset.segments, 1):
                size = f"{item.num_segments} segments of {len(item.channel_names)} channels"
                settings[f"{use} recording {number}"] = f"{item.recording.name}, {size}"
                if self.simulation is None:  # else its seeds say as much
                    settings[f"samples and seizures of {use} recording {number}"] = self._content(item.recording)
        return settings

    def _content(self, recording: Recording) -> str:
        """Hash of a recording's samples and marks, which is asked for with each checkpoint and read once."""
        if id(recording) not in self._contents:
            text = f"{recording_hash(recording)} {recording.seizures if recording.annotated else None}"
            text += f" {recording.bad_spans}" * bool(recording.bad_spans)
            self._contents[id(recording)] = hashlib.sha256(text.encode()).hexdigest()[:16]
        return self._contents[id(recording)]


class SeizureDataModule(RecordingDataModule):
    """Spans for finetuning: up to `windows` segments with their labels, and the `context` − 1 segments before them.

    Works like `RecordingDataModule`, but every segment of a recording of 5 s or more is a target once. The windows of
    the first segments are padded as in `Detector`. The last segment may overlap the one before it. A warning names
    recordings that do not say whether they hold a seizure. Another says what is not measured if no validation recording
    holds one.
    """

    def setup(self, stage: str | None = None) -> None:
        """Open and split the recordings, and warn of those that are taken as seizure-free without saying so."""
        if self.training is not None:
            return
        super().setup(stage)
        # Half of the draws need a seizure, so this is said before the first batch.
        if self.balance == "ictal" and self.training is not None:
            division.check_seizures([item.recording for item in self.training.segments])
        datasets = [dataset for dataset in (self.training, self.validation) if dataset is not None]
        recordings = [item.recording for dataset in datasets for item in dataset.segments]
        # An unlabelled seizure would teach the model that it is none.
        warn_of_unannotated(recordings, "so there is none for the training")

    def summary(self) -> str:
        """How much trains and validates, in words.

        Examples
        --------
        >>> from mvpa_ts.ieeg import simulate_recording
        >>> recordings = [simulate_recording(name, duration=60, num_seizures=1) for name in ("S1", "S2")]
        >>> data = SeizureDataModule(recordings[:1], validation_recordings=recordings[1:], context=4)
        >>> data.setup()
        >>> data.summary()
        'training: 1 recording, 1 seizure in 7 of 12 segments; validation: 1 recording, 1 seizure in 7 of 12 segments'
        """
        clauses = []
        for name, dataset in (("training", self.training), ("validation", self.validation)):
            if dataset is None:
                clauses.append(f"{name}: none")
                continue
            recordings = counted(len(dataset.segments), "recording")
            seizures = counted(sum(len(item.recording.seizures) for item in dataset.segments), "seizure")
            labels = [label for item in dataset.segments for label in item.labels()]
            clauses.append(f"{name}: {recordings}, {seizures} in {sum(labels)} of {len(labels)} segments")
        return "; ".join(clauses)

    def _dataset(self, segments: Sequence[Segments], use: Literal["training", "validation"]) -> SpanDataset:
        if use == "validation" and segments and not any(item.recording.seizures for item in segments):
            warn(
                "no validation recording holds a seizure, so AUROC, average precision, F1 and kappa say nothing, and "
                "whether seizures are found is not measured: add recordings with annotated seizures "
                "(--data.validation_subjects or --data.validation_recordings)"
            )
        return SpanDataset(segments, self.windows, before=self.context - 1, past=self.past, tail=True)

    def _padded(self) -> int:
        return 1
