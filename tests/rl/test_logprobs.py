"""Log-probabilities under a head that is cut along its words, against those of one device."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from loong_jax.models import decoder
from loong_jax.rl import logprobs
from loong_jax.sharding import NO_MESH, ShardingRules, make_mesh

WORDS, WIDTH, SHAPE = 1536, 16, (8, 32)
RESTING = {  # where D or V of the head are cut, and which devices have tokens of their own
    "width": ({"fsdp": 4, "tensor": 2}, {"act_vocab": "tensor"}),
    "width, tokens also over experts": ({"fsdp": 2, "expert": 2, "tensor": 2}, {}),
    "words": (
        {"data": 2, "fsdp": 2, "expert": 2},
        {
            "vocab": ("tensor", "fsdp", "expert"),
            "vocab_embed": None,
            "gathered_at_use": ("fsdp", "expert"),
        },
    ),
}


def loss(head, hidden, tokens, *, rules):
    logits = functools.partial(decoder.logits_for, head, rules=rules, dtype=hidden.dtype)
    of_one = jnp.ones_like(tokens)
    found = logprobs.listed_logprobs(logits, hidden, tokens, of_one, None, 0.9)
    return jnp.sum(jnp.tanh(found[0])), found


@pytest.mark.parametrize("name", RESTING)
def test_few_tokens_travel_and_the_head_does_not(monkeypatch, name):
    """In several chunks, with gradients; no device gathers the head, in any dtype."""
    monkeypatch.setattr(logprobs, "CHUNK_LOGITS", 8 * WORDS)
    of_head, of_hidden, of_tokens = jax.random.split(jax.random.key(0), 3)
    head = 0.3 * jax.random.normal(of_head, (WIDTH, WORDS))
    hidden = jax.random.normal(of_hidden, (*SHAPE, WIDTH))
    tokens = jax.random.randint(of_tokens, SHAPE, 0, WORDS)
    gradient_of = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
    alone = jax.jit(functools.partial(gradient_of, rules=NO_MESH))(head, hidden, tokens)
    sizes, how = RESTING[name]
    rules = ShardingRules(mesh=make_mesh(**sizes), **how).cutting()
    with rules.scope():
        rows = jax.device_put((hidden, tokens), rules.spec("act_batch"))
        lies = jax.device_put(head, rules.spec("vocab_embed", "vocab"))
        program = jax.jit(functools.partial(gradient_of, rules=rules)).lower(lies, *rows).compile()
        on_mesh = program(lies, *rows)
    for one, other in zip(jax.tree.leaves(alone), jax.tree.leaves(on_mesh), strict=True):
        np.testing.assert_allclose(one, np.asarray(other), rtol=1e-4, atol=2e-5)
    assert jax.typeof(on_mesh[1][0]).sharding.spec == jax.typeof(lies).sharding.spec
    gathered = re.findall(r"= \w+\[([\d,]+)\]\S* all-gather\(", program.as_text())
    sizes = [np.prod([int(size) for size in shape.split(",")]) for shape in gathered]
    assert sizes
    assert max(sizes) < WIDTH * WORDS // rules.parts("vocab")


@pytest.mark.parametrize(("most", "products"), [(256 * WORDS, 6), (255 * WORDS, 4)])
def test_few_logits_are_kept_for_the_way_back(monkeypatch, most, products):
    """Two chunks one after the other, with three products each, or a loop that makes a fourth."""
    monkeypatch.setattr(logprobs, "CHUNK_LOGITS", most)
    head, hidden = jnp.ones((WIDTH, WORDS)), jnp.ones((*SHAPE, WIDTH))
    gradient_of = jax.grad(functools.partial(loss, rules=NO_MESH), argnums=(0, 1), has_aux=True)
    program = jax.make_jaxpr(gradient_of)(head, hidden, jnp.zeros(SHAPE, int))
    assert str(program).count("dot_general") == products
