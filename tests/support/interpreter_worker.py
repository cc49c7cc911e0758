"""Run shares of interpreted.py on request, in one process: importing it and the kernels takes longer than most cases.

Each line of the input is a JSON list of a marker, the number of a share and how many shares there are; each line of the
answer an exit status of pytest and what it printed.
"""

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

INTERPRETED = Path(__file__).with_name("interpreted.py")


class Share:
    """Keep every n-th test of those that the marker selects."""

    def __init__(self, number: int, shares: int) -> None:
        self.number, self.shares = number, shares

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = items[self.number :: self.shares]


def main() -> None:
    for line in sys.stdin:
        marker, number, shares = json.loads(line)
        arguments = ["-q", "-p", "no:cacheprovider", "--no-cov", "-m", marker, str(INTERPRETED)]
        printed = io.StringIO()
        with redirect_stdout(printed), redirect_stderr(printed):
            status = int(pytest.main(arguments, plugins=[Share(number, shares)]))
        print(json.dumps([status, printed.getvalue()]), flush=True)


if __name__ == "__main__":
    main()
