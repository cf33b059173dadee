"""Every objective against its paper's equation in float64, loss and gradient."""

import functools
import json
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import jax.numpy as jnp
import numpy as np
import pytest

from loong_jax import configs
from loong_jax.errors import ConfigError
from loong_jax.rl import objectives
from tests.rl.objectives import by_hand, cases

PAGE = (Path(__file__).parents[3] / "docs/reference/objectives.md").read_text()
P, G, T = 2, 4, 11  # groups, rollouts of a group, T_max
MEANS = {"groups": P, "size": G}
OURS = {
    "longcat": objectives.longcat_objective(group_size=G, max_response_tokens=T),
    "longcat_tight": objectives.longcat_objective(
        group_size=G,
        max_response_tokens=T,
        clip=objectives.TripletClip(eps_neg_low=0.45, eps_neg_high=1.35, eps_pos_high=0.15),
        ratio=objectives.TokenRatio(engine_cap=1.1),
    ),
    "grpo": objectives.grpo_objective(group_size=G),
    "dr_grpo": objectives.dr_grpo_objective(group_size=G, max_response_tokens=T),
    "dapo": objectives.dapo_objective(),
    "gspo": objectives.gspo_objective(group_size=G),
    "gspo_wide": objectives.gspo_objective(group_size=G, eps_low=0.3, eps_high=0.4),
    "gspo_token": objectives.gspo_token_objective(group_size=G),
    "cispo": objectives.cispo_objective(),
    "cispo_both": objectives.cispo_objective(low=0.5, high=2.0),
    "dual_clip": objectives.dual_clip_objective(group_size=G),
    "decoupled_ppo": objectives.decoupled_ppo_objective(),
}
BY_HAND = {
    "longcat": functools.partial(by_hand.longcat, **MEANS, limit=T),
    "longcat_tight": functools.partial(
        by_hand.longcat, **MEANS, limit=T, cap=1.1, low=0.55, high=1.35, pos_high=1.15
    ),
    "grpo": functools.partial(by_hand.grpo, **MEANS),
    "dr_grpo": functools.partial(by_hand.dr_grpo, **MEANS, limit=T),
    "dapo": by_hand.dapo,
    "gspo": functools.partial(by_hand.gspo, **MEANS),
    "gspo_wide": functools.partial(by_hand.gspo, **MEANS, low=0.3, high=0.4),
    "gspo_token": functools.partial(by_hand.gspo_token, **MEANS),
    "cispo": by_hand.cispo,
    "cispo_both": functools.partial(by_hand.cispo, low=0.5, high=2.0),
    "dual_clip": functools.partial(by_hand.dual_clip, **MEANS),
    "decoupled_ppo": by_hand.decoupled_ppo,
}
BASE = objectives.longcat_objective(group_size=G, max_response_tokens=T)
PLAIN = objectives.token_tis(BASE, cap=float("inf"))
CORRECTED = {
    "token_tis": (objectives.token_tis(BASE, cap=1.95), lambda r: by_hand.token_tis(r, 1.95)),
    "sequence_tis": (objectives.sequence_tis(BASE), by_hand.sequence_tis),
    "token_mis": (objectives.token_mis(BASE), by_hand.token_mis),
    "sequence_mis": (
        objectives.sequence_mis(BASE, low=0.2),
        lambda r: by_hand.sequence_mis(r, 0.2),
    ),
    "uncapped": (PLAIN, by_hand.engine_ratios),
    "geometric": (
        objectives.geometric_mask(BASE, low=0.8, high=1.7),
        lambda r: [
            keep * weight
            for keep, weight in zip(
                by_hand.geometric_mask(r, 0.8, 1.7), by_hand.token_tis(r), strict=True
            )
        ],
    ),
    "veto": (
        objectives.veto(objectives.token_mis(BASE), below=0.4),
        lambda r: [
            keep * weight
            for keep, weight in zip(by_hand.veto(r, 0.4), by_hand.token_mis(r), strict=True)
        ],
    ),
}  # fmt: skip


AS_PUBLISHED = {
    "longcat": ("GroupNormalised", objectives.TokenRatio(engine_cap=2.0)),
    "grpo": ("GroupNormalised", objectives.TokenRatio(engine_cap=None)),
    "dr_grpo": ("MeanOnly", objectives.TokenRatio(engine_cap=None)),
    "dapo": ("GroupNormalised", objectives.TokenRatio(engine_cap=None)),
    "gspo": ("GroupNormalised", objectives.SequenceRatio()),
    "gspo_token": ("GroupNormalised", objectives.SequenceTokenRatio()),
    "cispo": ("GroupNormalised", objectives.TokenRatio(engine_cap=None)),
    "dual_clip": ("GroupNormalised", objectives.TokenRatio(engine_cap=None)),
    "decoupled_ppo": ("GroupNormalised", objectives.DecoupledRatio(engine_cap=5.0)),
}


