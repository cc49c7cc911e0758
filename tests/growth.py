"""Numbers that may only fall: how large the house is. `tests/growth.csv` holds the most that each may be.

python tests/growth.py            what is counted now, beside what is allowed
python tests/growth.py --lower    write today's lower numbers into the file; a number is never raised by this
"""

import argparse
import ast
import csv
import io
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGES = ("mvpa_ts", "adapters", "ieeg", "experiments", "tests")
LIBRARY = ("mvpa_ts", "adapters", "ieeg")
# The most that a new row may be without a line in the file.
WANTED = {"arguments": 20, "scripts": 15}
# Names may be vague, 10 in 1000. A comment is wanted for every 25 lines. Counted is what is beyond, or lacking.
VAGUE_SHARE, COMMENT_LINES = 0.01, 25
# Such a name says nothing about what it holds.
VAGUE = frozenset({"part", "found", "own", "told", "made", "there", "known", "rest", "one"})
# Arguments that the host's own models and searches have. A user who knows the host knows them already.
NEURALFORECAST = """
    h input_size loss valid_loss learning_rate max_steps val_check_steps batch_size valid_batch_size windows_batch_size
    inference_windows_batch_size start_padding_enabled training_data_availability_threshold n_series n_samples h_train
    inference_input_size step_size num_lr_decays early_stop_patience_steps val_monitor scaler_type futr_exog_list
    hist_exog_list stat_exog_list cat_exog_list categorical_cardinalities cat_emb_dim exclude_insample_y
    drop_last_loader random_seed alias optimizer optimizer_kwargs lr_scheduler lr_scheduler_kwargs dataloader_kwargs
    trainer_kwargs cls_model config search_alg num_samples refit_with_val cpus gpus verbose backend callbacks
"""
SKTIME = "h fh sp alpha random_state verbose n_jobs"
HOST_ARGUMENTS = {
    "adapters/neuralforecast": frozenset(NEURALFORECAST.split()),
    "adapters/sktime": frozenset(SKTIME.split()),
}
# The site's own copies, written by `make docs`.
GENERATED = ("docs/api/modules", "docs/examples", "docs/tables", "docs/_build")
DIRECTIVES = ("# noqa", "# type:", "# ruff:", "# fmt:", "# pragma:", "#!")


class Row(NamedTuple):
    """The most that a number may be, and why it was last raised."""

    most: int
    reason: str = ""


def python_files(root: Path, folder: str) -> list[Path]:
    return sorted(path for path in (root / folder).rglob("*.py") if "__pycache__" not in path.parts)


def filled_lines(text: str) -> int:
    """Lines that hold code or a docstring. Neither an empty line nor a comment is growth."""
    return sum(1 for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))


def comments(text: str) -> int:
    """Lines with a comment for the reader: no directive to a tool, no shape such as ``# [B, T, C]``."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    texts = [token.string for token in tokens if token.type == tokenize.COMMENT]
    return sum(1 for comment in texts if not comment.startswith((*DIRECTIVES, "# [")))


def stored_names(tree: ast.AST) -> Iterator[str]:
    """Names that something is assigned to: locals, loop variables, attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def arguments(definition: ast.ClassDef) -> list[str]:
    """Arguments with which a class is made: those of its ``__init__``, or the fields of a dataclass."""
    for node in definition.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            return [argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)][1:]
    annotated = [node for node in definition.body if isinstance(node, ast.AnnAssign)]
    return [ast.unparse(node.target) for node in annotated if "ClassVar" not in ast.unparse(node.annotation)]


def mixins(classes: Iterable[ast.ClassDef]) -> set[str]:
    """Classes of an adapter that others of it are put together from, and that are no model of the host themselves."""
    bases = {node.name: {ast.unparse(base).split("[")[0] for base in node.bases} for node in classes}
    used = set().union(*bases.values()) & set(bases) if bases else set()
    return {name for name in used if bases[name] <= set(bases)}


