"""Which recordings train and which validate, with no file or person on both sides, and whether they can."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mvpa_ts.checks import listed, warn
from mvpa_ts.ieeg.datasets.cohort import split_subjects
from mvpa_ts.ieeg.preprocessing.segments import Segments
from mvpa_ts.ieeg.recordings.copies import copies
from mvpa_ts.ieeg.recordings.recording import Recording


def found_recordings(sources: Sequence[str | Path | Recording]) -> list[Path | Recording]:
    """List recordings and files, each once, even if a folder and a file in it are both named.

    Raises FileNotFoundError for a folder without a recording.
    """
    from mvpa_ts.ieeg.recordings.finding import find_recordings
    from mvpa_ts.ieeg.recordings.reading import as_recording

    items: dict[Path | int, Path | Recording] = {}
    for source in sources:
        inside = find_recordings(source) if isinstance(source, (str, Path)) else [as_recording(source)]
        if not inside:
            raise FileNotFoundError(f"there is no recording in {source}")
        for item in inside:
            # Named twice, a recording would be drawn twice as often, or stand on both sides.
            items.setdefault(_identity(item), item)
    return list(items.values())


def check_lists(training: Sequence[Path | Recording], validation: Sequence[Path | Recording]) -> None:
    """Raise a ValueError where a file or recording is in both lists."""
    trained = {_identity(item) for item in training}
    if repeated := [item.name for item in validation if _identity(item) in trained]:
        raise ValueError(f"{', '.join(repeated)} is among recordings and among validation_recordings: leave it in one")


def check_copies(
    training: Sequence[Recording], validation: Sequence[Recording], allow_duplicates: bool = False
) -> None:
    """Raise a ValueError where a recording validates of which a copy trains; warn of other copies."""
    recordings = [*training, *validation]
    pairs = copies(recordings)
    across = [pair for pair in pairs if pair[0] < len(training) <= pair[1]]
    for alike, use in ((across, "train and validate"), ([*{*pairs} - {*across}], "count twice")):
        if not alike:
            continue
        named = listed(f"{recordings[i].name} and {recordings[j].name}" for i, j in sorted(alike))
        text = f"the same signal would {use}: {named} are copies, perhaps one file in two formats. Leave one out"
        if alike is across and not allow_duplicates:
            raise ValueError(f"{text}, or set --data.allow_duplicates true (allow_duplicates=True in Python)")
        warn(text)


def divided_by_subject(
    recordings: Sequence[Recording], validation_subjects: Sequence[str], allow_duplicates: bool = False
) -> tuple[list[Recording], list[Recording]]:
    """The recordings that train, and those of `validation_subjects`.

    Examples
    --------
    >>> from mvpa_ts.ieeg import simulate_cohort
    >>> train, validation = divided_by_subject(simulate_cohort(3, duration=60), ["S02"])
    >>> [recording.subject for recording in train], [recording.subject for recording in validation]
    (['S01', 'S03'], ['S02'])
    """
    subjects = {item.subject_name for item in recordings}
    if unknown := sorted(set(validation_subjects) - subjects):
        raise ValueError(
            f"validation_subjects {unknown} have no recording; there are {', '.join(sorted(subjects))} "
            "(--data.validation_subjects)"
        )
    held_out = [item for item in recordings if item.subject_name in validation_subjects]
    train = [item for item in recordings if item.subject_name not in validation_subjects]
    if not train or not held_out:
        missing = "training" if not train else "validation"
        if len(subjects) == 1:
            raise ValueError(
                f"no subject is left for {missing}: all recordings are of {subjects.pop()}. List some of them in "
                "recordings, and the others in validation_recordings (--data.validation_recordings)"
            )
        raise ValueError(
            f"no subject is left for {missing}: name some, not all, of {sorted(subjects)} in validation_subjects, "
            "or files in validation_recordings"
        )
    # SWEC holds people under two names, which only its table knows.
    split_subjects(
        sorted({item.subject_name for item in train}),
        sorted({item.subject_name for item in held_out}),
        allow_duplicates=allow_duplicates,
    )
    return train, held_out


def check_channel_counts(recordings: Sequence[Recording], most: int) -> None:
    """Raise a ValueError where a recording has more channels than a model takes; nothing is read for it."""
    for item in recordings:
        if (count := len(item.channel_names)) > most:
            raise ValueError(
                f"{item.name} has {count} channels, more than the {most} of the model: set channels to the number "
                "that is selected automatically (--data.channels 32)"
            )


def check_seizures(recordings: Sequence[Recording]) -> None:
    """Raise a ValueError that says how to annotate, where none of the recordings that train holds a seizure."""
    if any(item.seizures for item in recordings):
        return
    states = listed(f"{item.name}: {'none' if item.annotated else 'says nothing of seizures'}" for item in recordings)
    raise ValueError(
        f"the training recordings hold no annotated seizure ({states}). "
        "Annotate the seizures in the files, or in a table beside each file, named as "
        f"{recordings[0].name.removesuffix('_ieeg').removesuffix('_eeg')}_events.tsv, with the columns onset and "
        "duration in seconds and trial_type (seizure)"
    )


def long_enough(segments: Sequence[Segments], span: int, use: str) -> list[Segments]:
    """Return the recordings that are long enough for one span; warn of the others; raise a ValueError if none is."""
    if short := [item for item in segments if item.num_segments < span]:
        names = listed(f"{item.recording.name} ({item.num_segments})" for item in short)
        message = f"{use} needs {span} segments of 5 s of a recording; fewer have {names}"
        if len(short) == len(segments):
            raise ValueError(
                f"{message}: give longer recordings, or choose a shorter context (--model.architecture.context in "
                "`mvpformer pretrain`) or fewer windows (--data.windows)"
            )
        warn(f"{message}: they are left out")
    return [item for item in segments if item.num_segments >= span]


def _identity(item: Path | Recording) -> Path | int:
    return item.resolve() if isinstance(item, Path) else id(item)
