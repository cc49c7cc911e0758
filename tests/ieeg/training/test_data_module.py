"""The Lightning data module: splits, endless batches, places to go on from."""

import itertools
import warnings
from typing import Any

import mne
import numpy as np
import pytest
import torch
from support.made_up_recordings import recording
from support.reading import refuses

from mvpa_ts.ieeg.preprocessing.segments import Segments
from mvpa_ts.ieeg.simulation.writing import write_edf, write_swec
from mvpa_ts.ieeg.training.data_module import RecordingDataModule, SeizureDataModule, Simulation
from mvpa_ts.ieeg.training.sampling import EndlessBatches, SpanSampler
from mvpa_ts.ieeg.training.spans import HeldSegments, SpanDataset, collate


def module(**changes: Any) -> RecordingDataModule:
    recordings = [recording(name, seed=n, channels=2 + n) for n, name in enumerate(["S0", "S1", "S2"])]
    arguments: dict[str, Any] = {"recordings": recordings, "validation_subjects": ["S2"], "context": 4, "batch_size": 3}
    made = RecordingDataModule(**(arguments | changes))
    made.setup()
    return made


def first_batches(loader: Any, number: int) -> list[dict[str, Any]]:
    return list(itertools.islice(loader, number))


def test_batches_hold_spans_of_the_right_subjects():
    made = module(windows=3)
    batches = first_batches(made.train_dataloader(), 20)
    assert {batch["signal"].shape[0] for batch in batches} == {3}
    assert {batch["signal"].shape[2] // 2560 for batch in batches} == {7}
    subjects = [subject for batch in batches for subject in batch["subject"]]
    assert set(subjects) == {"S0", "S1"}
    assert abs(subjects.count("S0") - 30) <= 1
    validation = list(made.val_dataloader())
    assert {subject for batch in validation for subject in batch["subject"]} == {"S2"}
    starts = [start for batch in validation for start in batch["start"].tolist()]
    assert len(starts) == len(set(starts)) == len(made.validation)
    again = [start for batch in made.val_dataloader() for start in batch["start"].tolist()]
    assert again == starts


def test_uneven_batches_keep_every_signal():
    """Spans at a recording's end are shorter, and recordings have 2, 3 and 4 channels."""
    made = module()
    for batch in [*first_batches(made.train_dataloader(), 12), *made.val_dataloader()]:
        segments = batch["signal"].unflatten(2, (-1, 2560)).transpose(1, 2)
        assert torch.equal(segments.abs().sum(-1) > 0, batch["token_mask"])
        real = batch["channel_mask"][:, None] & batch["segment_mask"][..., None]
        assert torch.equal(batch["token_mask"], real)


@pytest.mark.filterwarnings("ignore:.*no annotation says")
@pytest.mark.parametrize("ending", ["night_raw.fif", "night.vhdr", "again.edf"])
def test_one_recording_in_two_formats_does_not_train_and_validate(tmp_path, ending):
    night = recording("night", seed=3)
    write_edf(night, tmp_path / "night.edf")
    write_edf(recording("other", seed=4), tmp_path / "other.edf")
    raw = mne.io.RawArray(night.read(0, night.num_samples) * 1e-6, mne.create_info(["A1", "A2", "A3"], 512.0, "eeg"))
    if ending.endswith("edf"):
        write_edf(night, tmp_path / ending)
    elif ending.endswith("fif"):
        raw.save(tmp_path / ending, verbose="error")
    else:
        mne.export.export_raw(tmp_path / ending, raw, verbose="error")
    files = {"recordings": [tmp_path / "night.edf"], "validation_recordings": [tmp_path / ending]}
    with pytest.raises(ValueError, match=rf"would train and validate: night and {ending.split('.')[0]} are copies"):
        module(validation_subjects=[], **files)
    with pytest.warns(UserWarning, match="would train and validate"):
        module(validation_subjects=[], allow_duplicates=True, **files)
    with pytest.warns(UserWarning, match="would count twice"):
        module(
            validation_subjects=[],
            recordings=[tmp_path / "night.edf", tmp_path / ending],
            validation_recordings=[tmp_path / "other.edf"],
        )


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_from_any_place_are_the_same(workers):
    sampler = SpanSampler(["a"] * 5 + ["b"] * 2, balance="subject", seed=3)
    whole = list(itertools.islice(EndlessBatches(sampler, 3), 12))
    assert len({tuple(batch) for batch in whole}) > 4
    for done in (0, 1, 5, 7):
        assert list(itertools.islice(EndlessBatches(sampler, 3, done), 5)) == whole[done : done + 5]
    made = module(workers=workers)
    plain = [batch["start"].tolist() for batch in first_batches(module().train_dataloader(), 4)]
    assert [batch["start"].tolist() for batch in first_batches(made.train_dataloader(), 4)] == plain


def test_batches_begun_again_go_on_where_training_is():
    sampler = SpanSampler(["a"] * 5 + ["b"] * 2, balance="subject", seed=3)
    whole = list(itertools.islice(EndlessBatches(sampler, 3), 9))
    done = 0
    batches = EndlessBatches(sampler, 3, lambda: done)
    for done in (0, 4, 7):
        ahead = list(itertools.islice(batches, 5))  # as workers do, more than training will be done with
        assert ahead[:2] == whole[done : done + 2]


def test_every_span_is_drawn_once_an_epoch():
    sampler = SpanSampler(["a"] * 7, balance="none", seed=0)
    indices = [index for batch in itertools.islice(EndlessBatches(sampler, 2), 7) for index in batch]
    assert sorted(indices[:7]) == sorted(indices[7:]) == list(range(7))
    assert indices[:7] != indices[7:]
    assert sorted(sampler) == list(range(7))
    assert list(sampler) == list(sampler)


def test_held_segments_are_the_segments():
    plain = Segments(recording("S0", seed=0, segments=9))
    held = HeldSegments(Segments(recording("S0", seed=0, segments=9)))
    for first, last in ((3, 7), (0, 2), (8, 9)):
        for ours, theirs in zip(held.read(first, last), plain.read(first, last), strict=True):
            assert np.array_equal(ours, theirs)
    held.read(0, 1)[0][:] = 0.0  # a copy: what is held stays
    assert np.array_equal(held.read(0, 1)[0], plain.read(0, 1)[0])
    for span in ((2, 2), (5, 10), (-1, 3)):
        with pytest.raises(ValueError, match=r"has segments \[0, 9\), asked for"):
            held.read(*span)


def test_files_and_folders(tmp_path):
    write_edf(recording("S0", seed=0), tmp_path / "edf" / "S0.edf")
    write_edf(recording("S1", seed=1), tmp_path / "edf" / "S1.edf")
    write_swec(recording("ID19", seed=2), tmp_path / "swec")
    made = module(recordings=[tmp_path / "edf", tmp_path / "swec" / "ID19"], validation_subjects=["ID19"])
    assert set(made.training.subjects) == {"S0", "S1"}
    assert set(made.validation.subjects) == {"ID19"}


def test_files_of_one_person_stay_on_one_side(tmp_path):
    for number, name in enumerate(["monday", "tuesday", "emil"]):
        write_edf(recording(name, seed=number), tmp_path / f"{name}.edf")
    (tmp_path / "who.tsv").write_text("file\tsubject\nmonday.edf\tAda\ntuesday.edf\tAda\nemil.edf\tEmil\n")
    made = module(recordings=[tmp_path], subjects=tmp_path / "who.tsv", validation_subjects=["Ada"])
    assert [one.recording.name for one in made.validation.segments] == ["monday", "tuesday"]
    assert set(made.training.subjects) == {"Emil"}
    with pytest.raises(ValueError, match=r"\['monday'\] have no recording; there are Ada, Emil"):
        module(recordings=[tmp_path], subjects=tmp_path / "who.tsv", validation_subjects=["monday"])
    write_edf(recording("new", seed=4), tmp_path / "new.edf")
    with pytest.raises(ValueError, match=r"does not say who was recorded in .*new\.edf"):
        module(recordings=[tmp_path], subjects=tmp_path / "who.tsv", validation_subjects=["Ada"])
    refuses(module, "recordings must be paths, not objects", subjects=tmp_path / "who.tsv")


def test_files_of_one_name_in_two_folders_are_named(tmp_path):
    for number, file in enumerate(["p1/night1.edf", "p2/night1.edf", "p2/night2.edf"]):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        write_edf(recording("x", seed=number), tmp_path / file)
    with pytest.warns(UserWarning, match=r"p1/night1\.edf and .*p2/night1\.edf count as one subject, 'night1', 2"):
        made = module(recordings=[tmp_path], validation_subjects=["night1"])
    assert set(made.training.subjects) == {"night2"}
    rows = ["file\tsubject", "p1/night1.edf\tAda", "p2/night1.edf\tEmil", "p2/night2.edf\tEmil"]
    (tmp_path / "who.tsv").write_text("\n".join(rows) + "\n")
    with warnings.catch_warnings(action="error", category=UserWarning):
        made = module(recordings=[tmp_path], subjects=tmp_path / "who.tsv", validation_subjects=["Ada"])
    assert set(made.training.subjects) == {"Emil"}


def test_a_file_given_twice_is_one_recording(tmp_path):
    for number, name in enumerate(["S0", "S1"]):
        write_edf(recording(name, seed=number), tmp_path / f"{name}.edf")
    made = module(recordings=[tmp_path, tmp_path / "S1.edf"], validation_subjects=["S1"])
    assert [one.recording.name for one in made.validation.segments] == ["S1"]


def test_simulated_subjects():
    made = module(
        recordings=None,
        simulation=Simulation(subjects=2, channels=(3,), hours=0.05, seizures=0),
        validation_subjects=["S02"],
    )
    assert set(made.training.subjects) == {"S01"}


def test_wide_recordings_are_narrowed():
    wide = [recording(name, seed=n, channels=6) for n, name in enumerate(["S0", "S1"])]
    made = module(recordings=wide, validation_subjects=["S1"], channels=4)
    assert next(iter(made.train_dataloader()))["signal"].shape[1] == 4


def test_one_person_on_both_sides_is_refused():
    swec = [recording(name, seed=n) for n, name in enumerate(["ID01", "ID20", "ID19"])]
    with pytest.raises(ValueError, match=r"ID20 .* is the same recording as ID01 .* \(--data\.allow_duplicates true\)"):
        module(recordings=swec, validation_subjects=["ID20"])
    with pytest.warns(UserWarning, match="two names"):
        module(recordings=swec, validation_subjects=["ID20"], allow_duplicates=True)


def test_a_person_under_two_names_is_balanced_as_one():
    swec = [recording(name, seed=n) for n, name in enumerate(["ID01", "ID20", "ID02", "ID19"])]
    made = module(recordings=swec, validation_subjects=["ID19"], batch_size=8)
    batches = first_batches(made.train_dataloader(), 10)
    subjects = [subject for batch in batches for subject in batch["subject"]]
    assert abs(subjects.count("ID02") - 40) <= 1
    assert min(subjects.count("ID01"), subjects.count("ID20")) > 10


def test_short_recordings_are_named():
    recordings = [recording("S0", 0), recording("S1", 1), recording("S3", 3, segments=4), recording("S2", 2)]
    with pytest.warns(UserWarning, match=r"training needs 5 segments .* fewer have S3_made_up \(4\)"):
        assert set(module(recordings=recordings).training.subjects) == {"S0", "S1"}
    refuses(module, r"training needs 101 segments .* choose a shorter context", context=100)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"recordings": None}, "recordings or simulation must be given, got neither"),
        ({"simulation": Simulation()}, "recordings or simulation must be given, got both"),
        ({"validation_subjects": ["S9"]}, r"\['S9'\] have no recording; there are S0, S1, S2"),
        ({"validation_subjects": []}, "no subject is left for validation"),
        ({"validation_subjects": ["S0", "S1", "S2"]}, "no subject is left for training"),
        (
            {"validation_subjects": [], "recordings": [recording("S0", seed=0)]},
            r"all recordings are of S0\. List some of them in recordings, .* \(--data\.validation_recordings\)",
        ),
        ({"windows": 0}, "windows must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"channels": 0}, "channels must be 'all' or a number of at least 1, got 0"),
        ({"channels": "auto"}, "channels must be 'all' or a number of at least 1, got 'auto'"),
        ({"workers": -1}, "workers must be at least 0, got -1"),
        ({"balance": "class"}, r"balance must be one of \('none', 'subject', 'ictal'\), got 'class'"),
    ],
)
def test_errors(change, message):
    with pytest.raises(ValueError, match=message):
        module(**change)


