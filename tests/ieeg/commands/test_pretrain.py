"""`mvpformer pretrain` from the outside: files, resumption after kill -9, processes, errors."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import yaml
from support.library import run_python
from support.made_up_recordings import disk_of, recording

from mvpa_ts.ieeg import MVPFormer, MVPFormerConfig, mvpformer_m, mvpformer_s, mvpformer_tiny
from mvpa_ts.ieeg.commands.main import main
from mvpa_ts.ieeg.commands.pretrain import CONFIGS
from mvpa_ts.ieeg.commands.training_arguments import with_named_configs
from mvpa_ts.ieeg.datasets.cohort import PAPER_TRAIN
from mvpa_ts.ieeg.simulation.writing import write_edf

CONFIG_FOLDER = Path(__file__).parents[3] / "ieeg" / "configs"
SMALL: dict[str, Any] = {
    "checkpoint_every": 5,
    "model": {
        "architecture": {"dim": 16, "mlp_dim": 24, "num_layers": 1, "context": 4},
        "warmup_steps": 3,
        "schedule": "constant",
    },
    "data": {"simulation": None, "validation_subjects": ["S2"], "batch_size": 4},
    "trainer": {
        "max_steps": 8,
        "val_check_interval": 4,
        "limit_val_batches": 1,
        "log_every_n_steps": 1,
        "accelerator": "cpu",
        "enable_progress_bar": False,
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """EDF files of three subjects, and a configuration over the package's tiny one."""
    folder = tmp_path_factory.mktemp("recordings")
    for n in range(3):
        write_edf(recording(f"S{n}", seed=n), folder / f"S{n}.edf")
    settings = SMALL | {"data": SMALL["data"] | {"recordings": [str(folder)]}}
    (folder / "small.yaml").write_text(yaml.safe_dump(settings))
    return folder


def command(folder: Path, output: Path, *more: str) -> list[str]:
    return ["pretrain", "--config", "tiny", "--config", str(folder / "small.yaml"), "--output", str(output), *more]


def losses(output: Path) -> dict[int, str]:
    """Losses by step as they were written; later starts of a run over earlier ones."""
    found = {}
    for path in sorted(output.glob("csv/version_*/metrics.csv")):
        frame = pd.read_csv(path, dtype=str).dropna(subset=["train/loss"])
        found |= dict(zip(frame["step"].astype(int), frame["train/loss"], strict=True))
    return found


@pytest.mark.parametrize("every", [5, pytest.param(100000, marks=pytest.mark.slow)])
def test_interrupted_run_says_where_it_goes_on(folder, tmp_path, every):
    output = tmp_path / "run"
    more = ("--trainer.max_steps", "100000", "--trainer.val_check_interval", "50000", "--checkpoint_every", str(every))
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "mvpa_ts.ieeg.commands.main", *command(folder, output, *more)],
        stderr=subprocess.PIPE,
        text=True,
        # Jobs in the background of a shell ignore interrupts, and pass that on.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    checkpoint = output / "checkpoints" / "last.ckpt"
    deadline = time.monotonic() + 120
    while not (checkpoint.exists() if every == 5 else [*output.glob("csv/version_0/metrics.csv")]):
        assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    error = process.communicate(timeout=60)[1]
    assert process.returncode == 130, error
    assert "Traceback" not in error
    if every == 5:
        step = torch.load(checkpoint, weights_only=True)["global_step"]
        expected = f"{checkpoint} holds step {step}, go on with --ckpt_path last"
    else:
        expected = f"{checkpoint} does not exist yet, start again (--checkpoint_every is 100000)"
    assert error.splitlines()[-1] == f"mvpformer pretrain: interrupted; {expected}"


def test_the_next_interrupt_is_not_ignored(folder, tmp_path, monkeypatch, capsys):
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr("mvpa_ts.ieeg.training.pretraining.PretrainingModule.training_step", interrupt)
    assert main(command(folder, tmp_path / "run")) == 130
    assert signal.getsignal(signal.SIGINT) is before
    assert "interrupted; " in capsys.readouterr().err