def counts(root: Path = ROOT) -> dict[str, int]:
    """Every number by its row's name."""
    numbers: dict[str, int] = {}
    classes: dict[Path, list[ast.ClassDef]] = {}
    for package in PACKAGES:
        paths = python_files(root, package)
        texts = [path.read_text(encoding="utf-8") for path in paths]
        trees = [ast.parse(text) for text in texts]
        filled = sum(map(filled_lines, texts))
        numbers[f"lines: {package}"] = filled
        names = [name for tree in trees for name in stored_names(tree)]
        vague = sum(name in VAGUE for name in names)
        numbers[f"vague names: {package}"] = max(0, vague - int(VAGUE_SHARE * len(names)))
        if package in LIBRARY:
            numbers[f"lacking comments: {package}"] = max(0, filled // COMMENT_LINES - sum(map(comments, texts)))
            for path, tree in zip(paths, trees, strict=True):
                classes[path] = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    pages = [page for page in (root / "docs").rglob("*.md") if not str(page.relative_to(root)).startswith(GENERATED)]
    results = root / "experiments" / "results"
    pages += [*results.glob("*.md"), *results.glob("*/*.md")]
    numbers["words: docs and results"] = sum(len(page.read_text(encoding="utf-8").split()) for page in pages)

    for path, definitions in classes.items():
        host = HOST_ARGUMENTS.get(path.parent.relative_to(root).as_posix(), frozenset())
        for definition in definitions:
            if not definition.name.startswith("_"):
                name = f"arguments: {definition.name}"
                numbers[name] = max(len(set(arguments(definition)) - host), numbers.get(name, 0))

    scripts = [path for path in python_files(root, "experiments") if path.name != "__init__.py"]
    scripts = [
        path for path in scripts if path.relative_to(root / "experiments").parts[0] not in ("harness", "results")
    ]
    for folder in sorted({path.parent for path in scripts}):
        numbers[f"scripts: {folder.relative_to(root).as_posix()}"] = sum(path.parent == folder for path in scripts)
    numbers["all scripts: experiments"] = len(scripts)

    for folder in sorted(path for path in (root / "adapters").iterdir() if (path / "__init__.py").is_file()):
        name = folder.relative_to(root).as_posix()
        paths = [path for path in python_files(root, name) if path.name != "__init__.py"]
        numbers[f"files: {name}"] = len(paths)
        numbers[f"mix-ins: {name}"] = len(mixins(node for path in paths for node in classes[path]))
    return numbers


def read(file: Path) -> dict[str, Row]:
    with file.open(encoding="utf-8", newline="") as stream:
        return {row["count"]: Row(int(row["at most"]), row["reason"]) for row in csv.DictReader(stream)}


def write(file: Path, rows: dict[str, Row]) -> None:
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["count", "at most", "reason"])
        writer.writerows([name, row.most, row.reason] for name, row in rows.items())


def kind_of(name: str) -> str:
    return name.partition(":")[0]


def allowed(name: str, rows: dict[str, Row]) -> int:
    """The most that a number may be: what the file says, or for a row that it lacks what is wanted of its kind."""
    return rows[name].most if name in rows else WANTED.get(kind_of(name), 0)


def grown(numbers: dict[str, int], rows: dict[str, Row]) -> list[str]:
    """One sentence for each number that is above its row."""
    return [
        f"{name} is {number} and may be {allowed(name, rows)} at most: "
        "lower it, or write the new number and one line of reason into tests/growth.csv"
        for name, number in numbers.items()
        if number > allowed(name, rows)
    ]


def lowered(numbers: dict[str, int], rows: dict[str, Row]) -> dict[str, Row]:
    """The rows with today's numbers. A number above its row is an error."""
    if sentences := grown(numbers, rows):
        raise SystemExit("\n".join(sentences))
    new = {}
    for name, number in numbers.items():
        # A class of few arguments needs no row; one that had a row keeps it.
        if name not in rows and kind_of(name) == "arguments":
            continue
        row = rows.get(name)
        new[name] = row if row and row.most == number else Row(number)
    return new


def main(words: list[str] | None = None, root: Path = ROOT) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lower", action="store_true", help="write today's lower numbers into the file")
    file = root / "tests" / "growth.csv"
    numbers, rows = counts(root), read(file)
    if parser.parse_args(words).lower:
        write(file, lowered(numbers, rows))
        return
    for name, number in numbers.items():
        if name in rows or number > allowed(name, rows):
            print(f"{name:45} {number:>8} of {allowed(name, rows)}")
    if sentences := grown(numbers, rows):
        sys.exit("\n".join(sentences))


if __name__ == "__main__":
    main()