def test_missing_folder(tmp_path):
    refuses(module, "nowhere", recordings=[tmp_path / "nowhere"], kind=FileNotFoundError)
    refuses(module, "there is no recording in", recordings=[tmp_path], kind=FileNotFoundError)


def test_recordings_of_one_subject_on_both_sides(tmp_path):
    for number, name in enumerate(["monday", "tuesday", "friday"]):
        write_edf(recording("Ada", seed=number, segments=2), tmp_path / f"{name}.edf")
    first, second, third = (tmp_path / f"{name}.edf" for name in ("monday", "tuesday", "friday"))
    listed: dict[str, Any] = {"recordings": [first, second], "validation_recordings": [third]}
    made = SeizureDataModule(**listed, context=20)
    made.setup()
    assert [item.recording.name for item in made.training.segments] == ["monday", "tuesday"]
    assert [item.recording.name for item in made.validation.segments] == ["friday"]
    with pytest.raises(ValueError, match=r"monday.* is among recordings and among validation_recordings"):
        SeizureDataModule(recordings=[tmp_path], validation_recordings=[tmp_path / "." / "monday.edf"]).setup()
    with pytest.raises(ValueError, match="no recording is left for training"):
        SeizureDataModule(recordings=[], validation_recordings=[third]).setup()
    for other in ({"validation_subjects": ["Ada"]}, {"recordings": None, "simulation": Simulation()}):
        with pytest.raises(ValueError, match="replaces validation_subjects"):
            SeizureDataModule(**(listed | other))


