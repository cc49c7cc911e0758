"""Where Triton is not installed everything else works, and the message says what is missing."""

import subprocess
import sys

CODE = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "triton":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
import torch
from mvpa_ts import mvpa_attention
from mvpa_ts.attention.triton import why_unavailable

q, k, v = torch.randn(3, 1, 4, 3, 2, 16)
parts = torch.randn(4, 2, 16), torch.randn(3, 2, 16), *torch.randn(3, 2, 16)
assert mvpa_attention(q, k, v, *parts).shape == q.shape
assert why_unavailable(q) == "the package triton is not installed"
try:
    mvpa_attention(q, k, v, *parts, impl="triton")
except RuntimeError as error:
    assert str(error) == "impl='triton' cannot run here: the package triton is not installed"
else:
    raise AssertionError
assert "triton" not in sys.modules
"""


def test_attention_works_and_says_why_the_kernels_do_not():
    result = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
