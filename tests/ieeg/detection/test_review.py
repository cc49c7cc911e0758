"""Reviews: what a reader does to the annotations of a Raw comes back, and a detector learns from it."""

import contextlib
import sys

import mne
import numpy as np
import pytest
from support.reading import refuses

from mvpa_ts.ieeg import Detector, read_recording, simulate_recording
from mvpa_ts.ieeg.commands.main import main
from mvpa_ts.ieeg.detection.review import REVIEWED, Review, browse, load_review, retrain, review
from mvpa_ts.ieeg.model.seen_subjects import trained_on
from mvpa_ts.ieeg.scoring.scores import score_events
from mvpa_ts.ieeg.simulation.writing import write_edf

EVENTS = [(10.0, 20.0), (40.0, 50.0), (70.0, 80.0)]


def edit(raw):
    """Keep the first event, move the second, delete the third, add one; a remark is no event."""
    assert [*raw.annotations.description] == ["seizure"] * 3
    onsets = np.array([10.0, 44.0, 100.0, 110.0])
    raw.set_annotations(mne.Annotations(onsets, [10.0, 10.0, 5.0, 1.0], ["seizure"] * 3 + ["chewing"]))


def recording(duration=120.0, **settings):
    return simulate_recording("S01", num_channels=2, duration=duration, num_seizures=0, **settings)


def test_corrections_come_back_and_are_counted(tmp_path):
    result = review(recording(), EVENTS, edit, until=115.0)
    assert result.events == [(10.0, 20.0), (44.0, 54.0), (100.0, 105.0)]
    assert result.changes == {"kept": 1, "moved": 1, "deleted": 1, "added": 1}
    result.save(tmp_path)
    assert load_review(tmp_path) == result
    assert review(recording(), EVENTS, edit, seizure_words=["chewing"]).changes["added"] == 2
    marks = mne.Annotations([100.0, 30.0], [0.0, 5.0], ["seizure", "Krampf"])
    with pytest.warns(UserWarning, match="without an end are taken to last: 20 s from 100 s on|for seizures: Krampf"):
        assert review(recording(), [], lambda raw: raw.set_annotations(marks)).events == [(100.0, 120.0)]
    with pytest.raises(ValueError, match=r"until must lie in the recording, which lasts 120 s, got 121\.0"):
        review(recording(), EVENTS, edit, until=121.0)
    refuses(load_review, "holds no review", tmp_path / "nowhere", kind=FileNotFoundError)


@pytest.mark.parametrize(("until", "rows"), [(60.0, 0), (None, 1)])
def test_a_part_that_nobody_looked_at_is_not_free_of_seizures(tmp_path, until, rows):
    review(recording(), EVENTS, lambda raw: raw.set_annotations(None), until=until).save(tmp_path)
    assert (tmp_path / REVIEWED).read_text().count("bckg") == rows
    assert load_review(tmp_path).events == []


def test_a_file_that_begins_later_than_its_measurement(tmp_path):
    info = mne.create_info(["A1", "A2"], 256.0, "seeg")
    raw = mne.io.RawArray(np.random.default_rng(0).normal(0, 5e-5, (2, 256 * 200)), info, verbose="error")
    raw.set_meas_date(1_000_000_000)
    raw.crop(30.0, 149.9).save(tmp_path / "night_raw.fif", verbose="error")
    result = review(read_recording(tmp_path / "night_raw.fif"), EVENTS, edit)
    np.testing.assert_allclose(result.events, [(10.0, 20.0), (44.0, 54.0), (100.0, 105.0)], atol=0.01)


def test_reviews_of_another_recording_are_refused(tmp_path):
    result = review(recording(), EVENTS, edit)
    with pytest.raises(ValueError, match=r"the review is of another recording: it is of S01_session0 \(120 s\)"):
        retrain("demo", [(result, recording(session=1))], tmp_path)
    refuses(retrain, "of another recording", "demo", [(result, recording(duration=180.0))], tmp_path)


def test_without_the_browser_the_error_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "mne_qt_browser", None)
    with pytest.raises(ModuleNotFoundError, match=r'review needs mne-qt-browser: pip install "\.\[review\]"'):
        browse(None)