@pytest.fixture(scope="module")
def finished(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that came to its end."""
    output = tmp_path_factory.mktemp("run") / "run"
    with redirect_stdout(io.StringIO()) as printed:
        assert main(command(folder, output)) == 0
    (output.parent / "printed.txt").write_text(printed.getvalue())
    return output


def test_the_last_words_say_where_the_model_is_and_what_follows(finished):
    words = (finished.parent / "printed.txt").read_text().splitlines()[-1]
    model = finished / "model"
    assert model.is_dir()
    following = words.removeprefix(f"the model is in {model}; next: mvpformer ")
    assert following == f"finetune --config tiny --model.base {model} --output runs/seizures"


def test_files_of_a_run(finished):
    assert MVPFormer.from_pretrained(finished / "model").config.dim == 16
    assert list(finished.glob("tensorboard/version_0/events*"))
    config = yaml.safe_load((finished / "csv" / "version_0" / "config.yaml").read_text())
    assert config["model"]["architecture"]["context"] == 4
    table = pd.read_csv(finished / "similarity.csv")
    assert list(table) == ["subject", "state", "segments", "true", "two_step", "random"]
    assert set(table["subject"]) == {"S2"}
    assert (finished / "similarity.png").exists()
    assert sorted(losses(finished)) == list(range(8))
    assert not [path for path in finished.rglob("*") if path.name.endswith(".part")]


def test_validate(folder, finished, capsys):
    (finished / "similarity.png").unlink()
    arguments = command(folder, finished, "--ckpt_path", "last")
    assert main([arguments[0], "validate", *arguments[1:]]) == 0
    assert "validation/loss" in capsys.readouterr().out
    assert (finished / "similarity.png").exists()


@pytest.mark.parametrize("which", ["finished", "fresh"])
def test_validate_needs_a_checkpoint(folder, finished, tmp_path, capsys, which):
    output = finished if which == "finished" else tmp_path / "fresh"
    before = {path: path.read_bytes() for path in output.glob("similarity.*")}
    arguments = command(folder, output)
    assert main([arguments[0], "validate", *arguments[1:]]) == 1
    error = capsys.readouterr().err
    assert "validate needs --ckpt_path, last or a file: without one it would score random weights" in error
    assert {path: path.read_bytes() for path in output.glob("similarity.*")} == before
    assert output.exists() == (which == "finished")


@pytest.mark.parametrize("subcommand", ["fit", "validate"])
def test_last_of_a_run_that_is_not_there(folder, tmp_path, fails, subcommand):
    task, *arguments = command(folder, tmp_path / "mistyped", "--ckpt_path", "last")
    last = tmp_path / "mistyped" / "checkpoints" / "last.ckpt"
    fails(f"--ckpt_path last: there is no checkpoint {last}", task, subcommand, *arguments)
    assert not (tmp_path / "mistyped").exists()


def test_a_run_that_is_refused_for_its_channels_leaves_no_folder(folder, tmp_path, fails):
    few = ("--model.architecture.channel_rows", "1")
    fails("channels, more than the 1 of the model", *command(folder, tmp_path / "refused", *few))
    assert not (tmp_path / "refused").exists()


@pytest.mark.parametrize("path", ["nowhere.ckpt", ""])
def test_checkpoint_that_is_not_there(folder, tmp_path, path):
    assert main(command(folder, tmp_path / "run", "--ckpt_path", path)) == 1
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_another_run_is_not_overwritten(folder, finished, fails):
    before = (finished / "checkpoints" / "last.ckpt").read_bytes()
    fails("go on by --ckpt_path last", *command(folder, finished))
    assert (finished / "checkpoints" / "last.ckpt").read_bytes() == before


def test_damaged_checkpoint_is_a_clear_error(folder, finished, tmp_path, fails):
    damaged = tmp_path / "damaged.ckpt"
    content = (finished / "checkpoints" / "last.ckpt").read_bytes()
    damaged.write_bytes(content[: len(content) // 2])
    fails("damaged.ckpt cannot be read", *command(folder, tmp_path / "run", "--ckpt_path", str(damaged)))


def test_disk_full_while_saving_keeps_the_previous_checkpoint(folder, tmp_path, capsys, fails):
    output = tmp_path / "run"
    assert main(command(folder, output, "--trainer.max_steps", "5")) == 0
    path = output / "checkpoints" / "last.ckpt"
    before = path.read_bytes()
    with disk_of(len(before) // 2):
        fails("the previous checkpoint", *command(folder, output, "--trainer.max_steps", "20", "--ckpt_path", "last"))
    assert path.read_bytes() == before
    bar = ("--trainer.enable_progress_bar", "true")
    assert main(command(folder, output, "--trainer.max_steps", "10", "--ckpt_path", "last", *bar)) == 0
    # Of all steps, with the remaining time.
    assert re.search(r"pretrain: .* 9/10 \[\d\d:\d\d<\d\d:\d\d", capsys.readouterr().out)


def test_disk_full_while_losses_are_written_says_where(folder, tmp_path, fails):
    output = tmp_path / "run"
    said = f"while the run wrote below {output}; {output}/checkpoints/last.ckpt does not exist yet"
    with disk_of(100):
        assert "Traceback" not in fails(said, *command(folder, output, "--trainer.max_steps", "5"))
    assert main(command(folder, output, "--trainer.max_steps", "5")) == 0


# In small: shares of the samplers and pools of negatives, tests/ieeg/training.
@pytest.mark.slow
def test_two_processes(folder, tmp_path, monkeypatch):
    """DDP; forked, so that the processes need not import everything again."""
    output = tmp_path / "run"
    more = ["--trainer.strategy", "ddp_fork", "--trainer.devices", "2", "--model.shared_negatives", "20"]
    script = "import sys; from mvpa_ts.ieeg.commands.main import main; sys.exit(main(sys.argv[1:]))"
    run_python(script, *command(folder, output, *more))
    checkpoint = torch.load(output / "checkpoints" / "last.ckpt", weights_only=True)
    assert checkpoint["global_step"] == 8
    assert checkpoint["RecordingDataModule"]["settings"]["world_size"] == 2
    assert sorted(losses(output)) == list(range(8))
    assert set(pd.read_csv(output / "similarity.csv")["subject"]) == {"S2"}
    MVPFormer.from_pretrained(output / "model")


def test_strategy_reaches_the_trainer(folder, tmp_path, fails):
    """Lightning's FSDP does not run here, for it needs a GPU. That it says so shows that it was asked."""
    fails("FSDP", *command(folder, tmp_path / "run", "--trainer.strategy", "fsdp"))


def test_fsdp_divides_the_model_by_blocks(folder, tmp_path, fails, monkeypatch):
    def asked(**options: Any) -> None:
        raise ValueError(f"asked with {options}")

    monkeypatch.setattr("mvpa_ts.ieeg.commands.training.FSDPStrategy", asked)
    said = "'auto_wrap_policy': {<class 'mvpa_ts.blocks.ParallelBlock'>}, 'cpu_offload': True"
    fails(said, *command(folder, tmp_path / "run", "--trainer.strategy", "fsdp_cpu_offload"))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--data.validation_subjects", "[S9]"], r"validation_subjects ['S9'] have no recording; there are S0, S1, S2"),
        (["--data.validation_subjects", "[]"], "no subject is left for validation"),
        (["--data.recordings", "[nowhere]"], "nowhere"),
        (["--data.recordings", "null"], "recordings or simulation must be given, got neither"),
        (["--model.architecture.context", "60"], "needs 61 segments of 5 s"),
        (["--checkpoint_every", "0"], "checkpoint_every must be at least 1"),
        (["--model.schedule", "cosine", "--trainer.max_steps=-1"], "set trainer.max_steps"),
    ],
)
def test_errors_are_one_line(folder, tmp_path, fails, more, message):
    assert "Traceback" not in fails(message, *command(folder, tmp_path / "run", *more))


