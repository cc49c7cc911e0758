"""What goes wrong is said, ends with status 1, and costs nothing that was there before."""

import json
import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.library import run_python
from support.made_up_recordings import disk_of, recording, run

from mvpa_ts.ieeg import Detector, MVPFormer, Recording
from mvpa_ts.ieeg.commands.main import suggestions
from mvpa_ts.ieeg.detection.saved import EVENTS, PROBABILITIES, REPORT, RUN
from mvpa_ts.ieeg.simulation.writing import write_edf, write_swec
from mvpa_ts.ieeg.training.checkpoints import AtomicCheckpointIO


def named(samples: np.ndarray, names: list[str], name: str = "x") -> Recording:
    return Recording.from_array(samples, 512.0, names, "µV", name=name, subject=name)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["-o", "taken"], "--output taken is a file: name a folder, or a file that ends in .tsv"),
        (["-o", "out", "--noise", "nan"], "snr must be a finite number of dB such as 40, got nan (--noise)"),
    ],
)
def test_wrong_settings_of_detect(tmp_path, monkeypatch, fails, more, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").write_text("mine")
    write_edf(recording("S0", seed=0, segments=2), tmp_path / "a.edf")
    fails(message, "detect", "a.edf", *more)
    assert (tmp_path / "taken").read_text() == "mine"


@pytest.mark.parametrize("begin", [
    "calibrate a.edf --per-day 9 -o taken/deep/c.json", "detect a.edf -o taken/deep", "board a.edf -o taken/deep",
    "detect a.edf -o taken/deep/x.tsv", "plot channels a.edf -o taken/deep/x.png", "convert a.pt -o taken/deep",
    "finetune --classes a b --recordings a.edf --output taken/deep", "evaluate . -o taken/deep",
    "finetune --config tiny --model.base demo-base --output taken/deep",
])  # fmt: skip
def test_an_output_that_cannot_be_written_is_named_before_any_work(begin, tmp_path, monkeypatch, fails):
    monkeypatch.chdir(tmp_path)
    for name in ("taken", "a.edf"):  # which would be named, were it read
        (tmp_path / name).write_text("mine")
    fails("nothing can be written into taken/deep (Not a directory): name another folder", *begin.split())


def test_simulate_names_the_next_command(tmp_path, capsys, fails):
    out = tmp_path / "made up"
    arguments = ["simulate", out, "--subjects", "1", "--channels", "2", "--hours", "0.01", "--format", "edf"]
    assert run(*arguments, "--seizures", "0") == 0
    command = capsys.readouterr().out.split(f"1 recording in {out}; next: ")[1]
    assert shlex.split(command) == ["mvpformer", "detect", str(out), "-o", "results"]
    fails("is a file: name a folder to write to", "simulate", out / "S101.edf", *arguments[2:])


def test_simulate_without_room_names_the_file_and_leaves_nothing(tmp_path, fails, monkeypatch):
    arguments = ["simulate", tmp_path, "--subjects", "1", "--channels", "4", "--hours", "0.01"]
    with disk_of(20_000):
        fails("File too large", *arguments, "--format", "edf")
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=100_000))
    # 36 s of 512 float32 a second
    fails(f"{tmp_path / 'S101'} takes 0.295 MB, and 0.1 are free: make room there", *arguments)
    assert not [*tmp_path.iterdir()]


