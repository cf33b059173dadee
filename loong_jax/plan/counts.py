"""Numbers of a model of any family: weights, entries of a cache, operations of attention.

Weights and caches are counted over the shapes that the model itself makes.
"""

import dataclasses
import functools
import math
import re

import jax

from loong_jax.models import families, parameters
from loong_jax.models.families import ModelConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counts:
    """Numbers of weights; biases of routers, which choose and do not multiply, are left out."""

    total: int
    experts: int
    embedding: int
    head: int  # the embedding once more where it is the head as well
    active: int  # that multiply a token: not what is looked up, and K_e of E experts
    met: int  # of the active ones, those of experts
    experts_met: float  # K_e
    attention: int  # of the active ones, those of attentions
    tables: int  # of n-grams
    looked_up: int  # an embedding that is no head

    @property
    def dense(self) -> int:
        """The active ones that every token meets."""
        return self.active - self.met

    def named(self) -> dict[str, float]:
        """The counts that a plan reports."""
        names = ("total", "experts", "embedding", "head", "active")
        return {name: float(getattr(self, name)) for name in names}


@functools.lru_cache(maxsize=64)
def of(config: ModelConfig, *, drafts: bool = False) -> Counts:
    """The counts of a model; a head that drafts multiplies tokens where the program `drafts`."""
    family = families.family_of(config)
    _, weights = family.abstract_weights(config)
    sizes = {
        path: math.prod(leaf.shape)
        for path, leaf in parameters.by_path(weights).items()
        if not parameters.is_controller_state(path.split("/"))
    }

    def size(of_path: str) -> int:
        return sum(size for path, size in sizes.items() if re.match(of_path, path))

    total, experts, embedding = sum(sizes.values()), size("layers/experts/"), size("embedding$")
    tables, head = size("ngram/table$"), size("head$")
    looked_up = embedding if head else 0
    idle = 0 if drafts else size("mtp/")
    experts_met = family.experts_met(config)
    met = round(experts * experts_met / getattr(config, "num_experts", 1))
    return Counts(
        total=total,
        experts=experts,
        embedding=embedding,
        head=head or embedding,
        active=total - experts + met - looked_up - tables - idle,
        met=met,
        experts_met=experts_met,
        attention=size(r"layers/attention(_\d)?/"),
        tables=tables,
        looked_up=looked_up,
    )


@functools.lru_cache(maxsize=64)
def cache_width(config: ModelConfig) -> int:
    """Numbers that a cache holds for each token."""
    make = functools.partial(families.family_of(config).make_cache, config, 1, 1)
    return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(make)))


def attention_flops(config: ModelConfig, seen: float) -> float:
    """Operations of attention for one token that sees `seen` keys, all layers, forward."""
    return 2 * config.num_attentions * config.pair_width * seen
