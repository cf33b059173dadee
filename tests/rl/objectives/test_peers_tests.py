"""The loss tests that NVIDIA NeMo-RL and tunix publish, as numeric comparisons with ours.

Each case is named after the test it repeats: its inputs and the value that its authors worked out,
in our words. Of NeMo-RL (Apache-2.0, commit 7ea279ab) tests/unit/algorithms/test_loss_functions.py,
of tunix (Apache-2.0, commit c7d8950f) tests/rl/common_test.py and tests/rl/algo_core_test.py.
"""

import dataclasses

import jax
import numpy as np
import pytest

from loong_jax.rl import objectives, rewards
from tests.rl.objectives import cases

# What most of NeMo-RL's tests share: one response of three tokens behind a prompt of one.
POLICY = (-1.69315, -1.0, -0.59453)  # ratios of 0.5, 1 and 1.5
BEHAVIOR = (-1.0, -1.0, -1.0)
ENGINE = (-0.5, -1.5, -0.8)  # engine ratios of 0.6065, 1.6487 and 0.8187
ADVANTAGE = (1.0, -1.0, 2.0)

NO_SIGNAL = (0.0, 0.0, 0.0)
CLIPPED = dataclasses.replace(
    objectives.dapo_objective(eps_low=0.2, eps_high=0.2), signal=rewards.MeanOnly()
)
CISPO = objectives.cispo_objective(low=0.8, high=1.2)
REINFORCE = objectives.cispo_objective(low=1.0, high=1.0)  # its weight is always 1
DUAL = dataclasses.replace(
    objectives.dual_clip_objective(group_size=1, eps=0.2, cap=3.0),
    reduction=objectives.TokenMean(),
)
GSPO = objectives.gspo_token_objective(group_size=1, eps_low=0.2, eps_high=0.2)
UNCAPPED = float("inf")


def trusting(objective, **bands):
    """Bands about engine ratios, which go on as weights."""
    weighed = objectives.token_tis(objective, cap=UNCAPPED)
    return dataclasses.replace(weighed, engine=objectives.EngineTrust(**bands))


def penalised(kl):
    return dataclasses.replace(CLIPPED, kl=kl)


@dataclasses.dataclass(frozen=True)
class Case:
    """`loss` and, where the test looks at it, `gradient` by the policy's log-probabilities."""

    name: str
    ours: objectives.Objective
    loss: float
    policy: tuple = POLICY
    behavior: tuple = BEHAVIOR
    engine: tuple | None = None  # as the behaviour
    reference: tuple = NO_SIGNAL
    advantage: tuple = ADVANTAGE
    gradient: tuple | None = None


NEMO_RL = [
    # max(-A r, -A clip(r)) = -0.5, 1, -2.4
    Case("test_clipped_pg_loss_ppo_clipping", CLIPPED, -0.6333),
    # -A log pi = 0.5, -1, 3
    Case("test_clipped_pg_loss_reinforce_mode", REINFORCE, 0.8333, policy=(-0.5, -1.0, -1.5),
         behavior=NO_SIGNAL),
    # ratios of one still have a gradient
    Case("test_clipped_pg_loss_force_on_policy_ratio", CLIPPED, -0.6667, behavior=POLICY,
         gradient=(-1 / 3, 1 / 3, -2 / 3)),
    # -A clip(r) log pi = 1.35452, -1, 1.42687
    Case("test_clipped_pg_loss_cispo", CISPO, 0.59380),
    Case("test_clipped_pg_loss_cispo_with_importance_sampling_correction",
         objectives.token_tis(CISPO, cap=UNCAPPED), 0.11368, engine=ENGINE),
    # beta times the mean of 0.368, 0 and 0.718
    Case("test_clipped_pg_loss_kl_penalty", penalised(objectives.K3KL(beta=0.1)), 0.0362,
         policy=(0.0, -1.0, -2.0), behavior=(0.0, -1.0, -2.0), reference=BEHAVIOR,
         advantage=NO_SIGNAL),
    # engine ratios times -0.5, 1, -2.4
    Case("test_clipped_pg_loss_on_policy_kl_importance_sampling",
         objectives.token_tis(CLIPPED, cap=UNCAPPED), -0.2065, engine=ENGINE),
    # engine ratios cut off at 0.8
    Case("test_clipped_pg_loss_on_policy_truncated_importance_sampling[token]",
         objectives.token_tis(CLIPPED, cap=0.8), -0.4744, engine=ENGINE),
    # their product of 0.8187 as well, times -0.9086, 0.9086, -1.8171
    Case("test_clipped_pg_loss_on_policy_truncated_importance_sampling[sequence]",
         objectives.sequence_tis(GSPO, cap=0.8), -0.4846, engine=ENGINE),
    # the token of ratio exp(2.5) is refused: 0.6065 times -1, and 0.8187 times -2
    Case("test_clipped_pg_loss_icepop_importance_sampling",
         trusting(CLIPPED, token=objectives.Band(low=0.5, high=5.0)), -0.74799,
         policy=BEHAVIOR, engine=(-0.5, -3.5, -0.8)),
    # weights of 0.1, 1 and 3, the last cut off at 2
    Case("test_clipped_pg_loss_tis_min_bound_defaults_to_zero[None]",
         objectives.token_tis(CLIPPED, cap=2.0), -3.1 / 3,
         policy=tuple(np.log((0.1, 1.0, 3.0))), behavior=tuple(np.log((0.1, 1.0, 3.0))),
         engine=NO_SIGNAL, advantage=(1.0, 1.0, 1.0)),
    # within the band, so ratios of exp(0.0005) stay as weights
    Case("test_clipped_pg_loss_seq_mask_tis",
         trusting(CLIPPED, geometric=objectives.Band(low=0.999, high=1.002)), -0.66700,
         policy=BEHAVIOR, engine=(-1.0005, -1.0005, -1.0005)),
    # -0.5, 1, and 12 for 40
    Case("test_clipped_pg_loss_dual_clip", DUAL, 4.1667, policy=(-1.69315, -1.0, -0.69741),
         behavior=(-1.0, -1.0, -3.0), advantage=(1.0, -1.0, -4.0)),
    # one ratio of 0.9086
    Case("test_clipped_pg_loss_gspo", GSPO, -0.6057),
    Case("test_clipped_pg_loss_gspo_importance_sampling_correction",
         objectives.sequence_tis(GSPO, cap=UNCAPPED), -0.4959, engine=ENGINE),
    # of -1 against 0 and -15. Against -30 ours stops at 20 nats, as theirs does on demand; no k1
    Case("test_calculate_kl[k2]", penalised(objectives.K2KL(beta=3.0)), 0.5 + 98.0,
         policy=BEHAVIOR, reference=(0.0, -15.0, -1.0), advantage=NO_SIGNAL),
    Case("test_calculate_kl[k3]", penalised(objectives.K3KL(beta=3.0)), 0.7183 + 13.0,
         policy=BEHAVIOR, reference=(0.0, -15.0, -1.0), advantage=NO_SIGNAL),
]  # fmt: skip

