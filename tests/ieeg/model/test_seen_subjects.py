"""Subjects that a model has seen: recorded as hashes, carried on, refused for validation, warned of by commands."""

import hashlib
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.made_up_recordings import recording
from support.reading import refuses

pytest.importorskip("peft")
from mvpa_ts.ieeg import Detector, MVPFormer, Recording, mvpformer_tiny
from mvpa_ts.ieeg.commands.main import main
from mvpa_ts.ieeg.detection.saved import RUN
from mvpa_ts.ieeg.detection.streaming import StreamingDetector
from mvpa_ts.ieeg.model.seen_subjects import (
    TRAINING_NAME,
    other_channels,
    others_trained,
    read_training_recordings,
    read_training_subjects,
    recording_hash,
    refuse_seen,
    refuse_seen_recordings,
    save_training_channels,
    save_training_subjects,
    subject_hash,
    trained_on,
)
from mvpa_ts.ieeg.recordings.reading import read_recording
from mvpa_ts.ieeg.simulation.writing import write_edf, write_swec


def test_hashes_are_sha256_of_the_person():
    assert subject_hash("S01") == hashlib.sha256(b"S01").hexdigest()
    assert subject_hash("ID20") == hashlib.sha256(b"ID01").hexdigest()


def test_a_folder_says_whom_it_has_seen(tmp_path):
    assert read_training_subjects(tmp_path) is None
    save_training_subjects(tmp_path, [subject_hash("Ada"), subject_hash("Emil")])
    assert read_training_subjects(tmp_path) == {subject_hash("Ada"), subject_hash("Emil")}
    assert "Ada" not in (tmp_path / TRAINING_NAME).read_text()
    for damaged, message in (("{", "not readable as JSON"), ("{}", "must hold a list of hashes")):
        (tmp_path / TRAINING_NAME).write_text(damaged)
        refuses(read_training_subjects, message, tmp_path)


def test_refusal_names_the_subjects():
    seen = frozenset(map(subject_hash, ["ID01", "S02"]))
    refuse_seen(["ID02", "S1"], seen)
    refuse_seen(["ID01"], frozenset())
    with pytest.raises(
        ValueError,
        match=r"validation_subjects \['ID20', 'S02'\] are among .* --data.allow_dup.* true .* allow_duplicates=True",
    ):
        refuse_seen(["S02", "S3", "ID20", "S02"], seen)
    with pytest.warns(UserWarning, match=r"\['ID20'\] .* scores on training data"):
        refuse_seen(["ID20"], seen, allow_duplicates=True)


def command(task: str, folder: Path, output: Path, validation: str, *more: str) -> int:
    arguments: list[Any] = [task, "--config", "tiny", "--output", output, "--data.simulation", "null"]
    arguments += ["--data.recordings", json.dumps([str(folder)]), "--data.validation_subjects", f"[{validation}]"]
    arguments += ["--data.batch_size", "2", "--trainer.max_steps", "1", "--trainer.limit_val_batches", "0"]
    arguments += ["--trainer.enable_progress_bar", "false", "--trainer.accelerator", "cpu", *more]
    return main([str(argument) for argument in arguments])


def small(folder: Path, **changes: int) -> Path:
    MVPFormer(mvpformer_tiny(dim=16, mlp_dim=24, context=4, **changes)).save_pretrained(folder)
    return folder


# In small: the tests around it, one for each of its steps.
@pytest.mark.slow
def test_from_pretraining_to_evaluation(tmp_path, capsys):
    """Pretrained on ID01 and S1, finetuned on S2: neither ID20, who is ID01, nor S1 may validate."""
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, names in ((first, ["ID01", "ID19"]), (second, ["ID20", "ID21"])):
        for number, name in enumerate(names):
            write_swec(recording(name, seed=number, channels=2), folder)
    write_edf(recording("S1", seed=3, channels=2), first / "S1.edf")
    write_edf(recording("S1", seed=3, channels=2), second / "S1.edf")
    write_edf(recording("S2", seed=4, channels=2), second / "S2.edf")
    size = ["--model.architecture.dim", "16", "--model.architecture.mlp_dim", "24", "--model.architecture.context", "4"]
    assert command("pretrain", first, tmp_path / "pretrained", "ID19", *size) == 0
    base = tmp_path / "pretrained" / "model"
    assert read_training_subjects(base) == {subject_hash("ID01"), subject_hash("S1")}

    finetune = ("finetune", second, tmp_path / "finetuned")
    flat = ("--model.base", str(base), "--data.balance", "subject")
    for leaked in ("ID20", "S1"):
        assert command(*finetune, leaked, *flat) != 0
        assert f"validation_subjects ['{leaked}'] are among those that base was trained on" in capsys.readouterr().err
    allowed = ("--data.allow_duplicates", "true", "--output", str(tmp_path / "allowed"))
    with pytest.warns(UserWarning, match="scores on training data"):
        assert command(*finetune, "ID20", *flat, *allowed) == 0
    assert command(*finetune, "ID21", *flat) == 0
    model = tmp_path / "finetuned" / "model"
    assert read_training_subjects(model) == {subject_hash(name) for name in ("ID01", "S1", "S2")}

    results = tmp_path / "results"
    detect = ["--model", str(model), "--channels", "all", "-o", str(results)]
    with pytest.warns(UserWarning, match=r"ID20: the model was trained on this recording"):
        assert main(["detect", str(second / "ID20"), *detect]) == 0
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*was trained on")
        assert main(["detect", str(second / "ID21"), *detect]) == 0
    found = {path.parent.name: json.loads(path.read_text())["model"] for path in results.rglob(RUN)}
    assert {name: about["subject_in_training"] for name, about in found.items()} == {"ID20": True, "ID21": False}
    with pytest.warns(UserWarning, match=r"trained on 1 of 2 recordings, such as ID20, or on subjects"):
        assert main(["evaluate", str(results), "-o", str(tmp_path / "scores")]) == 0