@pytest.mark.parametrize("name", AS_PUBLISHED)
def test_signal_and_ratio_are_those_of_the_page_and_survive_json(name):
    """Clip and reduction show in the losses below; what the signal is does not."""
    signal, ratio = AS_PUBLISHED[name]
    assert type(OURS[name].signal).__name__ == signal
    assert OURS[name].ratio == ratio
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{name}_objective`"))
    parts = (OURS[name].ratio, OURS[name].clip, OURS[name].reduction)
    for part in (signal, *(type(part).__name__ for part in parts)):
        assert f"`{part}`" in row
    assert configs.from_json(json.loads(json.dumps(configs.to_json(OURS[name])))) == OURS[name]


def test_a_config_that_was_written_before_there_were_modules_still_reads():
    kind = "rl.objectives."
    saved = {
        "_kind": f"{kind}Objective",
        "signal": {"_kind": "rl.advantages.GroupNormalised", "eps": 1e-4},
        "ratio": {"_kind": f"{kind}TokenRatio", "engine_cap": 2.0, "max_log_ratio": 20.0},
        "clip": {"_kind": f"{kind}TripletClip"},
        "reduction": {
            "_kind": f"{kind}TokenSumOverConstant", "group_size": G, "max_response_tokens": T,
        },
        "kl": None,
    }  # fmt: skip
    assert configs.from_json(saved) == OURS["longcat"]


def check(objective, reference, made, places_seed):
    """Loss, and the gradient at some tokens; tokens that do not train have none."""
    batch, starts = cases.packed(made)
    loss, gradient, _ = cases.evaluate(objective, batch, groups=P)
    np.testing.assert_allclose(loss, reference(made, made), rtol=2e-5, atol=1e-6)
    assert not np.any(gradient[~batch["loss_mask"]])
    tokens = [(i, t) for i, r in enumerate(made) for t in range(len(r))]
    if not tokens:
        return
    random = np.random.default_rng(places_seed)
    chosen = [tokens[k] for k in random.choice(len(tokens), min(6, len(tokens)), replace=False)]
    found = [gradient[starts[i][0], starts[i][1] + t] for i, t in chosen]
    np.testing.assert_allclose(
        found, by_hand.gradient(reference, made, chosen), rtol=2e-4, atol=2e-7
    )


@pytest.mark.parametrize("name", OURS)
@hypothesis.settings(max_examples=20)
@hypothesis.given(seed=st.integers(0, 2**31), small=st.booleans())
def test_loss_and_gradient_are_those_of_the_equation(name, seed, small):
    made = cases.responses(seed, small_moves=small or name in ("gspo", "gspo_token"))
    check(OURS[name], BY_HAND[name], made, seed)


@pytest.mark.parametrize("name", CORRECTED)
@hypothesis.settings(max_examples=15)
@hypothesis.given(seed=st.integers(0, 2**31))
def test_corrections_of_the_engine_gap(name, seed):
    objective, weigh = CORRECTED[name]
    reference = functools.partial(by_hand.longcat, **MEANS, limit=T, weigh=weigh)
    check(objective, reference, cases.responses(seed), seed)


def test_gspo_token_is_gspo_where_a_response_has_one_advantage():
    for seed in range(5):
        batch, _ = cases.packed(cases.responses(seed, small_moves=True))
        one = cases.evaluate(OURS["gspo"], batch, groups=P)
        other = cases.evaluate(OURS["gspo_token"], batch, groups=P)
        np.testing.assert_allclose(one[0], other[0], rtol=1e-5)
        np.testing.assert_allclose(one[1], other[1], rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("name", OURS)
def test_on_policy_all_are_reinforce_with_their_own_weights(name):
    """At ratio 1 no clip acts: the gradient of -sum(w A log pi), where w is the reduction's."""
    made = cases.responses(3)
    for r in made:
        r.behavior = r.engine = r.proximal = r.reference = r.policy
    batch, starts = cases.packed(made)
    _, gradient, _ = cases.evaluate(OURS[name], batch, groups=P)
    total = sum(map(len, made))
    for r, (row, start) in zip(made, starts, strict=True):
        reduction = OURS[name].reduction
        if isinstance(reduction, objectives.MeanOfSequenceMeans):
            weight = 1 / (P * G * max(len(r), 1))
        elif isinstance(reduction, objectives.TokenSumOverConstant):
            weight = 1 / (P * G * T)
        else:
            weight = 1 / total
        expected = -weight * np.array(r.advantage)
        found = gradient[row, start : start + len(r)]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-9)


EVERY = OURS | {name: objective for name, (objective, _) in CORRECTED.items()}


@pytest.mark.parametrize("name", EVERY)
def test_neither_packing_nor_microbatches_change_loss_or_gradient(name):
    made = cases.responses(7)
    whole, starts = cases.packed(made)
    loss, gradient, sums = cases.evaluate(EVERY[name], whole, groups=P)
    apart, alone = cases.packed(made, rows=len(made), alone=True)
    other, moved, _ = cases.evaluate(EVERY[name], apart, groups=P)
    np.testing.assert_allclose(other, loss, rtol=1e-5)
    for r, (row, start), (own, first) in zip(made, starts, alone, strict=True):
        np.testing.assert_allclose(
            moved[own, first : first + len(r)],
            gradient[row, start : start + len(r)],
            rtol=1e-5,
            atol=1e-9,
        )
    tokens = whole["loss_mask"].sum()
    halves = [
        cases.evaluate(
            EVERY[name],
            {key: value[rows] for key, value in apart.items()},
            groups=P,
            num_tokens=tokens,
        )
        for rows in (slice(0, None, 2), slice(1, None, 2))
    ]
    np.testing.assert_allclose(sum(half[0] for half in halves), loss, rtol=1e-5)
    added = halves[0][2].add(halves[1][2])
    for found, expected in zip(added, sums, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("name", EVERY)
def test_nothing_to_train_on_is_zero_with_a_zero_gradient(name):
    batch, _ = cases.packed(cases.responses(8))
    batch["loss_mask"] = np.zeros_like(batch["loss_mask"])
    for key in ("policy_logprob", "engine_logprob", "proximal_logprob", "reference_logprob"):
        batch[key] = np.full_like(batch[key], np.nan)
    loss, gradient, sums = cases.evaluate(EVERY[name], batch, groups=P)
    assert loss == 0
    assert not np.any(gradient)
    assert objectives.summarise(sums)["engine_ratio/refused"] == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", EVERY)
def test_a_value_that_is_not_finite_spoils_its_own_token_alone(name, bad):
    """It weighs nothing, is in no mean over its response, and stays in the denominator."""
    made = cases.responses(9)
    whole, starts = cases.packed(made)
    row, start = starts[max(range(len(made)), key=lambda i: len(made[i]))]
    for key in ("policy_logprob", "engine_logprob", "proximal_logprob", "behavior_logprob"):
        spoiled = whole | {key: whole[key].copy()}
        spoiled[key][row, start] = bad
        loss, gradient, sums = cases.evaluate(EVERY[name], spoiled, groups=P)
        assert np.isfinite(loss)
        assert np.all(np.isfinite(gradient))
        if float(sums.num_dropped):
            assert float(sums.num_dropped) == 1
            assert gradient[row, start] == 0
            if isinstance(EVERY[name].reduction, objectives.TokenSumOverConstant):
                without = whole | {"loss_mask": whole["loss_mask"].copy()}
                without["loss_mask"][row, start] = False
                expected = cases.evaluate(EVERY[name], without, groups=P)
                np.testing.assert_allclose(loss, expected[0], rtol=1e-6)
                np.testing.assert_allclose(gradient, expected[1])
        else:  # a value that this objective does not read
            assert loss == cases.evaluate(EVERY[name], whole, groups=P)[0]


def test_what_an_objective_lacks_is_named():
    batch, _ = cases.packed(cases.responses(0))
    batch = {key: jnp.asarray(value) for key, value in batch.items()}
    rest = {key: value for key, value in batch.items() if key != "proximal_logprob"}
    with pytest.raises(ValueError, match="proximal_logprob"):
        objectives.policy_loss(OURS["decoupled_ppo"], **rest, num_groups=P, num_tokens=3)
    with pytest.raises(ValueError, match="num_tokens"):
        objectives.policy_loss(OURS["dapo"], **rest, num_groups=P)
    alone = {key: value for key, value in batch.items() if key != "reference_logprob"}
    with pytest.raises(ValueError, match="reference_logprob"):
        objectives.policy_loss(OURS["grpo"], **alone, num_groups=P)
    schedule = objectives.LinearBound(end=0.1, num_steps=5)
    clip = objectives.TripletClip(pos_high_schedule=schedule)
    led = objectives.longcat_objective(group_size=G, max_response_tokens=T, clip=clip)
    with pytest.raises(ValueError, match="step"):
        objectives.policy_loss(led, **rest, num_groups=P)
    with pytest.raises(ValueError, match="logprob"):
        objectives.clipped_gain(batch["advantage"], batch["advantage"], OURS["cispo"].clip)


def test_every_objective_has_a_name_and_takes_the_sizes_of_its_stage():
    made = {
        name: objectives.objective_of(name, group_size=4, max_response_tokens=7)
        for name in objectives.OBJECTIVES
    }
    sizes = [getattr(objective.reduction, "group_size", 4) for objective in made.values()]
    lengths = [getattr(o.reduction, "max_response_tokens", 7) for o in made.values()]
    assert set(sizes) == {4}
    assert set(lengths) == {7}
    assert len(set(made.values())) == len(made)
    functions = [name for name in vars(objectives) if name.endswith("_objective")]
    assert len(made) == len(functions) + 1  # GRPO with and without its penalty
    assert (made["grpo"].kl, made["grpo-kl"].kl) == (None, objectives.K3KL(beta=0.01))
    with pytest.raises(ConfigError, match="longcat, grpo, "):
        objectives.objective_of("ppo", group_size=4, max_response_tokens=7)
