"""Which way imports point: up no floor, across no floor, round no circle. `CONTRIBUTING.md` draws the floors."""

from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from support.library import ROOT, imported, modules_of

# From the ground up. A module belongs to the longest name that fits, and imports its own room and lower floors only. A
# name that ends in "." is the package's __init__ alone.
FLOORS = (
    ("mvpa_ts._lazy",),
    ("mvpa_ts.checks", "mvpa_ts.files", "mvpa_ts.random_state", "mvpa_ts.windows"),
    ("mvpa_ts.weights",),
    ("mvpa_ts.attention.problem",),
    (
        "mvpa_ts.attention.reference",
        "mvpa_ts.attention.sdpa",
        "mvpa_ts.attention.separable",
        "mvpa_ts.attention.triton",
    ),
    ("mvpa_ts.attention.choice",),
    ("mvpa_ts.attention.functional",),
    ("mvpa_ts.attention.last_segment", "mvpa_ts.attention.cache", "mvpa_ts.attention.context_parallel"),
    ("mvpa_ts.attention.module",),
    ("mvpa_ts.attention.",),
    ("mvpa_ts.blocks", "mvpa_ts.learning_rates", "mvpa_ts.weight_averaging"),
    ("mvpa_ts.training",),
    ("mvpa_ts.forecasting.channel_order", "mvpa_ts.forecasting.normalisation", "mvpa_ts.forecasting.quantiles"),
    ("mvpa_ts.forecasting.network", "mvpa_ts.forecasting.pretrained"),
    ("mvpa_ts.forecasting", "mvpa_ts.classification", "mvpa_ts.datasets"),
    ("mvpa_ts.plots",),
    ("mvpa_ts.",),
    ("mvpa_ts.adapters.", "mvpa_ts.adapters.options", "mvpa_ts.ieeg.constants"),
    ("mvpa_ts.adapters.neuralforecast", "mvpa_ts.adapters.sktime"),
    ("mvpa_ts.ieeg.events", "mvpa_ts.ieeg.random_streams", "mvpa_ts.ieeg.figures"),
    ("mvpa_ts.ieeg.recordings",),
    ("mvpa_ts.ieeg.preprocessing",),
    ("mvpa_ts.ieeg.datasets", "mvpa_ts.ieeg.simulation", "mvpa_ts.ieeg.model"),
    ("mvpa_ts.ieeg.training", "mvpa_ts.ieeg.detection"),
    ("mvpa_ts.ieeg.scoring",),
    ("mvpa_ts.ieeg.commands",),
    ("mvpa_ts.ieeg.",),
)
# Rooms with floors of their own that stand side by side: on the core, and within it.
WINGS = ({"adapters", "ieeg"}, {"forecasting", "classification", "datasets"})
# A class and the file that its method hands over to, in one room: Recording.from_raw.
ALLOWED_CIRCLES = frozenset({("mvpa_ts.ieeg.recordings.recording", "mvpa_ts.ieeg.recordings.raw")})


def imports(path: Path, modules: dict[str, Path]) -> Iterator[str]:
    """What a file imports of the library."""
    nearest = (name if name in modules else package for name, package in imported(path))
    yield from (name for name in nearest if name in modules)


def floor_of(module: str, path: Path) -> tuple[int, str]:
    """Height of a module and the room it belongs to."""
    exact = f"{module}." if path.name == "__init__.py" else module
    rooms = [
        (len(room), height, room)
        for height, floor in enumerate(FLOORS)
        for room in floor
        if exact == room or (not room.endswith(".") and f"{exact}.".startswith(f"{room}."))
    ]
    assert rooms, f"{module} stands on no floor: add it to FLOORS"
    _, height, room = max(rooms)
    return height, room


def wing_of(module: str) -> str:
    return f"{module}..".split(".")[1]


def wrong_arrows(root: Path) -> list[str]:
    """Imports that lead up, or to another room of the same floor."""
    modules = modules_of(root)
    wrong = []
    for module, path in modules.items():
        height, room = floor_of(module, path)
        for name in sorted(set(imports(path, modules))):
            other_height, other_room = floor_of(name, modules[name])
            if room == other_room:
                continue
            wings = {wing_of(module), wing_of(name)}
            if height == other_height or (len(wings) == 2 and any(wings <= beside for beside in WINGS)):
                wrong.append(f"{module} imports across: {name}")
            elif height < other_height:
                wrong.append(f"{module} imports up: {name}")
    return wrong


