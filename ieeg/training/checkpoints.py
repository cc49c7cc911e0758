"""Training checkpoints that are never left half written: they are written to a temporary file, then renamed."""

from __future__ import annotations

import errno
import os
import zipfile
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO

from mvpa_ts.ieeg.training.loggers import interrupt_afterwards
from mvpa_ts.weights import check_finite


class AtomicCheckpointIO(TorchCheckpointIO):
    """Checkpoints on a local disk: the previous one stays until the next is complete, and no pickle is ever run.

    Lightning's class writes to the temporary folder of the system first, builds the whole file in memory, and lets the
    caller turn ``weights_only`` off. Remote paths (``s3://…``) are written by Lightning's class.

    Raises
    ------
    OSError
        While writing: the disk is full or not writable. The previous checkpoint is untouched, as the message says.
    ValueError
        While writing: weights are NaN or infinite; the previous checkpoint stays. While reading: the file is damaged,
        or holds more than tensors and plain values.
    """

    # Interrupted within, torch's writer says that the file is broken, and the run ends as if the disk were full.
    @interrupt_afterwards()
    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Write to a file beside `path`, flush it to the disk and rename it."""
        if "://" in str(path) or storage_options is not None:
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        path = Path(path)
        check_finite(checkpoint.get("state_dict", {}), f"the checkpoint for {path}, which was not written,")
        path.parent.mkdir(parents=True, exist_ok=True)
        # Beside the checkpoint, since a rename is only whole within one file system.
        # One that a killed run left is overwritten by the next.
        partial = path.with_name(path.name + ".part")
        try:
            with partial.open("wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                # Without it a machine that loses power may have the new name with no content.
                os.fsync(file.fileno())
            partial.replace(path)
        except (OSError, RuntimeError) as error:
            partial.unlink(missing_ok=True)
            kept = f"; the previous checkpoint {path} is untouched" if path.exists() else ""
            raise OSError(f"cannot write the checkpoint {path} ({_reason(error)}){kept}") from error

    def load_checkpoint(
        self, path: str | Path, map_location: Any = "cpu", weights_only: bool | None = True
    ) -> dict[str, Any]:
        """Read tensors and plain values; `weights_only` is ignored and always True."""
        try:
            check_sums(Path(path))
            checkpoint = super().load_checkpoint(path, map_location, weights_only=True)
        except FileNotFoundError:
            raise FileNotFoundError(f"there is no checkpoint {path}") from None
        except (OSError, MemoryError):
            raise
        except Exception as error:  # bytes of another kind of file make the reader stumble anywhere
            raise ValueError(
                f"the checkpoint {path} cannot be read ({_reason(error)}): it is damaged, or not a checkpoint of this "
                f"command. Resume from another one, or start again without --ckpt_path"
            ) from error
        if Path(path).name == ".temp.ckpt":  # plain weights that Lightning's forked processes hand back
            return checkpoint
        if not isinstance(checkpoint, dict) or "state_dict" not in checkpoint:
            raise ValueError(f"{path} is not a training checkpoint: it holds no state_dict")
        return checkpoint


def check_sums(path: Path) -> None:
    """Check the checksums of the parts of a checkpoint in one file; torch does not check them.

    Raises a ValueError that names the damaged part. Files that are not ZIP archives have no checksums.
    """
    if not path.is_file() or not zipfile.is_zipfile(path):
        return
    try:
        with zipfile.ZipFile(path) as archive:
            # torch reads a changed byte as another weight, and the run would go on from it.
            damaged = archive.testzip()
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise ValueError("its table of contents names places outside the file") from error
    if damaged is not None:
        raise ValueError(f"its part {damaged} is not what was written")


def _reason(error: BaseException) -> str:
    """Return the first line of the first error: torch reports a full disk as a mismatch of positions."""
    while error.__context__ is not None and not isinstance(error, OSError):
        error = error.__context__
    return (str(error).strip() or type(error).__name__).splitlines()[0]
