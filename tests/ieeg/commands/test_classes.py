"""Classes of one's own: from annotated files to spans and scores, on made-up states of different rhythms."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.signal import butter, sosfilt, welch
from sklearn import metrics
from support.edf_files import signals_of
from support.made_up_recordings import run

pytest.importorskip("edfio")
import edfio

from mvpa_ts.ieeg.commands.main import main
from mvpa_ts.ieeg.events import class_labels
from mvpa_ts.ieeg.recordings.annotations import class_spans
from mvpa_ts.ieeg.recordings.reading import read_recording
from mvpa_ts.ieeg.scoring.comparison import compare_classes

RHYTHMS = {"awake": (15.0, 25.0), "sleep": (1.0, 3.0), "anaesthesia": (8.0, 12.0)}
NAMES = list(RHYTHMS)
RATE = 256


def write(path: Path, seed: int, states: list[str], *, gap: float = 0.0, annotate: bool = True) -> pd.DataFrame:
    """An EDF file of four channels, 30 s of a rhythm in noise for each state; gives the table of its states."""
    rng = np.random.default_rng(seed)
    onsets = [(30.0 + gap) * number for number in range(len(states))]
    signal = rng.normal(0.0, 5.0, (4, int((30.0 + gap) * len(states) * RATE)))
    for onset, state in zip(onsets, states, strict=True):
        filtered = sosfilt(butter(2, RHYTHMS[state], "band", fs=RATE, output="sos"), rng.normal(size=(4, 30 * RATE)))
        signal[:, int(onset * RATE) :][:, : 30 * RATE] += 20.0 * filtered / filtered.std()
    # From recording to recording amplifiers differ.
    signal *= rng.uniform(0.7, 1.5)
    channels = signals_of(["A1", "A2", "A3", "A4"], signal, RATE, most=500)
    marks = [edfio.EdfAnnotation(onset, 30.0, state.title()) for onset, state in zip(onsets, states, strict=True)]
    edfio.Edf(channels, annotations=marks if annotate else [], data_record_duration=1).write(path)
    return pd.DataFrame({"onset": onsets, "duration": 30.0, "trial_type": states})


def finetune(output: Path, classes: list[str], files: list[Path], *arguments: object) -> int:
    return run("finetune", "--classes", *classes, "--recordings", *files, "--output", output, *arguments)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """Files that train, validate and test, a detector, and what it says of the last."""
    folder = tmp_path_factory.mktemp("lab")
    for number in range(2):
        write(folder / f"train{number}.edf", number, NAMES * 2, gap=4.0)
    write(folder / "other.edf", 2, NAMES[::-1])
    table = write(folder / "test.edf", 3, [*NAMES, *NAMES[::-1]], annotate=False)
    table.to_csv(folder / "test_events.tsv", sep="\t", index=False)
    train = [folder / f"train{number}.edf" for number in range(2)]
    assert finetune(folder / "run", NAMES, train, "--validation-recordings", folder / "other.edf") == 0
    model = folder / "run" / "classes.json"
    assert run("detect", folder / "test.edf", "--model", model, "-o", folder / "results") == 0
    return folder


def test_states_are_told_apart_as_band_power_tells_them(lab):
    (results,) = (path.parent for path in (lab / "results").rglob("run.json"))
    table = pd.read_csv(results / "probabilities.tsv", sep="\t")
    assert [*table] == ["onset", *NAMES, "stated"]
    signal = read_recording(lab / "test.edf").read(0, 180 * 256).reshape(4, 36, -1)
    frequencies, power = welch(signal, RATE)
    middles = [power[..., (frequencies >= low) & (frequencies <= high)].mean((0, 2)) for low, high in RHYTHMS.values()]
    strongest = np.array(NAMES)[np.argmax(middles, axis=0)]
    assert (table[NAMES].idxmax(axis=1) == strongest).all()
    assert (table["stated"] == strongest).all()
    np.testing.assert_allclose(table[NAMES].sum(axis=1), 1.0, atol=1e-5)
    events = pd.read_csv(results / "events.tsv", sep="\t")
    # The class in the middle goes on from one half of the file into the other.
    expected = [(0, 30, "awake"), (30, 30, "sleep"), (60, 60, "anaesthesia"), (120, 30, "sleep"), (150, 30, "awake")]
    assert [*events[["onset", "duration", "eventType"]].itertuples(index=False, name=None)] == expected


def test_evaluate_scores_as_sklearn_does(lab, tmp_path, capsys, fails):
    # A third of the segments is said to be of the next class.
    (results,) = (path.parent for path in (lab / "results").rglob("run.json"))
    found = tmp_path / "found" / "test"
    found.mkdir(parents=True)
    table = pd.read_csv(results / "probabilities.tsv", sep="\t")
    table.loc[::3, NAMES] = table.loc[::3, NAMES].to_numpy()[:, [2, 0, 1]]
    table.loc[[4, 10], "stated"] = None
    table.to_csv(found / "probabilities.tsv", sep="\t", index=False, na_rep="n/a")
    (found / "run.json").write_text((results / "run.json").read_text())
    assert run("evaluate", tmp_path / "found", "-o", tmp_path / "scores") == 0
    assert "test: 2 segments (no class covers half of it, or two share it)" in capsys.readouterr().out
    kept = table.dropna()
    truth, said = kept["stated"], kept[NAMES].idxmax(axis=1)
    confusion = pd.read_csv(tmp_path / "scores" / "confusion.csv", index_col="true class")
    np.testing.assert_array_equal(confusion, metrics.confusion_matrix(truth, said, labels=NAMES))
    (scores,) = pd.read_csv(tmp_path / "scores" / "scores.csv").to_dict("records")
    assert scores["balanced accuracy"] == pytest.approx(metrics.balanced_accuracy_score(truth, said))
    assert scores["kappa"] == pytest.approx(metrics.cohen_kappa_score(truth, said))
    for name in NAMES:
        assert scores[f"AUROC {name}"] == pytest.approx(metrics.roc_auc_score(truth == name, kept[name]))
    # Against a table of somebody else, who saw the classes take turns.
    turns = [NAMES[place % 3] for place in range(len(table))]
    rows = "".join(f"{onset}\t5\t{name}\n" for onset, name in zip(table["onset"], turns, strict=True))
    (tmp_path / "reader").mkdir()
    compare = "evaluate", tmp_path / "found", "-o", tmp_path / "scores", "--reference", tmp_path / "reader"
    fails("reader holds no reference for test: add the missing file test_events.tsv", *compare)
    (tmp_path / "reader" / "test_events.tsv").write_text(f"onset\tduration\ttrial_type\n{rows}")
    assert run(*compare) == 0
    kappa = metrics.cohen_kappa_score(turns, table[NAMES].idxmax(axis=1))
    assert pd.read_csv(tmp_path / "scores" / "scores.csv")["kappa"][0] == pytest.approx(kappa)


def test_detections_that_cannot_be_scored_together_are_named(lab, tmp_path, fails):
    shutil.copytree(lab / "results", tmp_path / "found")
    evaluate = ["evaluate", tmp_path / "found", "-o", tmp_path / "scores"]
    table = tmp_path / "found" / "test" / "probabilities.tsv"
    table.write_text(table.read_text().replace("sleep", "asleep", 1))
    fails(f"{table} must have the columns onset, awake, sleep, anaesthesia, stated", *evaluate)
    assert run("detect", lab / "other.edf", "--model", "line-length", "-o", tmp_path / "found") == 0
    fails("detections are of awake, sleep, anaesthesia and of seizures: evaluate", *evaluate)


def test_results_of_another_recording_are_not_replaced_without_a_word(lab, tmp_path, capsys):
    (tmp_path / "day").mkdir()
    shutil.copy(lab / "other.edf", tmp_path / "day" / "test.edf")
    model, output = lab / "run" / "classes.json", tmp_path / "results"
    for number, file in enumerate((lab / "test.edf", lab / "test.edf", tmp_path / "day" / "test.edf")):
        assert run("detect", file, "--model", model, "-o", output) == (number == 2)
    assert "probabilities.store was begun with other settings (recording)" in capsys.readouterr().err
    assert run("detect", lab / "test.edf", "--model", "line-length", "-o", output) == 1


def test_two_classes_and_classes_without_a_segment():
    rng = np.random.default_rng(0)
    labels = rng.integers(-1, 2, 200)
    second = np.where(rng.random(200) < 0.05, np.nan, rng.random(200))
    tables = compare_classes(["a", "b", "c"], labels, np.column_stack([1 - second, second, np.zeros(200)]))
    kept = (labels >= 0) & ~np.isnan(second)
    (scores,) = tables["scores"].to_dict("records")
    expected = metrics.balanced_accuracy_score(labels[kept], second[kept] > 0.5)
    assert scores["balanced accuracy"] == pytest.approx(expected)
    assert scores["AUROC a"] == pytest.approx(scores["AUROC b"])
    assert np.isnan(scores["AUROC c"])
    with pytest.raises(ValueError, match="nothing was compared"):
        compare_classes(["a", "b"], np.full(3, -1), np.ones((3, 2)))


def test_labels_of_segments_are_those_counted_by_milliseconds():
    rng = np.random.default_rng(1)
    starts = np.append(np.arange(0.0, 295.0, 5.0), 291.7)
    spans = {name: [(on, on + rng.integers(3, 30)) for on in rng.uniform(0, 290, 4)] for name in "ab"}
    expected = []
    for start in starts:
        times = start + np.arange(0.0005, 5, 0.001)
        covered = [sum(any(on <= t < off for on, off in spans[name]) for t in times) for name in "ab"]
        alone = [number for number in (0, 1) if covered[number] >= 2500 and covered[1 - number] <= 20]
        expected.append(alone[0] if alone else -1)
    assert class_labels(starts, spans).tolist() == expected
    assert {*expected} == {-1, 0, 1}


def test_words_of_events_that_name_a_class():
    events = [(0, 5, "Comment/SLEEP "), (5, 5, "sleep deprived"), (10, 5, "no sleep"), (15, 0, "sleep"), (20, 5, "N2")]
    with (
        pytest.warns(UserWarning, match="without a duration label nothing, and are left out: 1$"),
        pytest.warns(UserWarning, match="with more in their text than the name label nothing, and are left out: 2$"),
    ):
        assert class_spans(events, ["sleep", "n2"], "night") == {"sleep": [(0, 5)], "n2": [(20, 25)]}


def test_the_table_is_believed_and_what_no_class_covers_is_counted(lab, tmp_path, capsys):
    path = tmp_path / "night.edf"
    write(path, 5, NAMES, gap=10.0)  # annotations of two segments between states say nothing
    (tmp_path / "night_events.tsv").write_text(
        "onset\tduration\ttrial_type\tvalue\n0\t60\trest\tawake\n57\t43\trest\tsleep\n"
    )
    words = ["finetune", "--classes", "awake", "sleep", "--recordings", tmp_path, "--output", tmp_path / "run"]
    (tmp_path / "day.trc").touch()
    with pytest.warns(UserWarning, match="is believed, and contradicts the annotations in the file: sleep at 40 s$"):
        assert main([*map(str, words)]) == 1
    # 57 to 60 s are of both, which are the twelfth segment; from 100 to 120 s there is none.
    error = capsys.readouterr().err
    assert "night: 5 segments (no class covers half of it, or two share it)" in error
    assert "  day.trc: of a kind that is not read" in error
    assert "all are read but 1 of a kind that is not read, such as day.trc" in error
    assert run("detect", path, "--model", tmp_path / "run" / "classes.json", "-o", tmp_path / "results") == 0
    table = pd.read_csv(tmp_path / "results" / "night" / "probabilities.tsv", sep="\t")
    assert [*table.loc[table["stated"].isna(), "onset"]] == [55.0, *range(100, 120, 5)]
    stated = table.dropna()
    assert (stated[["awake", "sleep"]].idxmax(axis=1) == stated["stated"]).mean() > 0.8


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (["awake"], "--classes needs two names or more, each once, and neither onset nor stated, got awake"),
        (["awake", "Awake"], "--classes needs two names or more, each once"),
        (["awake", "sleep", " "], "--classes needs two names or more, each once"),
        (["awake", "coma"], "no recording holds a span whose text is 'coma', which --recordings need"),
        (["awake", "sleep"], "--validation-recordings alone hold a span whose text is 'sleep', which --rec"),
    ],
)
def test_classes_that_cannot_be_learned_are_named(lab, tmp_path, capsys, classes, message):
    write(tmp_path / "awake.edf", 6, ["awake", "anaesthesia"])
    held_out = ["--validation-recordings", lab / "other.edf"]
    assert finetune(tmp_path / "run", classes, [tmp_path / "awake.edf"], *held_out) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_class_that_shares_all_its_segments_with_another_is_named(tmp_path, capsys):
    write(tmp_path / "night.edf", 6, ["awake", "awake"])
    (tmp_path / "night_events.tsv").write_text("onset\tduration\ttrial_type\n0\t60\tawake\n20\t20\tsleep\n")
    assert finetune(tmp_path / "run", ["awake", "sleep"], [tmp_path / "night.edf"]) == 1
    assert "no 5 s of --recordings are of 'sleep': no class covers half" in capsys.readouterr().err


def test_what_is_for_seizures_is_refused(lab, tmp_path, capsys):
    model, output = lab / "run" / "classes.json", tmp_path / "out"
    for command in (
        ("detect", lab / "test.edf", "--model", model, "-o", output, "--threshold", "0.3"),
        ("detect", lab / "test.edf", "--model", model, "-o", output, "--rules", "paper"),
        ("calibrate", lab / "test.edf", "--model", model, "--per-day", "400", "-o", output),
        ("board", lab / "test.edf", "--model", model, "-o", output),
        ("stream", "--model", model, "-o", output),
        ("evaluate", lab / "results", "-o", output, "--mode", "paper"),
        ("plot", "timeline", lab / "results" / "test", "-o", output),
        ("review", lab / "test.edf", lab / "results" / "test", "--no-window"),
    ):
        assert run(*command) == 1, command
        message = capsys.readouterr().err.splitlines()[-1]
        assert any(text in message for text in ("seizures", "no alarms", "baseline, which a stream")), message
        assert not output.exists()


def test_a_training_recording_is_named(lab, tmp_path):
    arguments = ["--model", str(lab / "run" / "classes.json"), "-o", str(tmp_path / "results")]
    with pytest.warns(UserWarning, match="train0: the model was trained on this recording"):
        main(["detect", str(lab / "train0.edf"), *arguments])


def test_names_that_are_numbers_marks_of_bad_signal_and_an_earlier_run(lab, tmp_path, capsys):
    numbers = {"awake": " 1", "sleep": "2", "anaesthesia": "3 "}
    for number, name in enumerate(("a", "b")):
        table = write(tmp_path / f"{name}.edf", number, NAMES, annotate=False)
        table["trial_type"] = table["trial_type"].map(numbers)
        table.loc[len(table)] = [0.0, 12.0, "BAD_movement"]
        table.to_csv(tmp_path / f"{name}_events.tsv", sep="\t", index=False)
    model, files = tmp_path / "run" / "classes.json", [tmp_path / "a.edf"]
    arguments = [*numbers.values()], files
    assert finetune(tmp_path / "run", *arguments, "--validation-recordings", tmp_path / "b.edf") == 0
    assert "a, b: 3 segments (a mark of bad signal (BAD_))" in capsys.readouterr().err
    (scores,) = pd.read_csv(tmp_path / "run" / "scores.csv").to_dict("records")
    assert scores["segments"] == 15
    assert run("detect", tmp_path / "b.edf", "--model", model, "-o", tmp_path / "results") == 0
    shutil.copytree(lab / "run", tmp_path / "scores")
    assert run("evaluate", tmp_path / "results", "-o", tmp_path / "scores") == 0
    pd.testing.assert_frame_equal(
        pd.read_csv(tmp_path / "scores" / "confusion.csv"), pd.read_csv(tmp_path / "run" / "confusion.csv")
    )
    shutil.copytree(tmp_path / "results" / "b", tmp_path / "results" / "copy")
    (tmp_path / "results" / "left_out.tsv").write_text("recording\twhat\twhy\nb.edf\tn/a\tfailed: damaged\n")
    with pytest.warns(UserWarning, match="b and copy have the same") as caught:
        assert main(["evaluate", str(tmp_path / "results"), "-o", str(tmp_path / "scores")]) == 0
    assert any("the last `mvpformer detect` failed on b" in str(warning.message) for warning in caught)
    # Nothing validates now.
    assert finetune(tmp_path / "run", *arguments) == 0
    assert not (tmp_path / "run" / "scores.csv").exists()


@pytest.mark.parametrize(("column", "factor"), [("onset", 1000), ("duration", RATE)])
def test_spans_of_classes_in_another_unit_are_refused(lab, tmp_path, fails, column, factor):
    table = write(tmp_path / "night.edf", 4, NAMES, annotate=False)
    table[column] *= factor
    table.to_csv(tmp_path / "night_events.tsv", sep="\t", index=False)
    command = "detect", tmp_path / "night.edf", "--model", lab / "run" / "classes.json", "-o", tmp_path / "results"
    fails(f"night_events.tsv: a class has the {column}", *command)
    with pytest.warns(UserWarning, match=r"outside of the recording of 90 s label nothing, and are left out: 2$"):
        class_spans([(90, 5, "sleep"), (-9, 9, "sleep"), (85, 10, "sleep")], ["sleep"], "night", 90.0)


def test_a_rhythm_of_all_channels_needs_another_reference_which_the_file_keeps(tmp_path, capsys, fails):
    """A median reference takes away what all channels share; 20 Hz against noise, as the states here are made."""
    for seed, name in enumerate(("train", "test")):
        rng = np.random.default_rng(seed)
        signal = rng.normal(0.0, 5.0, (4, 120 * RATE))
        signal[:, 60 * RATE :] += 40 * np.sin(2 * np.pi * 20 * np.arange(60 * RATE) / RATE)
        marks = [edfio.EdfAnnotation(0, 60, "rest"), edfio.EdfAnnotation(60, 60, "beta")]
        edfio.Edf(signals_of(["A1", "A2", "A3", "A4"], signal, RATE), annotations=marks).write(tmp_path / f"{name}.edf")
    model, files = tmp_path / "run" / "classes.json", [tmp_path / "train.edf"]
    reference = ("--preprocessing", '{"reference": null}')
    assert finetune(tmp_path / "run", ["rest", "beta"], files, *reference) == 0
    arguments = "detect", tmp_path / "test.edf", "--model", model, "-o", tmp_path / "results"
    assert run(*arguments) == 0
    folder = tmp_path / "results" / "test"
    table = pd.read_csv(folder / "probabilities.tsv", sep="\t")
    assert (table[["rest", "beta"]].idxmax(axis=1) == table["stated"]).all()
    assert json.loads((folder / "run.json").read_text())["preprocessing"]["reference"] is None
    assert run(*arguments, *reference) == 0
    assert run(*arguments, "--preprocessing", '{"reference": "bipolar"}') == 1
    assert 'was trained with the preprocessing {"reference": null}: leave --preprocessing' in capsys.readouterr().err
    assert finetune(tmp_path / "bad", ["rest", "beta"], files, "--preprocessing", '{"sfreq": 256}') == 1
    assert "preprocessing.sfreq must be 512 Hz" in capsys.readouterr().err
    model.write_text(model.read_text().replace("reference", "referent"))
    fails("preprocessing has no field referent", *arguments)