def circle(root: Path) -> list[str]:
    """A circle of files that import each other, or nothing."""
    modules = modules_of(root)
    graph = {
        module: {name for name in imports(path, modules) if name != module and (module, name) not in ALLOWED_CIRCLES}
        for module, path in modules.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def test_no_import_leads_up_or_across():
    assert wrong_arrows(ROOT) == []


def test_no_files_import_each_other_in_a_circle():
    assert circle(ROOT) == []


def test_allowed_circles_are_still_there():
    modules = modules_of(ROOT)
    for module, name in ALLOWED_CIRCLES:
        assert name in set(imports(modules[module], modules)), f"{module} no longer imports {name}: off the list"
        assert module.rpartition(".")[0] == name.rpartition(".")[0]


@pytest.fixture
def house(tmp_path):
    """A small sound tree, and a function that writes into one of its files."""
    files = {
        "mvpa_ts": ["blocks", "forecasting/network/network", "classification/network", "attention/functional"],
        "adapters": ["neuralforecast/model", "sktime/forecaster"],
        "ieeg": ["constants", "recordings/recording", "recordings/edf", "model/mvpformer", "simulation/source"],
    }
    for top, names in files.items():
        for name in names:
            path = tmp_path / top / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("")

    def write(file: str, text: str) -> Path:
        (tmp_path / file).write_text(text)
        return tmp_path

    write(
        "ieeg/model/mvpformer.py", "from mvpa_ts.ieeg.recordings.recording import Recording\nfrom mvpa_ts import blocks"
    )
    return write


def test_sound_tree_passes(house):
    root = house("ieeg/recordings/edf.py", "import mvpa_ts.ieeg.constants")
    assert not wrong_arrows(root)
    assert not circle(root)


STATEMENTS = {
    "at the top": "import {}",
    "a name": "from {} import something",
    "in a function": "def lazily():\n    from {} import something",
    "for types": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import {}",
    "by a literal name": "import importlib\nimportlib.import_module('{}')",
}


@pytest.mark.parametrize("statement", STATEMENTS.values(), ids=STATEMENTS.keys())
@pytest.mark.parametrize(
    ("file", "name", "direction"),
    [
        ("ieeg/recordings/edf.py", "mvpa_ts.ieeg.model.mvpformer", "up"),
        ("ieeg/constants.py", "mvpa_ts.ieeg.recordings.recording", "up"),
        ("mvpa_ts/blocks.py", "mvpa_ts.forecasting.network.network", "up"),
        ("mvpa_ts/attention/functional.py", "mvpa_ts.blocks", "up"),
        ("mvpa_ts/blocks.py", "mvpa_ts.ieeg.constants", "up"),
        ("mvpa_ts/forecasting/network/network.py", "mvpa_ts.adapters.sktime.forecaster", "up"),
        ("ieeg/simulation/source.py", "mvpa_ts.ieeg.model.mvpformer", "across"),
        ("mvpa_ts/classification/network.py", "mvpa_ts.forecasting.network.network", "across"),
        ("adapters/sktime/forecaster.py", "mvpa_ts.adapters.neuralforecast.model", "across"),
        ("ieeg/model/mvpformer.py", "mvpa_ts.adapters.sktime.forecaster", "across"),
    ],
)
def test_planted_arrow_is_seen(house, file, name, direction, statement):
    root = house(file, statement.format(name))
    (wrong,) = wrong_arrows(root)
    assert wrong.endswith(f"imports {direction}: {name}")


@pytest.mark.parametrize("statement", STATEMENTS.values(), ids=STATEMENTS.keys())
def test_planted_circle_inside_a_room_is_seen(house, statement):
    house("ieeg/recordings/recording.py", "import mvpa_ts.ieeg.recordings.edf")
    root = house("ieeg/recordings/edf.py", statement.format("mvpa_ts.ieeg.recordings.recording"))
    assert not wrong_arrows(root)
    assert set(circle(root)) == {"mvpa_ts.ieeg.recordings.recording", "mvpa_ts.ieeg.recordings.edf"}


def test_module_without_a_floor_is_named(house):
    root = house("mvpa_ts/helpers.py", "")
    with pytest.raises(AssertionError, match=r"mvpa_ts\.helpers stands on no floor"):
        wrong_arrows(root)