class TestDivergedModel:
    @pytest.fixture
    def arguments(self, tmp_path):
        simulation = {"subjects": 2, "channels": [2], "hours": 0.03, "seizures": 1, "seed": 0}
        architecture = {"dim": 16, "mlp_dim": 24, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1, "context": 4}
        small = {
            "model": {"method": "full", "architecture": architecture, "warmup_steps": 0},
            "data": {"simulation": simulation, "validation_subjects": ["S02"], "batch_size": 2, "windows": 2},
            "trainer": {"max_steps": 6, "accelerator": "cpu", "limit_val_batches": 0, "enable_progress_bar": False},
        }
        (tmp_path / "small.yaml").write_text(json.dumps(small))
        return ["finetune", "--config", tmp_path / "small.yaml", "--output", tmp_path / "run"]

    def test_training_ends_with_the_step_and_keeps_the_last_good_checkpoint(self, arguments, tmp_path, capsys, fails):
        assert run(*arguments, "--trainer.max_steps", 2, "--checkpoint_every", 1) == 0
        assert f"the model is in {tmp_path / 'run' / 'model'}; next: mvpformer detect" in capsys.readouterr().out
        checkpoint = tmp_path / "run" / "checkpoints" / "last.ckpt"
        before = checkpoint.read_bytes()
        other = [argument if argument != tmp_path / "run" else tmp_path / "diverged" for argument in arguments]
        fails("the loss of step 2 is nan: training diverged", *other, "--model.learning_rate", "1e30")
        assert not (tmp_path / "diverged" / "model").exists()
        # A checkpoint with weights that are not finite takes no good one's place.
        io = AtomicCheckpointIO()
        content = io.load_checkpoint(checkpoint)
        next(iter(content["state_dict"].values()))[0] = torch.nan
        with pytest.raises(ValueError, match="NaN or infinite weights in 1 of"):
            io.save_checkpoint(content, checkpoint)
        assert checkpoint.read_bytes() == before

    def test_weights_that_are_not_finite_are_not_saved(self, model, tmp_path):
        model.save_pretrained(tmp_path)
        before = (tmp_path / "model.safetensors").read_bytes()
        broken = MVPFormer.from_pretrained(tmp_path)
        with torch.no_grad():
            broken.head.weight[0, 0] = torch.inf
        with pytest.raises(ValueError, match=r"NaN or infinite weights in 1 of .* such as head\.weight"):
            broken.save_pretrained(tmp_path)
        assert (tmp_path / "model.safetensors").read_bytes() == before
        with pytest.raises(ValueError, match=r"no finite probability: 1 of its tensors .* such as head\.weight"):
            Detector(broken, channels="all").detect(recording("S1", 1, segments=3))

    def test_a_file_of_such_weights_is_no_detector(self, model_folder, tmp_path, capsys):
        shutil.copytree(model_folder, tmp_path, dirs_exist_ok=True)
        weights = load_file(tmp_path / "model.safetensors")
        weights["stack.norm.weight"][3] = torch.nan
        save_file(weights, tmp_path / "model.safetensors")
        write_edf(recording("S1", 1, segments=3), tmp_path / "x.edf")
        assert run("detect", tmp_path / "x.edf", "-o", tmp_path / "out", "--model", tmp_path) == 1
        assert "holds NaN or infinite weights in 1 of" in capsys.readouterr().err
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize(("dtype", "words"), [(torch.float16, "torch.float16"), (torch.int32, "torch.int32")])
    def test_a_head_of_another_type_is_named(self, model_folder, tmp_path, dtype, words):
        shutil.copytree(model_folder, tmp_path, dirs_exist_ok=True)
        weights = load_file(tmp_path / "model.safetensors")
        weights["head.weight"] = weights["head.weight"].to(dtype)
        save_file(weights, tmp_path / "model.safetensors")
        with pytest.raises(ValueError, match=f"1 of another type: head.weight {words}"):
            MVPFormer.from_pretrained(tmp_path)


def test_a_recording_of_which_nothing_was_scored_is_no_background(detect, tmp_path, fails):
    write_edf(named(np.zeros((3, 30 * 512)), ["A1", "A2", "A3"]), tmp_path / "in" / "flat.edf")
    write_edf(recording("S1", 1, segments=3), tmp_path / "in" / "good.edf")
    error = fails("1 of 2 recordings failed: flat.edf", *detect(tmp_path / "in"), "--threshold", 1)
    assert "flat: nothing was scored (no channel with a signal)" in error
    assert (tmp_path / "out" / "flat" / EVENTS).read_text().splitlines()[1:] == []
    assert "bckg" in (tmp_path / "out" / "good" / EVENTS).read_text()