def test_an_empty_list_validates_nothing():
    made = SeizureDataModule(recordings=[recording("Ada", 0)], validation_recordings=[], context=20)
    made.setup()
    assert [item.recording.subject for item in made.training.segments] == ["Ada"]
    refuses(made.val_dataloader, "there is nothing to validate")


@pytest.mark.parametrize("seizures", [(), ((5.0, 10.0),)], ids=["no seizure", "a seizure"])
def test_validation_without_a_seizure_warns(seizures, recwarn):
    train, held_out = (recording(name, seed, segments=4) for seed, name in enumerate("AB"))
    made = SeizureDataModule(
        recordings=[train.with_seizures(((5.0, 10.0),))],
        validation_recordings=[held_out.with_seizures(seizures)],
        context=4,
    )
    made.setup()
    messages = [str(warning.message) for warning in recwarn if "holds a seizure" in str(warning.message)]
    assert len(messages) == int(not seizures)
    assert all("whether seizures are found is not measured" in message for message in messages)


def test_spans_come_with_the_power_before_them():
    held = [HeldSegments(Segments(recording("S0", seed=0, segments=40, channels=2)))]
    plain = [Segments(recording("S0", seed=0, segments=40, channels=2))]
    parts = [SpanDataset(segments, 4, before=3, past=True) for segments in (held, plain)]
    for index in (0, 2, 9):
        ours, theirs = (dataset[index] for dataset in parts)
        assert ours["past"].shape == (max(0, min(23, 4 * index - 3)), 2, 9)
        torch.testing.assert_close(ours["past"], theirs["past"])
        assert ours["target"].tolist() == [False] * min(3, 4 * index) + [True] * 4
    batch = collate([parts[0][0], parts[0][9]])
    assert batch["past"].isnan().all(dim=(1, 2, 3)).tolist() == [True, False]
    assert batch["target"].sum(1).tolist() == [4, 4]


def test_training_without_a_seizure_says_how_to_annotate():
    quiet = [recording("S0", 0).with_seizures([]), recording("S1", 1).with_seizures(None)]
    data = SeizureDataModule(quiet, validation_recordings=[recording("S2", 2)], context=4, balance="ictal")
    message = (
        r"^the training recordings hold no annotated seizure \(S0_made_up: none, S1_made_up: says nothing of seizures\)"
        r"\. Annotate .* S0_made_up_events\.tsv, with the columns onset and duration in seconds and trial_type"
    )
    refuses(data.setup, message)
