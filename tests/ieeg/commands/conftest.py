"""A detector for the commands."""

from collections.abc import Callable

import pytest
from support.made_up_recordings import SMALL, seeded


@pytest.fixture(scope="session")
def model():
    return seeded(**SMALL)


@pytest.fixture(scope="session")
def model_folder(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def detect(tmp_path, model_folder) -> Callable[..., list[object]]:
    """The words of `mvpformer detect` with the small detector, into the folder "out"."""
    return lambda *words: ["detect", *words, "-o", tmp_path / "out", "--model", model_folder]