def test_recordings_replace_the_simulated_subjects_of_a_configuration(folder, tmp_path, fails):
    short = tmp_path / "short.yaml"
    data = {name: value for name, value in SMALL["data"].items() if name in ("batch_size", "windows", "in_memory")}
    trainer = SMALL["trainer"] | {"max_steps": 1}
    short.write_text(yaml.safe_dump({"model": SMALL["model"], "data": data, "trainer": trainer}))
    arguments = ["pretrain", "--config", "tiny", "--config", str(short), "--output", str(tmp_path / "run")]
    own = ["--data.recordings", f"[{folder}]"]
    fails("have no recording; there are S0, S1, S2 (--data.validation_subjects)", *arguments, *own)
    files = [str(folder / f"S{n}.edf") for n in range(3)]
    own = ["--data.recordings", f"[{files[0]}, {files[1]}]", "--data.validation_recordings", f"[{files[2]}]"]
    assert main([*arguments, *own]) == 0
    assert len(losses(tmp_path / "run")) == 1


def test_unknown_configuration(fails):
    fails("there is no file 'huge'; the package has tiny, s, m", "pretrain", "--config", "huge")


def test_wrong_usage_names_a_help_that_is_there(capsys):
    with pytest.raises(SystemExit):
        main(["pretrain", "--config", "tiny", "--model.learning_rate", "high"])
    tip = re.search(r"run: mvpformer (.*)", capsys.readouterr().err)
    assert tip is not None
    with pytest.raises(SystemExit) as leaving:
        main(tip[1].split())
    assert leaving.value.code == 0


