"""`mvpformer detect` on many recordings: in processes, on a cluster, into one table, with words and a clock."""

import datetime
import json
import os
import re
import shutil
import signal
import time
import warnings
from collections import Counter

import edfio
import numpy as np
import pandas as pd
import pytest
from support.edf_files import signals_of
from support.library import Interrupted
from support.made_up_recordings import recording, run

from mvpa_ts.ieeg.commands.detect import _in_processes
from mvpa_ts.ieeg.commands.main import main
from mvpa_ts.ieeg.detection.detection import Detection
from mvpa_ts.ieeg.detection.saved import EVENTS, PROBABILITIES, REFERENCE, RUN
from mvpa_ts.ieeg.simulation.writing import write_edf


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recordings")
    for number in range(3):
        write_edf(recording(f"S{number}", number, segments=6), folder / f"S{number}.edf")
    (folder / "bad.edf").write_bytes((folder / "S0.edf").read_bytes()[:9000])
    return folder


def tables(folder) -> dict[str, pd.DataFrame]:
    return {path.parent.name: pd.read_csv(path, sep="\t") for path in sorted(folder.rglob(PROBABILITIES))}


def assert_same(folder, other) -> None:
    ours, theirs = tables(folder), tables(other)
    assert ours.keys() == theirs.keys() == {"S0", "S1", "S2"}
    for name, table in ours.items():
        pd.testing.assert_frame_equal(table, theirs[name], atol=2e-6)


