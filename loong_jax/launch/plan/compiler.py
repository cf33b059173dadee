"""Options of the TPU compiler under which an expert exchange leaves the critical path."""

from typing import Any

from loong_jax.launch.plan.chips import Chip


def options(chip: Chip) -> dict[str, Any]:
    """What the compiler is told for programs with an expert axis on this chip."""
    del chip
    return {"xla_tpu_enable_async_all_to_all": True}