def test_values_of_a_wrong_unit_are_named_where_nothing_was_scored(detect, tmp_path, fails):
    samples = np.random.default_rng(0).uniform(-9e6, 9e6, (3, 20 * 512))
    with pytest.warns(UserWarning, match="is the unit right"):
        write_edf(named(samples, ["A1", "A2", "A3"]), tmp_path / "volts.edf")
    fails("; 89% of the values are beyond ±1 V", *detect(tmp_path / "volts.edf"))


def test_damaged_files_are_named_and_the_others_scored(detect, tmp_path, fails, monkeypatch):
    write_edf(recording("S1", 1, segments=3), tmp_path / "in" / "good.edf")
    write_edf(recording("S2", 2, segments=3), tmp_path / "in" / "odd.edf")
    write_swec(recording("ID05", 3, segments=12), tmp_path / "in")
    for part in (tmp_path / "in" / "ID05").glob("*.h5"):
        with h5py.File(part, "r+") as file:
            file.pop("data", None)
    from mvpa_ts.ieeg.recordings import reading

    original = reading.read_recording

    def stumbling(path, **options):
        if Path(path).name == "odd.edf":
            raise RuntimeError("what a library says of bytes that it did not expect")
        return original(path, **options)

    monkeypatch.setattr(reading, "read_recording", stumbling)
    error = fails("2 of 3 recordings failed: ID05, odd.edf", *detect(tmp_path / "in"))
    assert "odd.edf: RuntimeError: what a library says" in error
    assert (tmp_path / "out" / "good" / RUN).is_file()


class TestText:
    """Names that matplotlib would take for formulas."""

    NAMES = (r"$\frac{1$", "B$2$", "C_3^{")

    def test_in_every_figure_of_a_detection(self, model, tmp_path):
        detection = Detector(model, channels="all", rules="none", threshold=0.0).detect(
            named(np.random.default_rng(0).normal(0, 50, (3, 30 * 512)), [*self.NAMES], name=r"a$\frac$")
        )
        detection.save(tmp_path)
        assert (tmp_path / REPORT).read_text().count("data:image/png") >= 3

    def test_in_maps_of_components_and_cohorts(self, model, tmp_path):
        from mvpa_ts.ieeg.model.component_maps import component_maps, plot_component_maps
        from mvpa_ts.ieeg.scoring.cohort import cohort_report
        from mvpa_ts.ieeg.scoring.plots import save_cohort_plots
        from mvpa_ts.ieeg.scoring.results import RecordingResult, SubjectResult

        maps = component_maps(model, [torch.randn(1, 3, 4 * 2560)], self.NAMES)
        plot_component_maps(maps).savefig(tmp_path / "maps.png")
        starts = 5.0 * np.arange(40)
        results = [
            SubjectResult(name, [RecordingResult("r", name, 200, starts, np.linspace(0, 1, 40), [(150.0, 200.0)], [])])
            for name in (r"a$\frac$", "$b$", "c")
        ]
        report = cohort_report(results, {r"$\g$": [r"a$\frac$", "$b$", "c"]}, draws=5, resamples=5)
        assert len(save_cohort_plots(report, tmp_path)) == 4  # not of rates: these are no hour

    def test_in_the_plot_of_similarities(self, tmp_path):
        from mvpa_ts.ieeg.training.similarity import COLUMNS, Similarity

        rows = [(r"a$\frac$", "r", 0.0, "interictal", 0.5, 0.4, 0.1), (r"a$\frac$", "r", 5.0, "ictal", 0.5, 0.4, 0.1)]
        Similarity([pd.DataFrame(rows, columns=COLUMNS)]).plot(tmp_path / "similarity.png", r"$\x$")
        assert (tmp_path / "similarity.png").stat().st_size > 1000


def test_a_report_that_fails_costs_no_scores(model, model_folder, tmp_path, monkeypatch, fails):
    write_edf(recording("S1", 1, segments=3), tmp_path / "x.edf")

    def failing(*_, **options):
        raise ValueError("no picture")

    monkeypatch.setattr("mvpa_ts.ieeg.detection.plots.plot_traces", failing)
    fails("no picture", "detect", tmp_path / "x.edf", "-o", tmp_path / "out", "--model", model_folder)
    assert {RUN, EVENTS, PROBABILITIES} <= {path.name for path in (tmp_path / "out" / "x").iterdir()}


