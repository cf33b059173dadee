"""Checkpoints of arrays that are spread over processes, each of which writes what it holds.

All processes call every method together. The directory is one that all of them see: a bucket
(`gs://...`) or a shared file system.
"""

from collections.abc import Mapping
from typing import Any

import orbax.checkpoint as ocp
from etils import epath

from loong_jax import checksums
from loong_jax.errors import CheckpointError
from loong_jax.rl import checkpoint

FORMAT_VERSION = 1


class ShardedCheckpoints:
    """The checkpoints of a run, by step; use as a context manager."""

    def __init__(self, directory: str, *, keep: int = 2):
        path = epath.Path(directory)
        self.directory = path if "://" in directory else path.absolute()
        self._manager = ocp.CheckpointManager(
            self.directory,
            options=ocp.CheckpointManagerOptions(
                max_to_keep=keep, enable_async_checkpointing=False
            ),
            item_names=("arrays", "record"),
        )

    def __enter__(self) -> "ShardedCheckpoints":
        return self

    def __exit__(self, *_) -> None:
        self._manager.close()

    def latest(self) -> int | None:
        """Step of the latest finished checkpoint, None where there is none."""
        return self._manager.latest_step()

    def save(self, step: int, tree: Any, metadata: Mapping[str, Any]) -> None:
        """Writes `tree` as checkpoint `step` and returns once all of it is on disk.

        A kill at any moment leaves the earlier checkpoints and no half of this one.
        """
        arrays = checkpoint.by_path(tree)
        record = {
            "format_version": FORMAT_VERSION,
            "metadata": dict(metadata),
            "checksums": checksums.by_name(arrays),
        }
        self._manager.save(
            step,
            force=True,
            args=ocp.args.Composite(
                arrays=ocp.args.StandardSave(arrays), record=ocp.args.JsonSave(record)
            ),
        )

    def metadata(self, step: int) -> dict[str, Any]:
        """What was saved beside the arrays of checkpoint `step`.

        Raises CheckpointError where it is damaged or of another format.
        """
        return self._record(step)["metadata"]

    def _record(self, step: int) -> dict[str, Any]:
        record = self._read(step, record=ocp.args.JsonRestore())
        checkpoint.refuse_other_format(record, FORMAT_VERSION, self.directory / str(step))
        return record

    def restore(self, step: int, template: Any) -> Any:
        """Checkpoint `step` in the structure and shardings of `template`, a tree of
        `jax.ShapeDtypeStruct`. Each process reads what it holds.

        Raises CheckpointError where the two do not fit, or where files are missing or damaged.
        """
        arrays = ocp.args.StandardRestore(checkpoint.by_path(template))
        found = self._read(step, arrays=arrays)
        saved = self._record(step).get("checksums", {})  # older checkpoints have none
        now = checksums.by_name(found)
        if wrong := sorted(name for name in saved.keys() & now.keys() if saved[name] != now[name]):
            raise CheckpointError(
                f"{self.directory / str(step)} is damaged: {', '.join(wrong[:3])} "
                f"({len(wrong)} in all) is not what was saved. Delete that checkpoint to go back "
                "to the one before."
            )
        return checkpoint.from_plain(template, found)

    def _read(self, step: int, **item: Any) -> Any:
        (name,) = item
        try:
            return self._manager.restore(step, args=ocp.args.Composite(**item))[name]
        except Exception as error:  # Orbax, TensorStore and JSON each raise their own
            raise CheckpointError(
                f"{self.directory / str(step)} cannot be restored: {str(error).splitlines()[0]}. "
                "Resume with the configuration the run began with, or delete that checkpoint to go "
                "back to the one before."
            ) from error
