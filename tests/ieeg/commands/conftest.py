"""A detector for the commands."""

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
