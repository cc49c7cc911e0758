"""What a command says where it fails."""

from collections.abc import Callable

import pytest


@pytest.fixture
def fails(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """A command that ends with status 1 and says why; gives all that it says."""
    from support.made_up_recordings import run

    def check(message: str, *words: object) -> str:
        assert run(*words) == 1
        said = capsys.readouterr().err
        assert message in said
        return said

    return check