def test_a_base_that_says_nothing_is_taken(tmp_path):
    for number, name in enumerate(["S1", "S2"]):
        write_edf(recording(name, seed=number, channels=2), tmp_path / "in" / f"{name}.edf")
    base = small(tmp_path / "base")
    flat = ("--model.base", str(base), "--data.balance", "subject")
    assert command("finetune", tmp_path / "in", tmp_path / "run", "S2", *flat) == 0
    assert read_training_subjects(tmp_path / "run" / "model") == {subject_hash("S1")}


def test_other_recordings_of_a_subject_are_no_training_data(tmp_path, capsys):
    """Of Ada one file trains and one validates; a renamed file is known, a third one is not."""
    files = [tmp_path / f"{name}.edf" for name in ("trains", "validates", "other")]
    for number, file in enumerate(files):
        write_edf(recording("Ada", seed=number, channels=2), file)
    base = small(tmp_path / "base")
    arguments = ["finetune", "--config", "patient", "--model.base", base, "--output", tmp_path / "run"]
    arguments += ["--data.recordings", f"[{files[0]}]", "--data.validation_recordings", f"[{files[1]}]"]
    arguments += ["--trainer.max_steps", "1", "--trainer.val_check_interval", "1", "--trainer.enable_progress_bar"]
    assert main([*map(str, arguments), "false", "--data.windows", "4"]) == 0
    model = tmp_path / "run" / "model"
    read = [read_recording(file) for file in files]
    assert read_training_recordings(model) == {recording_hash(read[0])}
    assert json.loads((model / TRAINING_NAME).read_text())["channels"] == [sorted(read[0].channel_names)]
    renamed = tmp_path / "renamed.edf"
    files[0].rename(renamed)
    assert [trained_on(item, model) for item in (read_recording(renamed), *read[1:])] == [True, False, False]
    assert trained_on(read[1], base) is None
    # Of files outside of BIDS nobody knows the person, whom the table of a data set names.
    assert [others_trained(item, model) for item in (read_recording(renamed), *read[1:])] == [False, None, None]
    ada, emil = (read_recording(files[2], subject=name) for name in ("trains", "emil"))
    ada.name = emil.name = "session 2"
    assert [others_trained(item, model) for item in (ada, emil)] == [True, False]
    assert others_trained(ada, base) is None
    save_training_subjects(base, [subject_hash("validates")])  # without recordings, all of a subject's count
    assert trained_on(read[1], base)
    with pytest.raises(ValueError, match=r"validation_recordings \['renamed'\] were used to train base"):
        refuse_seen_recordings([read_recording(renamed)], read_training_recordings(model))


def test_a_detector_says_on_whom_its_model_was_trained(tmp_path):
    """In Python as in the command: by the folder of the model."""
    folder = small(tmp_path / "detector", num_classes=2)
    seen, new = recording("ID20", seed=0, channels=2), recording("ID21", seed=1, channels=2)
    detector = Detector(folder, rules="none")
    assert detector.detect(seen).provenance.subject_in_training is None
    save_training_subjects(folder, [subject_hash("ID01")])  # the same person as ID20
    with pytest.warns(UserWarning, match=r"the model was trained on this .* called ID20"):
        assert detector.detect(seen).provenance.subject_in_training is True
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*was trained on")
        assert detector.detect(new).provenance.subject_in_training is False


def test_a_detector_of_a_patient_names_channels_that_differ(tmp_path):
    names = [["EEG A1-Ref", "A2", "A3"], ["A1", "A2", "A10"], ["A1", "A2"], ["A1", "B1"]]
    x = np.random.default_rng(0).normal(0, 50, (3, 20 * 512))
    recordings = [Recording.from_array(x[: len(each)], 512.0, each, "µV") for each in names]
    folder = small(tmp_path / "detector", num_classes=2)
    save_training_subjects(folder, [])
    save_training_channels(folder, recordings[:2])
    assert other_channels(recordings[3], folder) == (["A2"], ["B1"])
    detector = Detector(folder, rules="none")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*has other channels")
        for item in recordings[:3]:
            detector.detect(item)
    with pytest.warns(UserWarning, match="has other channels .*: A2 missing here; B1 unknown there") as said:
        detector.detect(recordings[3])
    assert len([each for each in said if "other channels" in str(each.message)]) == 1
    with pytest.warns(UserWarning, match="stream has other channels .*: A2 missing here; B1 unknown there"):
        StreamingDetector(folder, 512.0, ["A1", "B1"])
    (folder / TRAINING_NAME).write_text('{"subjects_sha256": [], "channels": [3]}')
    refuses(detector.detect, "must hold lists of channels' names", recordings[3])


def test_recordings_that_begin_alike_are_told_apart(tmp_path):
    """An amplifier may begin with zeros."""
    samples = np.random.default_rng(0).normal(0, 50, (2, 2, 5120)).astype(np.float32)
    samples[:, :, :512] = 0.0
    first, second = (Recording.from_array(x, 512.0, ["A1", "A2"], "µV") for x in samples)
    save_training_subjects(tmp_path, [], [recording_hash(first)])
    assert [trained_on(item, tmp_path) for item in (first, second)] == [True, False]
