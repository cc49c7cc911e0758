"""What tests of forecasters share."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def no_gradients() -> Iterator[None]:
    """Networks keep nothing that a gradient would need."""
    with torch.no_grad():
        yield
