"""Models. Each package holds one family; `families` is their table, `hf` their published files.

Knows: errors, remote, sharding.
"""

from loong_jax.models.hf import load_hf, save_hf

__all__ = ["load_hf", "save_hf"]
