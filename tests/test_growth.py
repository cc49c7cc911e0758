"""The house grows only with a reason: the numbers of `tests/growth.csv`, and planted growth that must be seen."""

import shutil

import growth
import pytest
from growth import Row


def test_no_number_is_above_its_row():
    sentences = growth.grown(growth.counts(), growth.read(growth.ROOT / "tests" / "growth.csv"))
    assert not sentences, "\n".join(sentences)


# A house of a few made-up files: an adapter's model, whose first argument is the host's, and a configuration.
HOUSE = {
    "adapters/neuralforecast/__init__.py": "",
    "adapters/neuralforecast/model.py": "class MVPA:\n    def __init__(self, h, *, width=8): ...\n",
    "adapters/sktime/__init__.py": '"""The adapter."""\n\nchannels = 3\n',
    "adapters/sktime/forecaster.py": "class MVPAForecaster:\n    def __init__(self, sp, width=8): ...\n",
    "mvpa_ts/forecasting/__init__.py": '"""The core."""\n',
    "mvpa_ts/forecasting/configuration.py": "class ForecastingConfig:\n    horizon: int\n",
    "experiments/attention/kernels.py": "print(1)\n",
    "experiments/harness/study.py": "rows = []\n",
    "docs/index.md": "A page.\n",
    "tests/test_kernels.py": "",
}


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    """The made-up house and its numbers."""
    root = tmp_path_factory.mktemp("house")
    for file, text in HOUSE.items():
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text(text)
    return root, {name: Row(number) for name, number in growth.counts(root).items()}


@pytest.fixture
def plant(copied, tmp_path):
    """What is said of a copy in which a file has another text."""
    root, rows = copied
    house = shutil.copytree(root, tmp_path / "house")

    def say(file: str, change) -> list[str]:
        path = house / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(change(path.read_text() if path.is_file() else ""))
        return growth.grown(growth.counts(house), rows)

    return say


PLANTED = {
    "arguments: MVPA": ("adapters/neuralforecast/model.py", lambda text: text.replace("width=8", "width=8, planted=1")),
    "arguments: MVPAForecaster": ("adapters/sktime/forecaster.py", lambda text: text.replace("=8", "=8, planted=1")),
    "arguments: ForecastingConfig": (
        "mvpa_ts/forecasting/configuration.py",
        lambda text: text + "    planted: int = 0\n",
    ),
    "lines: adapters": ("adapters/sktime/__init__.py", lambda text: text + "\nplanted = 1\n"),
    "lines: experiments": ("experiments/harness/study.py", lambda text: text + "\nplanted = 1\n"),
    "lines: tests": ("tests/test_kernels.py", lambda text: text + "planted = 1\n"),
    "vague names: adapters": ("adapters/sktime/__init__.py", lambda text: text + "\n" + "found = rest = 1\n" * 100),
    "lacking comments: mvpa_ts": (
        "mvpa_ts/forecasting/__init__.py",
        lambda text: text + "\n" + "planted = 1  # noqa: F841\n" * 1000,
    ),
    "words: docs and results": ("docs/development/planted.md", lambda text: "Two words."),
    "files: adapters/neuralforecast": ("adapters/neuralforecast/planted.py", lambda text: ""),
    "mix-ins: adapters/sktime": (
        "adapters/sktime/planted.py",
        lambda text: "class Planted: ...\n\n\nclass Model(Planted, BaseForecaster): ...\n",
    ),
    "scripts: experiments/attention": ("experiments/attention/planted.py", lambda text: ""),
    "all scripts: experiments": ("experiments/forecasting/planted.py", lambda text: ""),
    "files: adapters/another": ("adapters/another/__init__.py", lambda text: ""),
}


@pytest.mark.parametrize("row", PLANTED)
def test_planted_growth_is_seen(plant, row):
    if row == "files: adapters/another":
        plant("adapters/another/model.py", lambda text: "")
    sentences = plant(*PLANTED[row])
    (sentence,) = [sentence for sentence in sentences if sentence.startswith(f"{row} is")]
    assert "lower it, or write the new number and one line of reason into tests/growth.csv" in sentence


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("adapters/sktime/__init__.py", lambda text: text + "\n\n# A comment that says why.\n\n"),
        ("adapters/sktime/__init__.py", lambda text: ""),
        ("docs/tables/copied_by_the_site.md", lambda text: "Two words."),
        ("experiments/treebank/new_room.py", lambda text: "# One script in a new room.\n"),
    ],
)
def test_what_is_no_growth_passes(plant, file, change):
    assert [sentence for sentence in plant(file, change) if "all scripts" not in sentence] == []


@pytest.fixture
def lower(copied, tmp_path):
    """The file's rows after `--lower` of a house, given the rows before."""
    root, _ = copied
    house = shutil.copytree(root, tmp_path / "house")

    def run(rows: dict[str, Row]) -> dict[str, Row]:
        growth.write(house / "tests" / "growth.csv", rows)
        growth.main(["--lower"], house)
        return growth.read(house / "tests" / "growth.csv")

    return run


def test_lower_takes_todays_numbers_and_drops_what_is_gone(copied, lower):
    _, rows = copied
    high = {name: Row(row.most + 7, "an old reason") for name, row in rows.items()} | {"files: adapters/gone": Row(3)}
    low = lower(high)
    assert low["lines: adapters"] == rows["lines: adapters"]
    assert low["arguments: MVPA"] == rows["arguments: MVPA"]
    assert "files: adapters/gone" not in low
    assert growth.lowered({name: row.most for name, row in low.items()}, low) == low


def test_lower_keeps_the_reason_of_an_unchanged_row(copied, lower):
    _, rows = copied
    row = Row(rows["lines: adapters"].most, "a new host")
    assert lower(rows | {"lines: adapters": row})["lines: adapters"] == row


def test_lower_refuses_to_raise(copied, lower, tmp_path):
    _, rows = copied
    small = rows | {"lines: adapters": Row(rows["lines: adapters"].most - 1)}
    with pytest.raises(SystemExit, match="lines: adapters is"):
        lower(small)
    assert growth.read(tmp_path / "house" / "tests" / "growth.csv") == small