@pytest.fixture(scope="module")
def expected(recordings, model_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    assert run("detect", recordings, "-o", folder, "--model", model_folder) == 1
    return folder


def test_files_are_counted(recordings, model_folder, expected, tmp_path, fails):
    error = fails("file 1 of 4: S0.edf", "detect", recordings, "-o", tmp_path, "--model", model_folder)
    assert "file 4 of 4: bad.edf" in error
    assert "1 of 4 recordings failed: bad.edf" in error
    assert_same(tmp_path, expected)


def test_jobs_give_the_same(recordings, model_folder, expected, tmp_path, capsys):
    assert run("detect", recordings, "-o", tmp_path, "--model", model_folder, "--jobs", 2) == 1
    captured = capsys.readouterr()
    assert "4 of 4 files done" in captured.err
    assert "1 of 4 recordings failed: bad.edf" in captured.err
    assert captured.out.count(" in 30 s") == 3
    assert_same(tmp_path, expected)


def counting_plugin(path):
    """A plugin by which each worker writes a line, its process and the recording, for every row that it stored."""
    from distributed import WorkerPlugin

    class Counting(WorkerPlugin):  # in here, so that workers get its code and not the name of a test's file
        def setup(self, worker):
            import os
            import time

            from mvpa_ts.ieeg.detection.store import ProbabilityStore

            stored = ProbabilityStore.append

            def counted(self, probabilities):
                stored(self, probabilities)
                with open(path, "a") as file:
                    file.write(f"{os.getpid()} {self.path.parent.name}\n" * len(probabilities))
                time.sleep(0.02)  # so that the recording is not done before the kill

            ProbabilityStore.append = counted

    return Counting()


def scored(path) -> Counter[tuple[int, str]]:
    """Rows by process and recording."""
    lines = path.read_text().splitlines() if path.exists() else []
    return Counter((int(line.split()[0]), line.split()[1]) for line in lines if len(line.split()) == 2)


class TestCluster:
    # In small: a cluster that scores one recording, below, and a store after a kill.
    @pytest.mark.slow
    def test_a_killed_workers_recordings_go_on_elsewhere(self, model_folder, tmp_path, capsys):
        distributed = pytest.importorskip("distributed")
        for number in range(2):
            write_edf(recording(f"S{number}", number, segments=60, channels=2), tmp_path / "in" / f"S{number}.edf")
        options = ["detect", tmp_path / "in", "--model", model_folder, "--batch_size", 1]
        stores = tmp_path / "out"
        with distributed.LocalCluster(2, processes=True, threads_per_worker=1, dashboard_address=None) as cluster:
            with distributed.Client(cluster) as client:
                client.register_plugin(counting_plugin(tmp_path / "scored.txt"))

            def kill_one() -> None:
                deadline = time.monotonic() + 120
                while not (busy := [key for key, count in scored(tmp_path / "scored.txt").items() if count >= 5]):
                    if time.monotonic() > deadline:
                        return
                    time.sleep(0.01)
                killed.append(busy[0])
                os.kill(busy[0][0], signal.SIGKILL)

            import threading

            killed: list[tuple[int, str]] = []
            killer = threading.Thread(target=kill_one)
            killer.start()
            status = run(*options, "-o", stores, "--scheduler", cluster.scheduler_address)
            killer.join()
        assert status == 0
        ((dead, name),) = killed
        counts = scored(tmp_path / "scored.txt")
        before = counts[dead, name]
        after = sum(count for (pid, other), count in counts.items() if other == name and pid != dead)
        # Between them at most one segment, whose row was stored when the worker died, but not counted.
        assert 5 <= before < 60
        assert 59 - before <= after <= 60 - before, "a worker began the recording anew"
        assert run(*options, "-o", tmp_path / "alone") == 0
        for name, table in tables(tmp_path / "alone").items():
            pd.testing.assert_frame_equal(tables(stores)[name], table, atol=2e-6)
            assert (stores / name / RUN).is_file()

    @pytest.mark.slow  # a cluster of processes, 12 s; in small: test_warnings_are_one_line
    def test_warnings_reach_the_one_who_asked(self, detect, tmp_path):
        distributed = pytest.importorskip("distributed")
        signal = edfio.EdfSignal(recording("S1", 1, 2, 1).read(0, 5120)[0], 512.0, label="A1", physical_dimension="uV")
        edfio.Edf([signal], annotations=[edfio.EdfAnnotation(3.0, None, "SZ")]).write(tmp_path / "x.edf")
        with distributed.LocalCluster(1, processes=True, threads_per_worker=1, dashboard_address=None) as cluster:
            arguments = [*detect(tmp_path / "x.edf"), "--scheduler", cluster.scheduler_address]
            with pytest.warns(UserWarning, match="without an end .* from 3 s on"):
                assert main([str(argument) for argument in arguments]) == 0

    def test_no_cluster_answers(self, recordings, model_folder, tmp_path, fails, monkeypatch):
        distributed = pytest.importorskip("distributed")

        def absent(address, timeout):
            raise OSError("timed out")

        monkeypatch.setattr(distributed, "Client", absent)
        options = ["-o", tmp_path, "--model", model_folder, "--scheduler", "tcp://127.0.0.1:9"]
        fails("no dask.distributed cluster answers at tcp://127.0.0.1:9", "detect", recordings, *options)


class TestSeveralPaths:
    def test_several_files(self, recordings, model_folder, expected, tmp_path):
        files = [recordings / f"S{number}.edf" for number in range(3)]
        assert run("detect", *files, "-o", tmp_path / "out", "--model", model_folder) == 0
        assert_same(tmp_path / "out", expected)

    def test_paths_that_cannot_be_told_apart(self, recordings, detect, tmp_path, fails):
        twin = tmp_path / "other" / "S1.edf"
        twin.parent.mkdir()
        twin.write_bytes((recordings / "S1.edf").read_bytes())
        assert run(*detect(recordings / "S1.edf", recordings / ".." / recordings.name / "S1.edf")) == 0
        shutil.rmtree(tmp_path / "out")
        fails("would share the folder", *detect(recordings / "S1.edf", twin))
        fails("no file or folder", *detect(recordings / "S1.edf", tmp_path / "nowhere.edf"))
        assert not (tmp_path / "out").exists()


class Killer:
    """What takes the process with it that receives it."""

    def __reduce__(self):
        return os._exit, (9,)


@pytest.mark.parametrize("task", [Killer(), Interrupted()])
def test_a_process_that_is_killed_is_named_and_begins_no_other_recording(task, tmp_path):
    files = [tmp_path / name for name in "abcd"]
    outcomes = [*_in_processes(task, [(file, tmp_path) for file in files], 2)]
    assert sorted(outcome.file for outcome in outcomes) == files
    assert all("killed, perhaps for want of memory" in str(outcome.error) for outcome in outcomes)
    assert len([*tmp_path.iterdir()]) <= 2


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_an_interrupted_run_says_how_it_goes_on(recordings, model_folder, expected, tmp_path, capsys, monkeypatch):
    command = ["detect", recordings, "-o", tmp_path, "--model", model_folder]
    with monkeypatch.context() as changed:
        changed.setattr(Detection, "save", interrupt)
        assert run(*command) == 130
    last = "mvpformer detect: interrupted; what is in --output is kept, and the same command goes on from it"
    assert capsys.readouterr().err.splitlines()[-1] == last
    assert run(*command) == 1
    assert_same(tmp_path, expected)


class TestOneTable:
    def test_events_of_one_recording(self, recordings, model_folder, expected, tmp_path, fails):
        output = tmp_path / "deep" / "S1.TSV"
        assert run("detect", recordings / "S1.edf", "-o", output, "--model", model_folder) == 0
        assert output.read_text() == (expected / "S1" / EVENTS).read_text()
        assert [path.name for path in output.parent.iterdir()] == ["S1.TSV"]
        old = tmp_path / "of_old.tsv"
        old.mkdir()
        single = ["detect", recordings / "S1.edf", "--model", model_folder]
        fails("of_old.tsv is a folder: name a file.tsv", *single, "-o", old)
        fails("is a file for the events of one recording", "detect", recordings, "-o", output, "--model", model_folder)


class TestAnnotations:
    @pytest.fixture
    def file(self, tmp_path):
        edf = edfio.Edf(
            signals_of(["A0", "A1"], np.random.default_rng(0).normal(0, 50, (2, 30 * 512))),
            recording=edfio.Recording(startdate=datetime.date(2024, 5, 6)),
            starttime=datetime.time(7, 8, 9),
            annotations=[edfio.EdfAnnotation(5.0, 10.0, "Ereignis 7")],
        )
        edf.write(tmp_path / "x.edf")
        return tmp_path / "x.edf"

    def test_the_date_is_hidden_unless_it_is_asked_for(self, file, model_folder, tmp_path):
        for options, date in (([], "1900-01-01 00:00:00"), (["--clock"], "2024-05-06 07:08:09")):
            output = tmp_path / "out.tsv"
            assert run("detect", file, "-o", output, "--model", model_folder, *options) == 0
            assert set(pd.read_csv(output, sep="\t")["dateTime"]) == {date}
            words = ["--seizure-words", "Ereignis"]
            assert run("detect", file, "-o", tmp_path / "out", "--model", model_folder, *options, *words) == 0
            assert set(pd.read_csv(tmp_path / "out" / "x" / REFERENCE, sep="\t")["dateTime"]) == {date}

    @pytest.mark.parametrize(("said", "begun"), [
        (0, "2024-05-06T07:08:09"), (0, "2024-05-06 07:08:14"), (0, "2024-05-06"), (0, "1900-01-01 00:00:00"),
        (2, "2024-05-06 07:18:09"), (2, "2023-05-06 07:08:09"),
    ])  # fmt: skip
    def test_a_table_of_another_date_is_said(self, said, begun, file, detect, tmp_path):
        """Of the recording or of the event at 5 s is right; hidden dates say nothing."""
        path = tmp_path / "x_events.tsv"
        path.write_text(f"onset\tduration\teventType\tdateTime\n5\t10\tsz\t{begun}\n" * 2)
        scored = ["evaluate", tmp_path / "out", "-o", tmp_path / "scores", "--reference", tmp_path]
        with warnings.catch_warnings(record=True, action="always") as caught:
            for words in ([*detect(file), "--clock"], scored):
                assert main([*map(str, words)]) == 0
        text = f"{path} is of a recording that began at {begun} (dateTime), and this one at 2024-05-06 07:08:09"
        assert sum(text in str(warning.message) for warning in caught) == said

    def test_a_date_that_is_asked_for_and_not_stated_is_said(self, file, detect):
        content = bytearray(file.read_bytes())
        content[168:184] = b"01.01.8500.00.00"
        content[88:168] = b"Startdate X X X X".ljust(80)
        file.write_bytes(content)
        with pytest.warns(UserWarning, match="x does not state when it began: --clock writes 1900"):
            assert main([*map(str, detect(file)), "--clock"]) == 0

    def test_words_that_mean_a_seizure(self, file, model_folder, tmp_path):
        for options, found in (([], False), (["--seizure-words", "Anfall, Ereignis"], True)):
            folder = tmp_path / str(found)
            assert run("detect", file, "-o", folder, "--model", model_folder, *options) == 0
            assert (folder / "x" / REFERENCE).is_file() == found

    def test_channels_at_several_rates(self, model_folder, tmp_path, capsys, fails):
        noise = np.random.default_rng(0).normal(0, 50, 20 * 1024)
        slow = signals_of(["A1", "A2"], [noise[::4]] * 2, 256.0)
        fast = signals_of(["B1", "B2", "B3"], [noise] * 3, 1024.0)
        edfio.Edf([*slow, *fast]).write(tmp_path / "x.edf")
        options = ["detect", tmp_path / "x.edf", "-o", tmp_path / "out", "--model", model_folder, "--channels", "all"]
        assert run(*options) == 1
        assert re.search(r"of one rate, with --rate 256 in a command; in Python .*from_raw", capsys.readouterr().err)
        fails("no EEG channel at 512 Hz, it has some at 1024, 256 Hz (--rate)", *options, "--rate", 512)
        assert run(*options, "--rate", 1024) == 0
        stated = json.loads((tmp_path / "out" / "x" / RUN).read_text())
        assert stated["channels"]["used"] == ["B1", "B2", "B3"]
        assert {"A1": "stored at 256 Hz", "A2": "stored at 256 Hz"} in stated["channels"].values()
        assert run(*options[:3], tmp_path / "named", *options[4:-1], "A1,A2") == 0
        assert json.loads((tmp_path / "named" / "x" / RUN).read_text())["channels"]["used"] == ["A1", "A2"]
        fails("with --rate 256 in a command", *options[:3], tmp_path / "pair", *options[4:-1], "A1,B1")

    @pytest.mark.parametrize(("labels", "named"), [(("A1", "A2", "EEG DC1"), "A1,DC1"), (("DC1", "DC2"), "DC2")])
    def test_a_channel_that_is_named_is_read_whatever_its_name(self, detect, tmp_path, capsys, labels, named):
        noise = np.random.default_rng(0).normal(0, 50, (len(labels), 20 * 512))
        edfio.Edf(signals_of(labels, noise)).write(tmp_path / "x.edf")
        assert run(*detect(tmp_path / "x.edf"), "--channels", named) == 0, capsys.readouterr().err
        used = json.loads((tmp_path / "out" / "x" / RUN).read_text())["channels"]["used"]
        assert used == [label for label in labels if label.removeprefix("EEG ") in named.split(",")]
        drawn = ["plot", "traces", tmp_path / "x.edf", "-o", tmp_path / "x.svg", "--channels", named, "--offset", 5]
        assert run(*drawn) == 0, capsys.readouterr().err

    def test_a_short_file_is_read_when_asked(self, recordings, detect, tmp_path, fails):
        fails("bad.edf", *detect(recordings / "bad.edf"))
        whole, short = (recordings / "S0.edf").read_bytes(), tmp_path / "short.edf"
        short.write_bytes(whole[: len(whole) * 2 // 3])
        fails('add --truncated read in a command, or pass truncated="read" in Python', *detect(short))
        assert run(*detect(short), "--truncated", "read") == 0
        assert json.loads((tmp_path / "out" / "short" / RUN).read_text())["segments"] >= 3
