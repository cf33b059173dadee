"""A policy small enough to differentiate by hand, and rollouts for it: no attention, no experts."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from loong_jax.problems import verdict as verdicts
from loong_jax.rl import batching, rewards
from loong_jax.rl.policy_model import PolicyModel
from loong_jax.rollout.records import Group, Rollout, SamplingSettings, Ticket
from tests.doubles.problems import made_problem

VOCAB_SIZE = 128


def toy_weights(seed: int = 0, width: int = 8):
    """A running mean of embeddings inside each segment, one norm-like scale, a router-like bias."""
    first, second = jax.random.split(jax.random.key(seed))
    return {
        "embedding": 0.5 * jax.random.normal(first, (VOCAB_SIZE, width)),
        "head": 0.5 * jax.random.normal(second, (width, VOCAB_SIZE)),
        "final_norm": jnp.ones((width,)),
        "layers": {"0": {"router": {"bias": jnp.zeros((1, 3))}}},
    }


def _states(weights, batch):
    tokens, positions, segment_ids = (
        batch[name] for name in ("tokens", "positions", "segment_ids")
    )
    parent_ids = batch.get("parent_ids")
    x_BTD = weights["embedding"][tokens]
    same_BTS = segment_ids[:, :, None] == segment_ids[:, None, :]
    if parent_ids is not None:
        same_BTS |= parent_ids[:, :, None] == segment_ids[:, None, :]
    same_BTS &= (segment_ids > 0)[:, None]
    index = jnp.arange(tokens.shape[1])
    seen_BTS = (same_BTS & (index[None, :, None] >= index[None, None, :])).astype(jnp.float32)
    sum_BTD = jnp.einsum("BTS,BSD->BTD", seen_BTS, x_BTD)
    mean_BTD = sum_BTD / (positions + 1).astype(jnp.float32)[..., None]
    hidden = (x_BTD + mean_BTD) * weights["final_norm"][None, None]
    load = jnp.stack([jnp.sum((segment_ids > 0) & (tokens % 3 == a)) for a in range(3)])
    return hidden, load[None].astype(jnp.int32), None


def _is_controller(path):
    names = [str(getattr(entry, "key", entry)) for entry in path]
    return names[-2:] == ["router", "bias"]


def _update_controllers(weights, memory, load):
    bias = weights["layers"]["0"]["router"]["bias"] + 0.01 * (load.mean() - load)
    return weights | {"layers": {"0": {"router": {"bias": bias}}}}, memory


@functools.lru_cache(maxsize=1)
def toy_policy() -> PolicyModel:
    return PolicyModel(
        states=_states,
        logits=lambda weights, num_tokens: lambda hidden: hidden @ weights["head"],
        is_controller=_is_controller,
        matrix_axes=lambda path: ((0,), (1,)) if path[-1] == "head" else None,
        update_controllers=_update_controllers,
        load_shape=(1, 3),
        load_metrics=lambda load: {"load/max_over_mean": float(load.max() / load.mean())},
    )


@functools.lru_cache(maxsize=2)
def listing_policy(*, sees_parents: bool = True) -> PolicyModel:
    """The same policy, whose batches list what is predicted, and may share prompts."""
    return dataclasses.replace(toy_policy(), lists=True, sees_parents=sees_parents)


def group_of(number: int, rewards: tuple[float | None, ...], longer: int) -> Group:
    """A toy group whose prompt is longer by as many tokens."""
    group = toy_group(number, rewards)
    prompt = np.append(group.rollouts[0].prompt, np.full(longer, 50, np.int32))
    return group.replace_rollouts(
        tuple(dataclasses.replace(r, prompt=prompt) for r in group.rollouts)
    )


def toy_batches(groups, *, rows=4, row_length=32, version=0, **how):
    """Micro-batches with advantages inside of groups."""
    return batching.make_batches(
        groups,
        rewards.GroupNormalised(),
        trainer_version=version,
        rows=rows,
        row_length=row_length,
        **how,
    )


def toy_group(
    number: int,
    rewards: tuple[float | None, ...],
    *,
    version: int = 0,
    seed: int = 0,
    max_new_tokens: int = 9,
    temperature: float = 1.0,
) -> Group:
    """A group of random tokens whose verdicts fit `rewards`; log-probabilities are made up."""
    random = np.random.default_rng([seed, number])
    rollouts = []
    for attempt, reward in enumerate(rewards):
        length = int(random.integers(2, max_new_tokens + 1))
        rollouts.append(
            Rollout(
                ticket=number,
                attempt=attempt,
                prompt=np.array([1, 49, 43, 49, 61], np.int32),
                tokens=random.integers(32, 127, length).astype(np.int32),
                loss_mask=np.ones(length, bool),
                engine_logprob=(-4.8 + random.normal(size=length) / 20).astype(np.float32),
                behavior_logprob=(-4.8 + random.normal(size=length) / 20).astype(np.float32),
                sampling=SamplingSettings(temperature=temperature, max_new_tokens=max_new_tokens),
                versions=((0, version),),
                finish_reason="stop",
                verdict=(
                    verdicts.ungradable("lost")
                    if reward is None
                    else (verdicts.correct() if reward > 0 else verdicts.wrong("value"))
                ),
                reward=reward,
            )
        )
    ticket = Ticket(number=number, problem=made_problem(number))
    return Group(ticket=ticket, version=version, rollouts=tuple(rollouts))