class TestModelNames:
    """A mistyped path is not looked up on the hub, where anybody may own the name."""

    @pytest.mark.parametrize("name", ["models/tiny", "nowhere"])
    def test_a_folder_that_is_not_there(self, name, tmp_path, capsys, monkeypatch):
        monkeypatch.setattr("mvpa_ts.ieeg.model.pretrained._from_hub", lambda *_, **__: pytest.fail("hub was asked"))
        write_edf(recording("S1", 1, segments=3), tmp_path / "x.edf")
        assert run("detect", tmp_path / "x.edf", "-o", tmp_path / "out", "--model", name) == 1
        error = capsys.readouterr().err
        assert f"there is no folder {name}" in error
        assert (f"named hf://{name}" in error) == (name == "models/tiny")
        assert run("plot", "attention", tmp_path / "x.edf", "-o", tmp_path / "x.png", "--model", name) == 1
        assert f"there is no folder {name}" in capsys.readouterr().err
        with pytest.raises(SystemExit):
            run("finetune", "--config", "tiny", "--model.base", name, "--output", tmp_path / "run")
        assert f"error: there is no folder {name}" in capsys.readouterr().err

    def test_a_name_on_the_hub(self, model_folder, tmp_path, monkeypatch):
        asked = []

        def hub(repository, name, **_):
            asked.append((repository, name))
            return model_folder / name

        monkeypatch.setattr("mvpa_ts.ieeg.model.pretrained._from_hub", hub)
        write_edf(recording("S1", 1, segments=3), tmp_path / "x.edf")
        assert run("detect", tmp_path / "x.edf", "-o", tmp_path / "out", "--model", "hf://owner/name") == 0
        assert {repository for repository, _ in asked} == {"owner/name"}
        MVPFormer.from_pretrained("owner/name")


class TestOptions:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["detect", "x.edf", "-o", "out", "--mod", "m"], "--mod is no option, did you mean --model?"),
            (["evaluate", "results", "-o", "out", "--modes", "paper"], "--modes is no option, did you mean --mode?"),
            (
                ["pretrain", "--config", "tiny", "--model.learning_rat", "3"],
                "--model.learning_rat is no option, did you mean --model.learning_rate?",
            ),
            (["simulate", "out", "--subject", "3"], "--subject is no option, did you mean --subjects?"),
        ],
    )
    def test_an_abbreviation_is_an_error_with_a_suggestion(self, arguments, message, capsys):
        with pytest.raises(SystemExit) as leaving:
            run(*arguments)
        assert leaving.value.code == 2
        assert message in capsys.readouterr().err

    def test_nothing_alike_has_no_suggestion(self):
        assert suggestions(["--zzz", "-o", "--model"], ["--model"]) == ["--zzz is no option"]

    def test_training_from_scratch_takes_its_context_from_the_architecture(self, tmp_path, capsys):
        simulation = {"subjects": 2, "channels": [2], "hours": 0.02, "seizures": 1, "seed": 0}
        arguments = ["finetune", "--config", "tiny", "--output", tmp_path / "run", "--model.method", "full"]
        sizes = {"context": 4, "dim": 16, "mlp_dim": 24, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1}
        arguments += [part for name, size in sizes.items() for part in (f"--model.architecture.{name}", size)]
        arguments += ["--data.simulation", json.dumps(simulation), "--data.validation_subjects", "[S02]"]
        arguments += ["--trainer.max_steps", 1, "--trainer.limit_val_batches", 0, "--trainer.accelerator", "cpu"]
        assert run(*arguments) == 0
        assert Detector(tmp_path / "run" / "model").config.context == 4

    def test_json_without_end_is_an_error_and_no_crash(self, detect, tmp_path):
        write_edf(recording("S1", 1, segments=3), tmp_path / "x.edf")
        code = "import sys; from mvpa_ts.ieeg.commands.main import main; sys.exit(main(sys.argv[1:]))"
        result = run_python(code, *detect(tmp_path / "x.edf"), "--preprocessing", "[" * 100_000, status=1)
        assert "--preprocessing must be JSON" in result.stderr
