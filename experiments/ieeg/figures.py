"""Draw counterparts of the paper's figures, in one style.

Drawings need no data. Similarities and attention terms are of an MVPFormer-tiny that is pretrained here for some
hundred steps on simulated subjects and measured on others. None of them says anything about patients. Kappas and scores
by subject are drawn by ``demo_detect.py --ablations``.

    python experiments/ieeg/figures.py                         # results/figures/, minutes on one core
    python experiments/ieeg/figures.py attention seizures      # some of them
    python experiments/ieeg/figures.py --quick                 # a few steps, written elsewhere
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.append(str(Path(__file__).parents[1]))  # the harness

import torch
from harness.command_line import script_parser
from harness.figures import drawings, style
from harness.figures.predicted import Predicted, by_model
from harness.quiet import silence
from harness.tables import RESULTS, results_folder

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def main() -> None:
    """Draw what is asked for."""
    parser = script_parser(__doc__, "a few steps, written to a temporary folder")
    parser.add_argument("names", nargs="*", help="figures; all by default")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    silence()
    style.apply()
    folder = results_folder("figures", quick=arguments.quick)
    predicted = Predicted(quick=arguments.quick)
    figures: dict[str, Callable[[], Figure]] = {
        "attention": drawings.attention,
        "architecture": drawings.architecture,
        "structured_dropout": drawings.structured_dropout,
        "seizures": drawings.seizures,
        "similarity": predicted.similarity,
        "similarity_by_state": predicted.by_state,
        "similarity_by_model": lambda: by_model(RESULTS / "pretraining" / "pretraining_comparison.json"),
        "components": predicted.components,
    }
    if unknown := set(arguments.names) - set(figures):
        parser.error(f"unknown figures {', '.join(sorted(unknown))}: choose of {', '.join(figures)}")
    for name in arguments.names or figures:
        print(style.save(figures[name](), folder, name), flush=True)


if __name__ == "__main__":
    main()
