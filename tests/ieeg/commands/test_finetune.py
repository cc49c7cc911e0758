"""``mvpformer finetune``: from the package's configurations to a model, and from files that need a word on reading."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from mvpa_ts.files import writing_alone
from mvpa_ts.ieeg import Detector, StreamingDetector, mvpformer_tiny, simulate_recording
from mvpa_ts.ieeg.commands import finetune as finetune_command
from mvpa_ts.ieeg.commands.main import main
from mvpa_ts.ieeg.detection.linear import load_linear
from mvpa_ts.ieeg.detection.networks import load_networks
from mvpa_ts.ieeg.simulation.writing import write_edf


def patient(folder: Path, *, cut: bool = False) -> list[Path]:
    """Three files, the last of which may have been cut short."""
    files = []
    for number in (1, 2, 3):
        recording = simulate_recording(f"P{number}", seed=number, num_channels=2, duration=60.0, num_seizures=1)
        files.append(write_edf(recording, folder / f"run{number}.edf"))
    if cut:
        files[2].write_bytes(files[2].read_bytes()[:-3000])
    return files


def command(output: Path, *arguments: str) -> list[str]:
    size = ["--data.balance", "none", "--model.architecture.context", "4", "--model.method", "full"]
    short = ["--trainer.max_steps", "1", "--trainer.enable_progress_bar", "false"]
    return ["finetune", "--config", "tiny", *size, *short, "--output", str(output), *arguments]


def finetune(output: Path, *arguments: str) -> int:
    return main(command(output, *arguments))


def test_a_model_from_scratch_has_the_sizes_of_the_configuration(tmp_path):
    """Its other sizes were those of MVPFormer-S."""
    assert finetune(tmp_path / "run", "--data.simulation.subjects", "2", "--data.validation_subjects", "[S02]") == 0
    config = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    expected = mvpformer_tiny(context=4)
    assert {name: config[name] for name in ("dim", "num_layers", "context")} == {
        "dim": expected.dim, "num_layers": expected.num_layers, "context": 4,
    }  # fmt: skip
    assert config["amplitude"] == expected.amplitude


def test_one_recording_needs_no_brackets_and_a_cut_one_a_word(tmp_path, fails):
    first, second, cut = map(str, patient(tmp_path, cut=True))
    files = ["--data.recordings", f"[{first}, {second}]", "--data.validation_recordings", cut]
    fails("truncated", *command(tmp_path / "run", *files))
    with pytest.warns(UserWarning, match="is truncated"):
        assert finetune(tmp_path / "run", *files, "--data.truncated", "read") == 0


def test_files_that_are_not_read_are_said_at_the_end(tmp_path, capsys):
    patient(tmp_path)
    (tmp_path / "night.trc").touch()
    files = ["--data.recordings", str(tmp_path), "--data.validation_recordings", "[]"]
    assert finetune(tmp_path / "run", *files) == 1
    captured = capsys.readouterr()
    assert "the model is in" in captured.out
    assert "all are read but 1 of a kind that is not read, such as night.trc" in captured.err


def test_more_channels_than_the_model_are_refused_before_anything_is_read(tmp_path, fails):
    first, second, _ = map(str, patient(tmp_path))
    files = ["--data.recordings", first, "--data.validation_recordings", second]
    few = command(tmp_path / "run", *files, "--model.architecture.channel_rows", "1")
    assert "--data.channels" in fails("has 2 channels, more than the 1 of the model", *few)


def test_validation_can_be_left_out(tmp_path, capsys, fails):
    """The weights are those of the same run with validation, which does not change them."""
    first, second, third = map(str, patient(tmp_path))
    files = ["--data.recordings", f"[{first}, {second}]", "--data.validation_recordings"]
    weights = []
    for name, validation in (("with", third), ("without", "[]")):
        assert finetune(tmp_path / name, *files, validation) == 0
        weights.append(load_file(tmp_path / name / "model" / "model.safetensors"))
    for key, tensor in weights[0].items():
        torch.testing.assert_close(weights[1][key], tensor, rtol=0, atol=0)
    assert "zero" not in capsys.readouterr().err  # Lightning warns of an empty loader

    best = command(tmp_path / "best", *files, "[]", "--model.keep", "best")
    fails("set keep to 'last' (--model.keep last)", *best)


def test_networks_are_trained_from_seeds_of_their_own_and_joined(tmp_path, capsys, fails):
    """Each is the one that a run with its seed alone gives; a stop between two of them costs nothing."""
    first, second, _ = map(str, patient(tmp_path))
    files = ["--data.recordings", first, "--data.validation_recordings", second]
    assert finetune(tmp_path / "run", *files, "--members", "2") == 0
    printed = capsys.readouterr()
    assert printed.out.count("the model is in ") == 1
    assert "network 2 of 2" in printed.err
    assert "validation of the 2 networks together: loss " in printed.err
    assert "line-length, scaled by quiet" in printed.err
    assert "Too little to trust: fewer than 5 seizures or 100 segments." in printed.err
    assert "the package brainmaze-eeg-models is not installed" in printed.err
    table = pd.read_csv(tmp_path / "run" / "validation.csv", index_col="detector")
    assert [*table.index] == ["the detector", "line-length", "line-length, scaled by quiet", "regression"]
    assert (table["segments"] == 12).all()
    assert (tmp_path / "run" / "model" / "training.json").is_file()
    networks = load_networks(tmp_path / "run" / "model")
    assert finetune(tmp_path / "2", *files, "--seed_everything", "2") == 0
    single = load_file(tmp_path / "2" / "model" / "model.safetensors")
    for name, tensor in single.items():
        torch.testing.assert_close(networks[1].state_dict()[name], tensor, rtol=0, atol=0)

    shutil.rmtree(tmp_path / "run" / "networks")
    assert finetune(tmp_path / "run", *files, "--members", "2", "--ckpt_path", "last") == 0
    for again, network in zip(load_networks(tmp_path / "run" / "model"), networks, strict=True):
        torch.testing.assert_close(again.state_dict(), network.state_dict(), rtol=0, atol=0)

    fails("members must be at least 1, got 0", *command(tmp_path / "none", *files, "--members", "0"))
    other = command(tmp_path / "run", *files, "--members", "2", "--ckpt_path", "some.ckpt")
    fails("--ckpt_path must be last, got some.ckpt", *other)
    # A checkpoint is of one network, and any of them can be validated.
    checkpoint = tmp_path / "run" / "networks" / "2" / "checkpoints" / "last.ckpt"
    size = ["--model.method", "full", "--model.architecture.context", "4", "--members", "2"]
    validated = ["finetune", "validate", "--config", "tiny", *size, *files, "--ckpt_path", str(checkpoint)]
    assert main([*validated, "--output", str(tmp_path / "run"), "--seed_everything", "2"]) == 0


def test_a_linear_part_stands_beside_networks_that_have_shown_nothing_yet(tmp_path, capsys):
    first, second, third = map(str, patient(tmp_path))
    files = ["--data.recordings", first, second, "--data.validation_recordings", third, "--linear", "true"]
    assert finetune(tmp_path / "run", *files) == 0
    words = "because fewer than 5 seizures validate. Loss, F1 and kappa of the training are those of the networks, not"
    assert words in capsys.readouterr().err
    model = tmp_path / "run" / "model"
    linear = load_linear(model)
    assert linear is not None
    assert linear.network == 0.0
    assert Detector(model).linear == linear
    # What the line says of the detector is what detect runs.
    table = pd.read_csv(tmp_path / "run" / "validation.csv", index_col="detector")
    probabilities = Detector(model, rules="none", channels="all").detect(third).probabilities
    assert (probabilities > 0.5).sum() == table.loc["the detector", ["found", "false"]].sum()


def test_a_mistyped_path_leaves_no_folder(tmp_path, fails):
    first, *_ = map(str, patient(tmp_path))
    files = ["--data.recordings", first, str(tmp_path / "rum2.edf"), "--data.validation_recordings", "[]"]
    fails("no file or folder", *command(tmp_path / "run", *files))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("seizures", "reason"), [(4, "5 seizures"), (5, "100 segments"), (6, None)])
def test_networks_that_cannot_count_are_named_before_they_train(seizures, reason, capsys):
    duration = 60.0 if reason else 500.0  # 100 segments
    events = [(2.0 * start, 2.0 * start + 1) for start in range(seizures)]
    recording = simulate_recording("P1", num_channels=2, duration=duration, num_seizures=0).with_seizures(events)
    before = finetune_command._say_before_training
    before(SimpleNamespace(linear=True, members=3), [], [recording])
    said = capsys.readouterr().err
    assert (f"decide alone, because fewer than {reason} validate: the 3 networks train" in said) == (reason is not None)
    before(SimpleNamespace(linear=True, members=1), [], [recording])
    before(SimpleNamespace(linear=False, members=3), [], [recording])
    assert capsys.readouterr().err == ""
    other = simulate_recording("P2", num_channels=2, duration=60.0, num_seizures=0)
    before(SimpleNamespace(linear=True, members=1), [other], [recording])
    assert "the recordings are of several people, P1, P2: --config patient" in capsys.readouterr().err
    prefixed = recording.replaced(channel_names=["EEG A1-Ref", "EEG A2-Ref"])
    before(SimpleNamespace(linear=True, members=1), [prefixed], [recording])
    assert "channels differ" not in capsys.readouterr().err
    before(SimpleNamespace(linear=True, members=1), [recording], [recording.pick([0])])
    assert "channels differ between recordings, such as P1_session0 and P1_session0" in capsys.readouterr().err


def test_two_trainings_at_once_do_not_share_a_folder(tmp_path, fails):
    first, *_ = map(str, patient(tmp_path))
    second = command(tmp_path / "run", "--data.recordings", first, "--data.validation_recordings", "[]")
    with writing_alone(tmp_path / "run"):
        fails(f"{tmp_path / 'run'} is being written by another process", *second)


def test_the_last_step_is_validated_whatever_the_interval(tmp_path, capsys):
    first, second, _ = map(str, patient(tmp_path))
    files = ["--data.recordings", first, "--data.validation_recordings", second, "--trainer.log_every_n_steps", "1"]
    for steps, more in (("2", []), ("4", ["--ckpt_path", "last"])):
        assert finetune(tmp_path / "run", *files, "--trainer.max_steps", steps, *more) == 0
        assert "last validation: loss " in capsys.readouterr().err
    tables = [pd.read_csv(tmp_path / "run" / "csv" / f"version_{start}" / "metrics.csv") for start in (0, 1)]
    assert [table["step"][table["train/loss"].notna()].tolist() for table in tables] == [[0, 1], [2, 3]]
    assert [table["validation/auroc"].count() for table in tables] == [1, 1]


def test_a_quiet_validation_measures_the_loss_alone(tmp_path, capsys):
    first, second, _ = map(str, patient(tmp_path))
    (tmp_path / "run2_events.tsv").write_text("onset\tduration\ttrial_type\n0\t60\tbckg\n")
    with pytest.warns(UserWarning, match="no validation recording holds a seizure"):
        assert finetune(tmp_path / "run", "--data.recordings", first, "--data.validation_recordings", second) == 0
    error = capsys.readouterr().err
    assert "all else needs segments with and without seizure" in error
    assert "detectors are not compared, because there are no seizures here" in error
    table = pd.read_csv(tmp_path / "run" / "csv" / "version_0" / "metrics.csv")
    assert "validation/loss" in table
    assert "validation/auroc" not in table
    assert "AUROC 0.000" not in error


def test_a_validation_shorter_than_a_segment_is_named(tmp_path, fails):
    first, second, _ = map(str, patient(tmp_path))
    short = write_edf(simulate_recording("P4", num_channels=2, duration=30.0).crop(0.0, 4.0), tmp_path / "short.edf")
    files = ["--data.recordings", f"[{first}, {second}]", "--data.validation_recordings", str(short)]
    fails("short lasts 4.000 s, shorter than one segment of 5 s", *command(tmp_path / "run", *files))


def test_recordings_are_read_ahead_with_a_bar(tmp_path, capsys):
    first, second, third = map(str, patient(tmp_path))
    files = ["--data.recordings", first, second, "--data.validation_recordings", third]
    assert finetune(tmp_path / "run", *files, "--trainer.enable_progress_bar", "true") == 0
    error = capsys.readouterr().err
    assert "read: 100%" in error
    assert "2/2" in error


def test_a_mistyped_configuration_is_named_with_the_one_that_is_meant(fails):
    said = "there is no file 'pateint'; the package has patient, tiny, s, m, did you mean patient?"
    fails(said, "finetune", "--config", "pateint")


def test_a_detector_that_lacks_its_regression_says_so(tmp_path, monkeypatch):
    """A run that ends after the first network would else leave a detector that is weaker, and says nothing."""
    from mvpa_ts.ieeg import MVPFormer
    from mvpa_ts.ieeg.commands import finetune
    from mvpa_ts.ieeg.model.pretrained import UNFINISHED

    sizes = {"dim": 16, "mlp_dim": 24, "num_layers": 1, "context": 4}
    MVPFormer(mvpformer_tiny(**sizes, num_classes=2)).save_pretrained(tmp_path / "model")
    run: Any = SimpleNamespace(
        config={"fit": SimpleNamespace(members=1, linear=True)},
        subcommand="fit",
        files=SimpleNamespace(folder=tmp_path),
        trainer=SimpleNamespace(is_global_zero=True, datamodule=SimpleNamespace(training=SimpleNamespace(segments=[]))),
        model=SimpleNamespace(device="cpu"),
    )

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as changed:
        changed.setattr(finetune, "_stand_beside", interrupted)
        with pytest.raises(KeyboardInterrupt):
            finetune._train_others(run, lambda more: None)
    with pytest.warns(UserWarning, match=r"model lacks networks or its regression, .* again, with --ckpt_path last"):
        Detector(tmp_path / "model")
    with pytest.warns(UserWarning, match=r"model lacks networks or its regression"):
        StreamingDetector(tmp_path / "model", 512.0, ["A1", "A2"])
    run.trainer.datamodule.validation, run.trainer.datamodule.given_paths = None, []
    finetune._train_others(run, lambda more: None)
    assert not (tmp_path / "model" / UNFINISHED).exists()
