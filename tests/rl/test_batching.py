import dataclasses

import numpy as np
import pytest

from loong_jax.rl import batching, rewards
from loong_jax.rollout.records import SamplingSettings
from tests.doubles.toy_policy import toy_group
from tests.doubles.unpacking import unpack

GROUPS = [
    toy_group(4, (1.0, 0.0, None, 0.0), version=3),
    toy_group(2, (0.0, 1.0, 1.0, 1.0), version=4),
]


def make(groups=GROUPS, **changes):
    settings = {"trainer_version": 5, "rows": 3, "row_length": 32} | changes
    return batching.make_batches(groups, rewards.GroupNormalised(), **settings)


def test_every_valid_rollout_is_there_with_its_own_values():
    batches = make()
    fields = [dict(batch._asdict()) for batch in batches]
    assert all(array.shape == (3, 32) for f in fields for array in f.values() if array is not None)
    found = {}
    for f in fields:
        pieces = {name: unpack(f, name) for name in f if f[name] is not None}
        for i, tokens in enumerate(pieces["tokens"]):
            found[tuple(tokens)] = {name: values[i] for name, values in pieces.items()}
    rollouts = [(g, r) for g in GROUPS for r in g.rollouts if r.reward is not None]
    assert len(found) == len(rollouts) == 7
    for group, rollout in rollouts:
        values = found[tuple(np.concatenate([rollout.prompt, rollout.tokens]))]
        head = len(rollout.prompt)
        given = [r.reward for r in group.rollouts]
        advantage = rewards.group_advantages(given, rewards.GroupNormalised())
        assert not values["loss_mask"][:head].any()
        assert values["loss_mask"][head:].all()
        np.testing.assert_array_equal(values["engine_logprob"][head:], rollout.engine_logprob)
        np.testing.assert_array_equal(values["behavior_logprob"][head:], rollout.behavior_logprob)
        np.testing.assert_array_equal(values["advantage"][head:], advantage[rollout.attempt])
        np.testing.assert_array_equal(values["advantage"][:head], 0)
        np.testing.assert_array_equal(values["version_lag"][head:], 5 - group.version)


def test_order_of_arrival_does_not_matter():
    turned = [g.replace_rollouts(g.rollouts[::-1]) for g in reversed(GROUPS)]
    for one, other in zip(make(), make(turned), strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_versions_of_tokens_follow_the_record():
    rollout = dataclasses.replace(GROUPS[0].rollouts[0], versions=((0, 1), (2, 4)))
    versions = batching.versions_of_tokens(rollout)
    assert versions[:2].tolist() == [1, 1]
    assert (versions[2:] == 4).all()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"behavior_logprob": None}, "not scored"),
        ({"versions": ((0, 6),)}, "later than the trainer"),
        ({"sampling": SamplingSettings(max_new_tokens=8, greedy=True)}, "SamplingSettings"),
        ({"sampling": SamplingSettings(max_new_tokens=8, top_p=0.9)}, "SamplingSettings"),
        ({"sampling": SamplingSettings(max_new_tokens=8, top_k=5)}, "SamplingSettings"),
    ],
)
def test_what_may_not_train_is_refused(changes, said):
    first, *rest = GROUPS[0].rollouts
    with pytest.raises(AssertionError, match=said):
        make([GROUPS[0].replace_rollouts((dataclasses.replace(first, **changes), *rest))])