def test_names_of_configurations():
    arguments = with_named_configs(["fit", "--config", "tiny", "--config=s", "--output", "m", "-c", "m"], CONFIGS)
    names = [Path(argument.partition("=")[2] or argument).name for argument in arguments]
    assert names == ["fit", "--config", "tiny.yaml", "s.yaml", "--output", "m", "-c", "m.yaml"]


@pytest.mark.parametrize("name", ["tiny", "s", "m"])
def test_sizes_are_those_of_the_functions(name):
    settings = yaml.safe_load((CONFIG_FOLDER / f"{name}.yaml").read_text())
    model = settings["model"]
    architecture = MVPFormerConfig.from_dict(model["architecture"])
    assert architecture == {"tiny": mvpformer_tiny(), "s": mvpformer_s(), "m": mvpformer_m()}[name]
    assert (model["num_negatives"], model["temperature"], model["weight_decay"]) == (30, 0.1, 0.1)
    assert settings["trainer"]["gradient_clip_val"] == 1.0


@pytest.mark.parametrize("name", ["s", "m"])
def test_training_is_as_the_paper_states_it(name):
    """Section 5.1 and appendix C: a fixed rate, no checkpointing, windows at random, negatives from the batch."""
    settings = yaml.safe_load((CONFIG_FOLDER / f"{name}.yaml").read_text())
    model, trainer = settings["model"], settings["trainer"]
    assert (model["learning_rate"], model["schedule"], model["warmup_steps"]) == (1e-4, "constant", 0)
    assert (model["gradient_checkpointing"], model["shared_negatives"]) == (False, 0)
    assert model["architecture"]["context"] == 100
    assert settings["data"]["balance"] == "none"
    assert [Path(folder).name for folder in settings["data"]["recordings"]] == [*PAPER_TRAIN]
    assert (settings["data"]["validation_subjects"], settings["data"]["validation_recordings"]) == ([], [])
    assert (trainer["precision"], trainer["max_steps"], trainer["num_nodes"]) == ("bf16-mixed", 1_200_000, 1)
    assert name == "s" or trainer["strategy"] == "fsdp"


@pytest.mark.parametrize("name", ["finetune-s", "finetune-m"])
def test_finetuning_has_the_papers_subjects(name):
    data = yaml.safe_load((CONFIG_FOLDER / f"{name}.yaml").read_text())["data"]
    assert [Path(folder).name for folder in data["recordings"]] == [*PAPER_TRAIN]
    assert (data["validation_subjects"], data["validation_recordings"]) == ([], [])


def test_all_subjects_train_where_none_validates(folder, tmp_path):
    everybody = ("--data.validation_subjects", "[]", "--data.validation_recordings", "[]")
    assert main(command(folder, tmp_path / "run", "--trainer.max_steps", "1", *everybody)) == 0
    trained = json.loads((tmp_path / "run" / "model" / "training.json").read_text())
    assert len(trained["subjects_sha256"]) == 3


def test_our_settings_change_the_papers_and_nothing_else():
    ours, paper = (yaml.safe_load((CONFIG_FOLDER / f"{name}.yaml").read_text()) for name in ("ours", "m"))
    for group, settings in ours.items():
        assert settings.keys() <= paper[group].keys()
        assert all(value != paper[group][key] for key, value in settings.items())


def test_environment_is_left_as_it_was(folder, tmp_path):
    arguments, variables = list(sys.argv), dict(os.environ)
    main(command(folder, tmp_path / "run", "--trainer.max_steps", "1"))
    assert sys.argv == arguments
    assert {k for k in os.environ if k.startswith(("LOCAL_RANK", "MASTER"))} <= set(variables)