def test_the_window_opens_at_the_first_event_on_a_scale_of_its_own(monkeypatch):
    shown = {}
    monkeypatch.setitem(sys.modules, "mne_qt_browser", mne)
    monkeypatch.setattr(mne.viz, "use_browser_backend", contextlib.nullcontext)
    monkeypatch.setattr(mne.io.BaseRaw, "plot", lambda raw, **options: shown.update(options))
    made_up = recording()
    review(made_up, [(60.0, 70.0), (80.0, 90.0)], browse)
    assert shown["start"] == 50.0
    # In units of volts, and half the distance between two channels: 99 in 100 values stay in their own row.
    stretch = made_up.read(50 * 512, 80 * 512) * 1e-6
    within = np.abs(stretch - np.median(stretch, axis=1, keepdims=True)) < shown["scalings"]["seeg"]
    assert within.mean() == pytest.approx(0.99, abs=0.001)

    def without_display(raw, **options):
        raise RuntimeError("Cannot connect to a valid display")

    monkeypatch.setattr(mne.io.BaseRaw, "plot", without_display)
    refuses(review, "needs a display, and this machine has none", made_up, [], browse, kind=OSError)


def test_corrected_events_make_a_better_detector(tmp_path):
    first, second = (
        simulate_recording("S07", seed=3, session=n, num_channels=4, duration=480.0, num_seizures=3) for n in (0, 1)
    )
    before = Detector("demo").detect(second).events
    events = [*first.seizures]
    corrected = Review(first.name, first.fingerprint(), first.duration, first.duration, events, {})
    retrain("demo", [(corrected, first)], tmp_path)
    detector = Detector(tmp_path / "model")
    after = detector.detect(second).events
    f1 = [score_events([*second.seizures], found, second.duration).f1 for found in (before, after)]
    assert np.nan_to_num(f1[1]) >= np.nan_to_num(f1[0])
    assert f1[1] >= 0.6
    assert trained_on(first, tmp_path / "model")
    refuses(retrain, "model exists: name another --output", "demo", [(corrected, first)], tmp_path)


def test_the_commands(tmp_path, capsys, fails):
    made_up = simulate_recording("S07", seed=3, num_channels=4, duration=240.0, num_seizures=2, sfreq=256.0)
    file, folder = tmp_path / "night.edf", tmp_path / "results" / "night"
    write_edf(made_up, file)
    assert main(["detect", str(file), "--model", "line-length", "-o", str(tmp_path / "results")]) == 0
    words = ["review", str(file), str(folder), "--no-window"]
    fails("which is missing: copy events.tsv and edit it", *words)
    for onset, text in ((50, "seizur"), (50, "a note"), (-50, "sz")):
        unclear = f"onset\tduration\teventType\n{onset}\t20\t{text}\n"
        (folder / REVIEWED).write_text(unclear, encoding="utf-8")
        fails("no row says seizure (sz) within the recording, or that there is none (bckg)", *words)
        assert (folder / REVIEWED).read_text(encoding="utf-8") == unclear
    rows = [f"{on}\t{off - on}\tsz\n" for on, off in made_up.seizures]
    (folder / REVIEWED).write_text("onset\tduration\teventType\n" + "".join(rows), encoding="utf-8")
    assert main([*words, "--until", "230"]) == 0
    written = (folder / REVIEWED).read_text(encoding="utf-8")
    (folder / REVIEWED).write_text(written.replace("sz", "Krampf"), encoding="utf-8")
    assert main([*words, "--until", "230", "--seizure-words", "Krampf"]) == 0
    assert (folder / REVIEWED).read_text(encoding="utf-8") == written
    train = ["finetune", f"--from_review={folder}", "--recordings", str(file), "--model", "demo"]
    fails("night.edf is a file: name a folder", *train, "--output", file)
    assert main([*train, "--output", str(tmp_path / "new")]) == 0
    inside = sum(onset < 230 for onset, _ in made_up.seizures)
    assert f"trained on {inside} reviewed event" in capsys.readouterr().out
    assert (tmp_path / "new" / "model" / "regression.json").is_file()
    other = tmp_path / "other.edf"
    write_edf(recording(sfreq=256.0), other)
    fails("is a detection of another recording: of night", "review", other, folder, "--no-window")
    fails("a detection of another recording: of night", "plot", "traces", other, "--detection", folder, "-o", "x.png")
    two = ["finetune", "--from-review", str(folder), "--recordings", str(file), str(other), "--model", "demo"]
    fails("names 1 folders and --recordings 2 files", *two, "--output", tmp_path / "x")
    train[3] = other
    fails("the review is of another recording", *train, "--output", tmp_path / "x")
