"""The Dockerfile, which no test builds: its instructions, its files, and its command run on this machine."""

import fnmatch
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from support.made_up_recordings import recording

from mvpa_ts.ieeg.simulation.writing import write_edf

ROOT = Path(__file__).parents[3]
FILE = ROOT / "Dockerfile"
pytestmark = pytest.mark.skipif(not FILE.is_file(), reason="not a checkout")


def instructions() -> list[tuple[str, str]]:
    lines = [line for line in FILE.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in joined.splitlines()]


def test_every_instruction_is_known_and_the_base_is_pinned():
    steps = instructions()
    assert {name for name, _ in steps} <= {"FROM", "WORKDIR", "COPY", "ARG", "RUN", "ENV", "VOLUME", "CMD"}
    assert steps[0][0] == "FROM"
    assert re.fullmatch(r"python:3\.\d+-slim", steps[0][1])
    assert [name for name, _ in steps].count("CMD") == 1
    assert json.loads(dict(steps)["VOLUME"]) == ["/data", "/output"]


def test_what_is_copied_is_here_and_not_ignored():
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for name, text in instructions():
        if name == "COPY":
            for source in text.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert any(fnmatch.fnmatch(source, pattern) for pattern in kept), source


def test_its_command_keeps_the_contract(tmp_path):
    """INPUT below /data in, OUTPUT below /output out, in a shell as in the container."""
    write_edf(recording("S1", 0, segments=4), tmp_path / "data" / "a b" / "x.edf")
    shell, option, line = json.loads(dict(instructions())["CMD"])
    line = line.replace("/data/", f"{tmp_path}/data/").replace("/output/", f"{tmp_path}/output/")
    line = line.replace("mvpformer", f'"{sys.executable}" -m mvpa_ts.ieeg.commands.main', 1)
    (settings,) = [text for name, text in instructions() if name == "ENV"]
    environment = os.environ | dict(item.split("=", 1) for item in settings.replace('""', "").split())
    environment |= {"INPUT": "a b/x.edf", "OUTPUT": "a b/x.tsv"}
    done = subprocess.run([shell, option, line], env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    table = pd.read_csv(tmp_path / "output" / "a b" / "x.tsv", sep="\t")
    assert list(table.columns[:3]) == ["onset", "duration", "eventType"]
    assert [path.name for path in (tmp_path / "output").rglob("*.*")] == ["x.tsv"]