# Tests of theirs about losses of policies that have no counterpart, and why:
# test_clipped_pg_loss_force_on_policy_ratio_ignores_prev_logprobs: what is trained on is scored
# test_clipped_pg_loss_cispo_incompatibility_asserts: clip and ratio are one choice each
# test_clipped_pg_loss_kl_gradient_includes_sampling_term: the gradient of our k3 is that of the
#   penalty as written; K2KL has the gradient of the reverse KL
# test_calculate_kl_detaches_importance_sampling_when_input_clamped,
# test_calculate_kl_output_clamp_includes_importance_sampling_weight: penalties have no weights
# test_clipped_pg_loss_tis_min_bound_defaults_to_zero[0.5]: weights have no lower bound
# test_clipped_pg_loss_entropy: entropy is exact, from the logits


def batch_of(rows):
    """Rows of one response each, behind a prompt of one token."""

    def field(name):
        return np.array([(0.0, *row[name]) for row in rows], np.float32)

    mask = np.ones((len(rows), len(rows[0]["policy"]) + 1), bool)
    segments = mask.astype(np.int32)
    mask[:, 0] = False
    names = ("policy", "behavior", "engine", "reference")
    return {f"{name}_logprob": field(name) for name in names} | {
        "advantage": field("advantage"),
        "loss_mask": mask,
        "segment_ids": segments,
    }


def row_of(case):
    row = {name: getattr(case, name) for name in ("policy", "behavior", "reference", "advantage")}
    return row | {"engine": case.behavior if case.engine is None else case.engine}


@pytest.mark.parametrize("case", NEMO_RL, ids=lambda case: case.name)
def test_nemo_rl(case):
    loss, gradient, _ = cases.evaluate(case.ours, batch_of([row_of(case)]), groups=1)
    np.testing.assert_allclose(loss, case.loss, rtol=1e-4, atol=6e-5)
    if case.gradient is not None:
        np.testing.assert_allclose(gradient[0, 1:], case.gradient, rtol=1e-5)


def test_nemo_rl_clipped_pg_loss_gspo_batch_size_2():
    """Response ratios of 0.9086 and 2.4697, the second held at 1.2 where the advantage is above
    0; a mean over both.
    """
    one = row_of(Case("", GSPO, 0.0))
    far = one | {"behavior": (-2.0, -2.0, -2.0), "engine": (-2.0, -2.0, -2.0)}
    loss, _, _ = cases.evaluate(GSPO, batch_of([one, far]), groups=2)
    np.testing.assert_allclose(loss, -0.4912, atol=6e-5)


