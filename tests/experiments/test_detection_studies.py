"""The detection studies: thresholds, augmentation, stages that are kept, configurations, tables, made-up data sets."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

pytest.importorskip("peft")
pytest.importorskip("timescoring")

import demo_detect
import real_seizures
import seizure_detection
import treebank
from harness.detection import interictal, paper_rows, real, simulated
from harness.detection import pipeline as detection_pipeline
from harness.detection import training as detection_training
from harness.detection.baselines import BASELINES, PUBLISHED
from harness.detection.decoding import decode, trial_features
from harness.detection.pipeline import Study, best_threshold, with_channels
from harness.detection.real import animal_folder, folds_of, simulated_animal
from harness.detection.settings import Cohort, Configuration, Effort
from harness.detection.training import Training, augmented, finetune_on_trials, scale_initialisation
from harness.paper import tables as paper
from sklearn.metrics import roc_auc_score
from support.fuzzing.tables import write_nejedly
from torch.nn.utils import parameters_to_vector

from mvpa_ts.ieeg import MVPFormer, Recording, Segments, mvpformer_tiny, simulate_cohort, simulate_recording
from mvpa_ts.ieeg.datasets.treebank_tasks import Examples, ExampleSplit

TINY = Effort(
    context=3,
    pretraining_steps=2,
    finetuning_steps=2,
    batch_size=2,
    windows=2,
    copies=2,
    accelerator="cpu",
    precision="32-true",
    devices=1,
    recipe="small",
)


@pytest.fixture(scope="module")
def cohort():
    size = {"duration": 90.0, "num_seizures": 1, "num_channels": (2, 3)}
    train = simulate_cohort(2, **size)
    return Cohort(
        "test",
        {
            "pretraining": train,
            "finetuning": train,
            "calibration": simulate_cohort(2, session=1, **size),
            "unseen": simulate_cohort(2, first_subject=3, **size),
        },
    )


class TestThreshold:
    def scored(self, probabilities, seizures):
        starts = 5.0 * np.arange(len(probabilities))
        recording = Recording.from_array(
            np.random.default_rng(0).normal(0, 50, (1, 5 * len(probabilities))), 1.0, ["A1"], "µV", seizures=seizures
        )
        return recording, np.asarray(probabilities, float), starts

    @pytest.mark.parametrize(
        ("seizures", "low", "high"),
        [([(1500.0, 1530.0)], 0.6, 0.9), ([(250.0, 280.0), (1500.0, 1530.0)], 0.05, 0.6)],
        ids=["a weaker burst is none", "seizures of both strengths"],
    )
    def test_separates_seizures_from_all_else(self, seizures, low, high):
        probabilities = np.full(400, 0.05)
        probabilities[50:56] = 0.6
        probabilities[300:306] = 0.9
        assert low <= best_threshold([self.scored(probabilities, seizures)], "szcore") < high


class TestAugmentation:
    def test_views_are_shifted_flipped_copies_with_their_labels(self):
        recording = simulate_recording("S01", num_channels=3, duration=61.0, num_seizures=1)
        plain, *others = augmented(recording, 4, seed=0)
        clean = Segments(recording).read(0, 12)[0]
        np.testing.assert_array_equal(plain.read(0, 12)[0], clean)
        np.testing.assert_array_equal(plain.labels(), Segments(recording).labels()[:12])
        ((onset, offset),) = recording.seizures
        for view in others:
            shift = round(view.starts[0] * 512)
            assert 0 < shift < 2560
            assert view.num_segments == 11
            x, valid = view.read(2, 5)
            assert valid.all()
            expected = clean[:, shift + 2 * 2560 : shift + 5 * 2560]
            np.testing.assert_array_equal(np.abs(x), np.abs(expected))
            assert all(len(np.unique(signs[signs != 0])) == 1 for signs in np.sign(x * expected))
            ictal = [start < offset and start + 5 > onset for start in view.starts]
            np.testing.assert_array_equal(view.labels(), ictal)
        assert len({view.starts[0] for view in others}) == 3
        np.testing.assert_array_equal(augmented(recording, 4, seed=0)[2].read(0, 1)[0], others[1].read(0, 1)[0])

    def test_initialisation_is_scaled_to_the_width(self):
        with torch.random.fork_rng(devices=[]):
            model = MVPFormer(mvpformer_tiny())
        before = model.stack.blocks[0].attention.query.weight.std().item()
        codebook = model.stack.time_codebook.clone()
        scale_initialisation(model)
        assert model.stack.blocks[0].attention.query.weight.std().item() == pytest.approx(5 * before, rel=0.01)
        torch.testing.assert_close(model.stack.time_codebook, codebook, rtol=0, atol=0)


class TestStudy:
    def test_stages_are_kept_and_shared(self, cohort, tmp_path, monkeypatch):
        study = Study(cohort, TINY, tmp_path)
        configuration = Configuration("a", "A", size="tiny")
        row, report = study.run(configuration)
        assert row["subjects"] == 2
        assert 0 < row["trained_share"] < 0.2
        assert set(report.subjects["subject"]) == {"S03", "S04"}
        for name in ("pretrain", "finetune"):
            monkeypatch.setattr(detection_pipeline, name, lambda *_: pytest.fail("trained again"))
        again, _ = study.run(configuration)
        assert {k: v for k, v in again.items() if k != "seconds"} == {k: v for k, v in row.items() if k != "seconds"}
        Study(cohort, replace(TINY, rules="paper"), tmp_path).run(configuration)
        reports = {path.name for path in (tmp_path / "test" / "reports").iterdir()}
        assert reports == {"a-szcore-0", "a-paper-0"}  # the rules of one do not take the place of the other's
        noisy, _ = study.run(replace(configuration, name="b", noise=30.0))
        assert noisy["threshold"] == row["threshold"]
        with pytest.raises(pytest.fail.Exception):
            Study(cohort, replace(TINY, finetuning_steps=3), tmp_path).run(configuration)

    def test_line_length_finds_a_loud_stretch(self):
        x = np.random.default_rng(0).normal(0, 30, (2, 300 * 512))
        x[1, 150 * 512 : 170 * 512] *= 6
        recording = Recording.from_array(x, 512.0, ["A1", "A2"], "µV", preprocessed=True)
        scores, starts = BASELINES["line length"]([])(recording)
        assert sorted(starts[np.argsort(scores)[-4:]]) == [150.0, 155.0, 160.0, 165.0]

    @pytest.mark.parametrize("name", ["logistic regression", "logistic regression, own level"])
    def test_regression_learns_from_others_what_a_loud_stretch_is(self, name):
        def loud(seed, onset, scale=30):
            x = np.random.default_rng(seed).normal(0, scale, (2, 300 * 512))
            x[seed % 2, onset * 512 : (onset + 20) * 512] *= 6
            times = [(float(onset), onset + 20.0)]
            return Recording.from_array(x, 512.0, ["A1", "A2"], "µV", preprocessed=True, seizures=times)

        score = BASELINES[name]([loud(0, 100), loud(1, 200)])
        # Three times as strong: only the recording's own level tells that this is no seizure.
        probabilities, starts = score(loud(2, 150, 90 if "own" in name else 30))
        assert starts[probabilities > 0.5].tolist() == [150.0, 155.0, 160.0, 165.0]

    def test_the_published_model_is_averaged_over_channels_and_segments(self, monkeypatch):
        """Its traces have a value each half second but the first; where a channel has none, the others count."""
        windows = []

        def traces(signal, sfreq, model, **options):
            windows.append(options.get("window_s", 300.0))
            seconds = np.arange(0.0, len(signal) / sfreq, 0.5)
            found = np.where(seconds < 10, 0.2, 0.6) * signal[0]
            return seconds, np.where((seconds == 0) | ((seconds >= 5) & (signal[0] == 2)), np.nan, found)

        published = SimpleNamespace(predict_channel_seizure_probability=traces)
        monkeypatch.setitem(sys.modules, "brainmaze_eeg_models", SimpleNamespace(seizure=published, __spec__=""))
        monkeypatch.setitem(sys.modules, "brainmaze_eeg_models.seizure", published)
        channels = np.outer([1.0, 2.0], np.ones(15 * 512))
        recording = Recording.from_array(channels, 512.0, ["A1", "A2"], "µV", preprocessed=True)
        probabilities, starts = BASELINES[PUBLISHED]([])(recording)
        assert starts.tolist() == [0.0, 5.0, 10.0]
        np.testing.assert_allclose(probabilities, [0.3, 0.2, 0.6])
        BASELINES[PUBLISHED]([])(Recording.from_array(np.ones((1, 301 * 8)), 8.0, ["A1"], "µV", preprocessed=True))
        assert windows == [15.0, 15.0, 300.0]

    @pytest.mark.parametrize("name", ["logistic regression", "line length"])
    def test_baseline_rows(self, cohort, tmp_path, name):
        row, _ = Study(cohort, TINY, tmp_path).baseline(name)
        assert (row["row"], row["configuration"], row["seizures"]) == (name, name.replace(" ", "-"), 2)

    def test_thresholds_are_chosen_on_validation_subjects(self, cohort, tmp_path, monkeypatch):
        """Their seizures lie above .6 and their background reaches .5; those of the tested subjects lie below .4."""
        validation = {id(recording) for recording in cohort.groups["calibration"]}

        def score(recording):
            starts = 5.0 * np.arange(int(recording.duration // 5))
            ictal = np.array([any(s < end and s + 5 > on for on, end in recording.seizures) for s in starts])
            spread = np.linspace(0.0, 0.2, len(starts))
            if id(recording) in validation:
                return np.where(ictal, 0.6 + spread, np.where(np.arange(len(starts)) % 2, 0.5, 0.1)), starts
            return np.where(ictal, 0.2 + spread, 0.1), starts

        monkeypatch.setitem(detection_pipeline.BASELINES, "line length", lambda training: score)
        study = Study(cohort, TINY, tmp_path)
        assert study.baseline("line length")[0]["threshold"] >= 0.5
        asked = []

        def probabilities(configuration, model, group):
            asked.append(group)
            return [(recording, *score(recording)) for recording in cohort.groups[group]]

        monkeypatch.setattr(study, "_probabilities", probabilities)
        assert study.threshold(Configuration("a", "A", size="tiny"), None) >= 0.5
        assert asked == ["calibration"]

    def test_channels_of_a_configuration(self):
        recording = simulate_recording("S01", num_channels=12, duration=15.0, num_seizures=0)
        names = recording.channel_names
        cohort = Cohort("some", {}, manual={"S01": [names[4], names[1]]}, automatic=5)
        assert len(with_channels(recording, 8, cohort).channel_names) == 8
        assert len(with_channels(recording, "auto", cohort).channel_names) == 5
        assert with_channels(recording, "all", cohort) is recording
        assert with_channels(recording, "manual", cohort).channel_names == (names[1], names[4])
        with pytest.raises(ValueError, match="must have every subject, it lacks S01"):
            with_channels(recording, "manual", Cohort("none", {}))

    def test_continued_pretraining_begins_with_the_first(self, cohort, tmp_path, monkeypatch):
        groups = {**cohort.groups, "more": cohort.groups["unseen"]}
        study = Study(replace(cohort, groups=groups), TINY, tmp_path)
        first = Configuration("a", "A", size="tiny")
        started: list[MVPFormer | None] = []

        def pretrain(config, segments, training, start=None):
            started.append(start)
            return detection_training.pretrain(config, segments, training, start)

        monkeypatch.setattr(detection_pipeline, "pretrain", pretrain)
        base = study.base(first)
        continued = study.base(replace(first, continued="more"))
        assert started[0] is None
        for name, weights in base.state_dict().items():
            torch.testing.assert_close(started[1].state_dict()[name], weights)
        assert any((a != b).any() for a, b in zip(base.parameters(), continued.parameters(), strict=True))

    def test_the_papers_recipe(self):
        training = Training(100, 1e-4, 8, 1, Path(), 0, {}, "paper")
        assert training.schedule() == {"schedule": "constant", "warmup_steps": 0, "weight_decay": 0.1}
        assert replace(training, recipe="small").schedule() == {"warmup_steps": 10}
        assert (Effort().pretraining_steps, Effort().precision, Effort().recipe) == (1_200_000, "bf16-mixed", "paper")

    @pytest.mark.parametrize(("size", "batch"), [("s", 8), ("m", 2)])
    def test_batches_and_devices_of_swec(self, cohort, size, batch, tmp_path):
        """Batches are those of the package's configurations, on the paper's eight GPUs."""
        configs = Path(__file__).parents[2] / "ieeg" / "configs"
        for name in (f"{size}.yaml", f"finetune-{size}.yaml"):
            assert yaml.safe_load((configs / name).read_text())["data"]["batch_size"] == batch
        configuration = Configuration("a", "A", size=size)
        training = Study(cohort, Effort(), tmp_path).training(configuration, "pretraining", tmp_path)
        trainer = training.trainer
        assert (training.batch_size, trainer["devices"], trainer["strategy"]) == (batch, 8, "ddp_spawn")
        few = Study(cohort, TINY, tmp_path).training(configuration, "finetuning", tmp_path)
        assert (few.batch_size, few.trainer["devices"], few.steps) == (2, 1, 2)
        assert "strategy" not in few.trainer

    @pytest.mark.slow
    @pytest.mark.timeout(1200)
    def test_two_processes_train_on_different_spans(self, cohort, tmp_path):
        """The model that returns is neither that of one process nor the untrained one."""
        configuration = Configuration("a", "A", size="tiny")
        settings = ({"devices": 2}, {}, {"pretraining_rate": 1e-12})
        two, one, untrained = (
            parameters_to_vector(Study(cohort, replace(TINY, **changes), tmp_path).base(configuration).parameters())
            for changes in settings
        )
        assert (two - untrained).abs().max() > 1e-5
        assert (two - one).abs().max() > 1e-5

    @pytest.mark.parametrize(("recipe", "balance"), [("paper", "none"), ("small", "subject")])
    def test_windows_are_drawn_as_in_the_paper_and_each_process_has_its_own(self, monkeypatch, cohort, recipe, balance):
        given = []
        monkeypatch.setattr(detection_training, "_fit", lambda module, data, training: given.append(data))
        segments = [Segments(recording) for recording in cohort.groups["pretraining"]]
        training = Training(1, 1e-4, 2, 2, Path(), 0, {}, recipe)
        detection_training.pretrain(mvpformer_tiny(context=3), segments, training)
        (data,) = given
        assert data.sampler().balance == balance
        if recipe == "paper":  # from the whole set
            first, second = ({*data.sampler(rank, 2)} for rank in (0, 1))
            assert not first & second
            assert len(first | second) == len(data.dataset.subjects)


class TestConfigurations:
    def test_every_row_of_the_paper_has_one(self):
        """Each table by subject, and each model of the summary, is a configuration or a cited row."""
        configurations = seizure_detection.CONFIGURATIONS
        assert len({configuration.name for configuration in configurations}) == len(configurations)
        tables = {path.stem for path in paper.FOLDER.glob("*_patients_*.tsv")} | set(paper.seizure_summary().index)
        cited = {*paper_rows.CITED, *paper_rows.CITED.values()}
        assert tables == {c.printed for c in configurations if c.printed} | cited
        assert len(tables) == 17
        levels = [c.noise for c in configurations if c.noise is not None]
        assert levels == paper.noise().index[1:].str.removesuffix("dB").astype(float).tolist()

    def test_the_papers_numbers_are_of_the_subjects_that_are_meant(self):
        """The text says 0.73 for the 40, whose table lists ten more; noise has a printed summary."""
        assert paper_rows.printed("58_patients_teston40")["kappa_episodic"] == pytest.approx(0.73, abs=0.005)
        assert paper_rows.printed("18_patients_30dB")["false_positives_per_hour"] == 1.22

    def test_what_a_row_lacks_is_said(self, cohort):
        by_name = {configuration.name: configuration for configuration in seizure_detection.CONFIGURATIONS}
        assert not seizure_detection.missing(by_name["mvpformer"], cohort)
        assert "--manual" in seizure_detection.missing(by_name["manual"], cohort)
        assert seizure_detection.missing(by_name["18-test40"], cohort) == "no recordings for test40"

    def test_58_subjects_are_18_and_40_more(self):
        by_name = {configuration.name: configuration for configuration in seizure_detection.CONFIGURATIONS}
        assert len(seizure_detection.PRETRAINING_40) == 40
        for test in ("last10", "test40"):
            few, many = by_name[f"18-{test}"], by_name[f"58-{test}"]
            assert (many.pretraining, many.continued) == ("pretraining", "pretraining40")
            assert replace(many, name=few.name, row=few.row, continued=None, printed=few.printed) == few

    def test_the_papers_row_stands_below_ours(self):
        row = dict.fromkeys(paper_rows.COLUMNS, 0.25) | {"configuration": "mvpformer-s", "row": "MVPFormer-S"}
        text = paper_rows.markdown(pd.DataFrame([row]), [*seizure_detection.CONFIGURATIONS])
        ours = "| MVPFormer-S | 0.25 | 0.25 | 0.25 | 0.25 | 0.25 | 0.25 |\n"
        assert f"{ours}| *the paper* | 0.57 | – | 0.53 | 0.71 | 0.12 | 0.49 |\n" in text

    def test_channels_by_hand_are_those_that_seizures_reach(self):
        same = {"num_channels": 12, "sfreq": 256.0, "seed": 51, "duration": 120.0, "cohort": "hard"}
        ictal, quiet = (simulate_recording("S202", num_seizures=count, **same) for count in (1, 0))
        reached = np.abs(ictal.read(0, 30_720) - quiet.read(0, 30_720)).sum(1)
        by_hand = np.isin(ictal.channel_names, demo_detect.chosen_by_hand(ictal))
        assert by_hand.sum() == 6
        assert reached[by_hand].mean() > reached[~by_hand].mean()

    def test_manual_channels_are_read(self, tmp_path):
        path = tmp_path / "channels.tsv"
        path.write_text("subject\tchannel\nID19\tA1\nID19\tA2\nID20\tB1\n")
        assert seizure_detection.manual_channels(path) == {"ID19": ["A1", "A2"], "ID20": ["B1"]}
        path.write_text("subject\tname\nID19\tA1\n")
        with pytest.raises(ValueError, match="lacks channel"):
            seizure_detection.manual_channels(path)


def test_interictal_data_sets(tmp_path, cohort):
    """Five patients of the MAYO layout: the first four finetune, the fifth is scored."""
    folder = tmp_path / "DATASET_MAYO"
    folder.mkdir()
    rows = [(0, ("pathology", "physiology")[index % 2], index % 5 + 1) for index in range(20)]
    write_nejedly(folder, np.random.default_rng(0).normal(0, [[200], [50]] * 10, (20, 15_000)), rows)
    study = Study(cohort, TINY, tmp_path / "out")
    configuration = Configuration("a", "A", size="tiny", pretraining=None)
    row = interictal.run(study, configuration, [folder, tmp_path / "DATASET_FNUSA"])
    assert {"MAYO F1", "MAYO sensitivity", "MAYO specificity"} <= set(row)
    assert not [name for name in row if name.startswith("FNUSA")]
    assert 0 <= row["MAYO specificity"] <= 1
    pretrained = replace(configuration, pretraining="nobody")  # of which there are no recordings
    assert interictal.run(study, pretrained, [folder]) is None
    assert interictal.run(study, configuration, [tmp_path / "nowhere"]) is None
    assert interictal.baseline("line length", [tmp_path / "nowhere"]) is None
    for name in interictal.BASELINES:  # pathology is four times as loud
        found = interictal.baseline(name, [folder])
        assert [found[f"MAYO {measure}"] for measure in interictal.MEASURES] == [1.0, 1.0, 1.0]


def test_made_up_pathology_shows_in_the_shape_of_waves_and_not_in_their_power(tmp_path):
    """On patients of another seed the regression has an F1 below .6, a filter matched to the wave an AUROC above .9."""
    simulated.write_nejedly(tmp_path, 6, 48, seed=1)
    folder = tmp_path / "DATASET_FNUSA"
    f1 = [interictal.baseline(name, [folder])["FNUSA F1"] for name in ("line length", "logistic regression")]
    assert f1[0] < f1[1] <= 0.6
    seconds = np.arange(-150, 260) / 512
    wave = 0.5 * np.exp(-0.5 * ((seconds - 0.2) / 0.07) ** 2) - np.exp(-0.5 * (seconds / 0.015) ** 2)
    *_, test = interictal.parts_of(folder)
    signals = [item["signal"][0, 512:2048].numpy() for item in test]
    peaks = [[np.correlate(x / x.std(), w, "valid").max() for w in (wave, wave[::-1])] for x in signals]
    assert roc_auc_score(test.ictal, np.subtract(*np.transpose(peaks))) > 0.9


def test_rates_are_averaged_over_patients():
    truth = np.array([1, 1, 1, 0, 0, 1, 0, 0], bool)
    found = np.array([1, 1, 0, 0, 0, 0, 1, 0], bool)
    patients = ["1", "1", "1", "1", "1", "2", "2", "3"]
    scores = interictal.scores("X", truth, found, patients)
    assert scores["X sensitivity"] == pytest.approx((2 / 3 + 0) / 2)
    assert scores["X specificity"] == pytest.approx((1 + 0 + 1) / 3)
    assert scores["X F1"] == pytest.approx(2 * 2 / (2 * 2 + 1 + 2))


def test_a_model_does_not_go_on_from_the_checkpoint_of_another(tmp_path, monkeypatch):
    checkpoint = detection_training.ModelCheckpoint
    often = {"every_n_train_steps": 1}
    monkeypatch.setattr(detection_training, "ModelCheckpoint", lambda folder, **o: checkpoint(folder, **{**o, **often}))
    signals = np.random.default_rng(0).normal(0, 50, (8, 2, 2560)).astype(np.float32)
    trials = [detection_training.trial_item(signal, row % 2 == 0) for row, signal in enumerate(signals)]

    def finetuned(seed, method, folder):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            base = MVPFormer(mvpformer_tiny(context=2))
        training = Training(2, 1e-3, 2, 1, tmp_path / folder, 0, {"accelerator": "cpu", "devices": 1})
        return finetune_on_trials(base, trials, method, training, num_channels=2)[0].state_dict()

    for seed, method in ((1, "full"), (2, "full"), (2, "lora")):
        shared, alone = finetuned(seed, method, "shared"), finetuned(seed, method, f"{seed} {method}")
        for name, weights in alone.items():
            torch.testing.assert_close(shared[name], weights, msg=f"{seed}, {method}: {name}")


@pytest.fixture
def run_treebank(tmp_path, monkeypatch):
    """The quick run on made-up trials with these options, which writes its table here."""
    monkeypatch.setattr(treebank, "results_folder", lambda subject, quick: tmp_path)
    monkeypatch.setattr(treebank.torch, "set_num_threads", lambda _: None)

    def run(*options):
        monkeypatch.setattr(sys, "argv", ["treebank", "--simulated", "--quick", *options])
        treebank.main()

    return run


def test_made_up_trial_is_decoded(tmp_path, run_treebank):
    options = "--finetuning", "probe", "--tasks", "speech", "volume", "pitch"
    run_treebank(*options)
    rows = pd.read_csv(tmp_path / "treebank_simulated.csv")
    assert set(rows["task"]) == {"speech", "volume", "pitch"}
    areas = rows.groupby("task")["roc_auc"].apply(list)
    assert areas["volume"] != areas["pitch"]  # each has a signal of its own
    assert set(rows["channels"]) == {10, 12}
    assert rows[["roc_auc", "balanced_accuracy"]].notna().all().all()
    run_treebank(*options)  # a finished table is not computed again
    assert len(pd.read_csv(tmp_path / "treebank_simulated.csv")) == len(rows)


def test_made_up_words_show_in_the_polarity_of_a_wave_and_not_in_power():
    """The wave is the same in everybody; who knows it reads it, and a probe of random weights hardly does."""
    waves = []
    for subject in (1, 2):
        signal, onsets, said = treebank.made_up(np.random.default_rng((7, subject)), 2401.25, 12, 512.0)
        words = signal[:, : 640 * len(onsets)].reshape(12, -1, 640)[..., :512]
        evoked = np.einsum("cnt,kn->kct", words, said) / len(onsets)
        channels = (evoked**2).sum(-1).argmax(1)
        waves.append(evoked[range(3), channels])
        for label, wave, channel in zip(said > 0, waves[-1], channels, strict=True):
            assert abs(roc_auc_score(label, words[channel].std(-1)) - 0.5) < 0.1
            assert roc_auc_score(label, words[channel] @ wave) > 0.7
    assert all(np.corrcoef(first, second)[0, 1] > 0.6 for first, second in zip(*waves, strict=True))
    segments = signal[:, : 480 * 2560].reshape(12, 480, 2560).swapaxes(0, 1)
    features = trial_features(treebank.load_model(None, Path(), quick=True)[1], segments)
    few = ExampleSplit(np.arange(80), np.arange(80, 100), np.arange(100, 480), np.zeros(0, int))
    assert np.mean([decode(features, label, few).roc_auc for label in said[:, 2::4] > 0]) < 0.7


def test_a_subjects_trials_are_split_each_and_joined():
    trials = [Examples(np.arange(n) * 12_000, 10240, np.arange(n) % 2 == 0) for n in (30, 50)]
    split = treebank.split_trials(trials, "blocked")
    alone = [treebank.split_examples(examples, "blocked") for examples in trials]
    np.testing.assert_array_equal(split.test, np.concatenate([alone[0].test, alone[1].test + 30]))
    parts = np.concatenate([split.train, split.validation, split.test, split.removed])
    np.testing.assert_array_equal(np.sort(parts), np.arange(80))


@pytest.mark.parametrize(("channels", "probed"), [(10, [10]), (11, [10, 11])])
def test_each_number_of_channels_has_one_row_and_finetuning_its_own(
    tmp_path, monkeypatch, run_treebank, channels, probed
):
    def load_task(root, path, task, protocol, most):
        signals = np.random.default_rng(0).normal(0, 50, (60, channels, 2560)).astype(np.float32)
        return signals, Examples(np.arange(60) * 12_000, 10240, np.arange(60) % 2 == 0)

    monkeypatch.setattr(treebank, "simulate_trial", lambda root, *_: root / "sub_1_trial001.h5")
    monkeypatch.setattr(treebank, "load_task", load_task)
    monkeypatch.setattr(treebank, "finetuned_scores", lambda *_: {"roc_auc": 0.25, "balanced_accuracy": 0.5})
    for options in (["--finetuning", "probe"], []):
        run_treebank("--tasks", "volume", *options)
    rows = pd.read_csv(tmp_path / "treebank_simulated.csv").set_index("model")
    assert rows.loc[["random weights, probe"], "channels"].tolist() == probed
    assert rows.loc[["random weights, lora"], "roc_auc"].tolist() == [0.25]
    assert rows.loc[["random weights, lora"], "channels"].tolist() == [10]  # the first of the counts in a quick run


def test_a_trial_whose_split_lacks_a_class_is_reported(tmp_path, monkeypatch, run_treebank, capsys):
    """One task is silent for the second half of the trial, the other is not: the table has the other."""

    def load_task(root, path, task, protocol, most):
        labels = np.arange(60) < 30 if task == "speech" else np.arange(60) % 2 == 0
        signals = np.random.default_rng(0).normal(0, 50, (60, 11, 2560)).astype(np.float32)
        return signals, Examples(np.arange(60) * 12_000, 10240, labels)

    monkeypatch.setattr(treebank, "load_task", load_task)
    for tasks, expected in ((["speech"], None), (["speech", "volume"], {"volume"})):
        run_treebank("--finetuning", "probe", "--tasks", *tasks)
        text = capsys.readouterr().out
        assert "speech, popt, blocked: not run: the split's" in text
        assert (tmp_path / "treebank_simulated.csv").is_file() == bool(expected)
    assert set(pd.read_csv(tmp_path / "treebank_simulated.csv")["task"]) == expected


def test_one_patients_thresholds_come_from_the_other_files():
    values = {"seizure": [5.0, 9.0], "quiet": [1.0, 4.0]}
    fold = SimpleNamespace(others=(["seizure"], ["quiet"]))
    assert real.best_threshold(fold, lambda file, gain: np.array(values[file])) == 4.0


def test_a_study_of_the_animal_is_skipped_with_a_reason_where_its_files_are_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MVPA_TS_DATA", str(tmp_path))
    assert animal_folder(tmp_path, quick=False) is None
    said = capsys.readouterr().out
    assert said.startswith(f"skipped: {tmp_path / 'dog_seizures'} is not there; set MVPA_TS_DATA")


def test_no_fold_trains_or_validates_on_its_tested_files(tmp_path, monkeypatch):
    commands = []
    monkeypatch.setattr(real, "mvpformer", lambda arguments: commands.append(arguments) or 0)
    folds = folds_of(simulated_animal(tmp_path / "data", 0, num_channels=2, seconds=240.0))
    assert len({file for fold in folds for file in (fold.seizure, *fold.stretches)}) == 10
    for fold in folds:
        tested = {fold.seizure, *fold.stretches}
        assert not tested & {*fold.train, *fold.validation}
        assert not set(fold.train) & set(fold.validation)
        seizures, stretches = fold.others
        assert {*seizures, *stretches} == {*fold.train, *fold.validation}
        real.finetuned(fold, 0, tmp_path / f"fold{fold.number}", [])
        command = " ".join(map(str, commands[-1]))
        assert all(str(file) in command for file in (*fold.train, *fold.validation))
        assert not any(str(file) in command for file in tested)


def test_every_tested_file_of_the_animal_has_a_figure_where_nothing_is_committed(tmp_path):
    (fold, *_) = folds_of(simulated_animal(tmp_path / "data", 0, num_channels=2, seconds=240.0))
    drawn = list(real_seizures.real_figures([fold], tmp_path / "figures"))
    assert [path.name for path in drawn] == [
        "fold1_sub-dog_task-ictal_run-01_ieeg.png",
        "fold1_sub-dog_task-interictal_run-06_ieeg.png",
        "fold1_sub-dog_task-interictal_run-07_ieeg.png",
    ]
    assert all(path.stat().st_size > 10_000 for path in drawn)
    ignored = (Path(__file__).parents[2] / ".gitignore").read_text().splitlines()
    assert "*_output/" in ignored  # the script draws into real_seizures_output/figures