def test_nemo_rl_clipped_pg_loss_masking():
    """A token that is masked changes the mean; a response that is masked might not be there."""
    random = np.random.default_rng(7)
    row = {name: tuple(-random.random(3)) for name in ("policy", "behavior", "reference")}
    rows = [row | {"engine": row["behavior"], "advantage": tuple(1 + random.random(3))}]
    rows.append({name: tuple(0.5 * np.array(values)) for name, values in rows[0].items()})
    objective = penalised(objectives.K3KL(beta=0.1))
    both = batch_of(rows)
    whole, _, _ = cases.evaluate(objective, both, groups=2)
    fewer = both["loss_mask"].copy()
    fewer[0, 1] = False
    masked, _, _ = cases.evaluate(objective, both | {"loss_mask": fewer}, groups=2)
    assert abs(whole - masked) > 1e-4
    fewer = both["loss_mask"].copy()
    fewer[1] = False
    masked, _, _ = cases.evaluate(objective, both | {"loss_mask": fewer}, groups=2)
    alone, _, _ = cases.evaluate(objective, batch_of(rows[:1]), groups=1)
    np.testing.assert_allclose(masked, alone, rtol=1e-6)


def test_nemo_rl_clipped_pg_loss_zero_mask():
    batch = batch_of([row_of(NEMO_RL[0])])
    batch["loss_mask"][:] = False
    loss, gradient, _ = cases.evaluate(penalised(objectives.K3KL(beta=0.1)), batch, groups=1)
    assert loss == 0.0
    assert not gradient.any()


def test_nemo_rl_clipped_pg_loss_reports_is_oob_ratio_tis():
    """One weight of three, 1, 3 and 0.5, is above 2. Ours counts where such tokens are refused."""
    row = row_of(NEMO_RL[0]) | {"behavior": tuple(np.log((1.0, 3.0, 0.5))), "engine": NO_SIGNAL}
    refusing = trusting(CLIPPED, token=objectives.Band(high=2.0))
    sums = cases.evaluate(refusing, batch_of([row]), groups=1)[2]
    assert objectives.summarise(sums)["engine_ratio/refused"] == pytest.approx(1 / 3)


def test_nemo_rl_seq_mask_tis_of_a_token_the_engine_could_not_write():
    """Of probability 0: the loss stays finite."""
    case = next(c for c in NEMO_RL if c.name == "test_clipped_pg_loss_seq_mask_tis")
    row = row_of(case) | {"engine": (-1.0005, -np.inf, -1.0005)}
    loss, gradient, _ = cases.evaluate(case.ours, batch_of([row]), groups=1)
    assert np.isfinite(loss)
    assert np.isfinite(gradient).all()


def test_tunix_compute_kl_divergence():
    """Method "low_var_kl", k3, on their seeded numbers; and their "mse_kl", k2."""
    with jax.threefry_partitionable(False):
        keys = jax.random.split(jax.random.PRNGKey(0))
        policy, reference = (np.array(jax.random.uniform(key, (2, 2, 4)))[0, 0] for key in keys)
    expected = {
        objectives.K3KL: (0.0654075, 0.220744, 0.0545462, 0.1321163),
        objectives.K2KL: (0.07406051, 0.27894518, 0.06108194, 0.15798548),
    }
    for kind, values in expected.items():
        for mine, theirs, value in zip(policy, reference, values, strict=True):
            given = {"policy": (mine,), "behavior": (mine,), "engine": (mine,)}
            row = given | {"reference": (theirs,), "advantage": (0.0,)}
            loss, _, _ = cases.evaluate(penalised(kind(beta=1.0)), batch_of([row]), groups=1)
            np.testing.assert_allclose(loss, value, rtol=1e-2)


def test_tunix_grpo_compute_advantages():
    """Theirs divides by the deviation of a sample, ours by that of the group: sqrt(3 / 2) more."""
    with jax.threefry_partitionable(False):
        given = np.array(jax.random.uniform(jax.random.PRNGKey(0), (6,)))
    ours = [
        rewards.group_advantages(group.tolist(), rewards.GroupNormalised())
        for group in given.reshape(2, 3)
    ]
    theirs = (0.307498, -1.117636, 0.810138, 1.094526, -0.228671, -0.865855)
    np.testing.assert_allclose(np.concatenate(ours), np.sqrt(1.5) * np.array(theirs), rtol=2e-3)


def test_tunix_grpo_loss_fn_packed_equals_unpacked():
    """Responses of three and of one token, advantages 1.5 and 3: a mean of two means, -2.25,
    whether they share a row or not.
    """
    grpo = objectives.grpo_objective(group_size=2, beta=0.0)
    batch = batch_of([{n: (0.0,) * 4 for n in ("policy", "behavior", "engine", "reference")}
                      | {"advantage": (1.5, 1.5, 1.5, 3.0)}])  # fmt: skip
    batch["segment_ids"] = np.array([[1, 1, 1, 1, 2]], np.int32)
    packed, _, _ = cases.evaluate(grpo, batch, groups=1)
    np.testing.assert_allclose(packed, -2.25, rtol=1e-6)
    rows = {name: np.concatenate([value, value]) for name, value in batch.items()}
    rows["loss_mask"][0, 4] = False
    rows["loss_mask"][1, :4] = False
    rows["segment_ids"][:] = 1
    apart, _, _ = cases.evaluate(grpo, rows, groups=1)
    np.testing.assert_allclose(apart, -2.25, rtol=1e-6)
