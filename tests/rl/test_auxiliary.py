"""Auxiliary losses in the supervised step: what they add, whom they reach, what a mesh changes."""

import dataclasses
import functools
import itertools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from loong_jax.data.tokenizer import AsciiTokenizer
from loong_jax.errors import ConfigError
from loong_jax.models import moe
from loong_jax.models.moe.balance import BiasController, DeviceBalance
from loong_jax.rl import auxiliary, checkpoint, logprobs, optimizers, sft, trainer
from loong_jax.rl.auxiliary import AuxiliaryLosses
from loong_jax.rl.policy_model import longcat_policy
from loong_jax.sharding import ShardingRules, make_mesh
from tests.doubles import tiny

CONFIG = tiny.smallest_config(num_mtp_layers=1, num_layers=1)
ALL = AuxiliaryLosses(mtp=0.5, balance=DeviceBalance(num_groups=2, weight=0.3), hidden_z=1e-3)
LAW = BiasController(rate=0.01)
PID = BiasController(rate=0.01, proportional=0.02, derivative=0.01)
OPTIMIZER = optimizers.AdamW(schedule=optimizers.WarmupConstant(peak=3e-3))
ENCODE = sft.pair_encoder(AsciiTokenizer())
SETTINGS = sft.SftSettings(
    optimizer=OPTIMIZER, num_steps=8, rows=4, row_length=32, routing_every=4
)  # fmt: skip


def pairs():
    for n in itertools.count():
        yield f"{n % 7}+1=", f"{n % 7 + 1} one more"


@functools.cache
def fresh():
    return moe.init_weights(CONFIG, jax.random.key(0))


@functools.cache
def batch():
    found, _ = next(sft.batches(pairs(), ENCODE, SETTINGS))
    return {name: jnp.asarray(array) for name, array in found.items()}


def policy(losses=auxiliary.NONE, bias=LAW, **kwargs):
    return longcat_policy(fresh()[0], CONFIG, bias, losses, **kwargs)


@functools.cache
def loss_and_gradient(losses):
    function = functools.partial(sft.sft_loss, model=policy(losses))
    return jax.device_get(jax.jit(jax.value_and_grad(function, has_aux=True))(fresh()[1], batch()))


def norm(tree):
    return np.sqrt(sum(np.sum(np.square(a)) for a in jax.tree.leaves(tree)))


def test_the_loss_is_the_models_own_and_the_weighted_terms():
    (plain, (_, own)), _ = loss_and_gradient(auxiliary.NONE)
    (total, (_, metrics)), _ = loss_and_gradient(ALL)
    assert set(own) == {"loss"}
    assert float(own["loss"]) == float(plain) == pytest.approx(float(metrics["loss"]), rel=1e-6)
    added = 0.5 * metrics["mtp/loss"] + metrics["balance_loss"] + metrics["hidden_z_loss"]
    assert float(total) == pytest.approx(float(plain + added), rel=1e-6)
    assert min(float(metrics[name]) for name in ("balance_loss", "hidden_z_loss")) > 0
    assert abs(float(metrics["mtp/loss"]) - np.log(CONFIG.vocab_size)) < 1


def test_the_loss_of_drafts_is_the_mean_nll_of_the_token_after_the_next():
    graph, weights = fresh()
    rows = batch()
    where = {name: rows[name] for name in ("positions", "segment_ids")}

    @jax.jit
    def log_probabilities_and_loss(weights):
        model = nnx.merge(graph, nnx.State(weights))
        output = model(rows["tokens"], **where)
        following = jnp.pad(rows["tokens"], ((0, 0), (0, 1)))[:, 1:]
        logits, _ = model.draft(output.hidden, following, **where)
        return jax.nn.log_softmax(logits, axis=-1), auxiliary.draft_loss(model, output, rows)[0]

    log_p, loss = jax.device_get(log_probabilities_and_loss(weights))
    tokens, segments, mask = (
        np.asarray(rows[name]) for name in ("tokens", "segment_ids", "loss_mask")
    )
    found = [
        log_p[b, i, tokens[b, i + 2]]
        for b, i in np.ndindex(len(tokens), tokens.shape[1] - 2)
        if segments[b, i] > 0 and len({*segments[b, i : i + 3]}) == 1 and mask[b, i + 2]
    ]
    assert found
    assert float(loss) == pytest.approx(-np.mean(found), rel=1e-5)


def test_each_gradient_reaches_what_its_term_is_about():
    _, plain = loss_and_gradient(auxiliary.NONE)
    _, added = loss_and_gradient(ALL)
    assert norm(plain["mtp"]) == 0
    assert min(map(norm, jax.tree.leaves(added["mtp"]))) > 0
    for name in ("router", "attention_0"):
        before, after = (g["layers"][name] for g in (plain, added))
        assert norm(jax.tree.map(np.subtract, before, after)) > 1e-3 * norm(before)


@pytest.mark.release
def test_without_weights_the_step_is_the_step_without_them():
    """The program of a step has no term in it, and the head is left alone."""
    assert not AuxiliaryLosses(mtp=0.0, hidden_z=0.0, balance=None).are_any
    assert policy(auxiliary.NONE).forward_with_losses is None
    step = sft.make_train_step(policy(), OPTIMIZER)
    state, metrics, _ = step(trainer.initial_state(policy(), OPTIMIZER, fresh()[1]), (batch(),))
    assert set(metrics) == {"loss", "grad_norm", "learning_rate"}
    jax.tree.map(np.testing.assert_array_equal, state.weights["mtp"], fresh()[1]["mtp"])


@pytest.fixture(scope="module")
def whole():
    """Eight steps with everything on, the metrics of each, and the state after the third."""
    model, seen, third = policy(ALL, PID), [], []

    def look(state, cursor, metrics):
        seen.append(metrics)
        if int(state.step) == 3:
            third.append((jax.tree.map(np.asarray, trainer.to_arrays(state)), cursor))

    start = trainer.initial_state(model, OPTIMIZER, fresh()[1])
    state, _ = sft.run(model, SETTINGS, start, pairs(), ENCODE, on_step=look)
    return state, seen, third[0]


def test_training_lowers_the_losses_and_looks_at_the_routers_when_due(whole):
    _, seen, _ = whole
    for name in ("loss", "mtp/loss"):
        assert seen[-1][name] < seen[0][name] - 0.2
    due = [i + 1 for i, numbers in enumerate(seen) if "router/stability_ratio" in numbers]
    assert due == [4, 8]
    assert 0 < seen[3]["router/stability_ratio"] < 1e3
    assert abs(seen[3]["router/row_cosine"]) < 0.5
    assert all(0 <= numbers["mtp/greedy_acceptance"] <= 1 for numbers in seen)


def test_a_resumed_run_has_the_controllers_memory(whole, tmp_path):
    state, _, (arrays, cursor) = whole
    model = policy(ALL, PID)
    assert float(jnp.abs(state.memory.error).max()) > 0
    checkpoint.save(tmp_path, 3, arrays)
    found = checkpoint.restore(tmp_path).arrays
    third = trainer.from_arrays(model, OPTIMIZER, fresh()[1], found)
    resumed, _ = sft.run(model, SETTINGS, third, pairs(), ENCODE, cursor=cursor)
    jax.tree.map(np.testing.assert_array_equal, resumed, state)


def test_lists_and_chunks_change_no_loss_and_make_no_whole_logits(monkeypatch):
    words, settings = 1100, dataclasses.replace(SETTINGS, row_length=64)
    config = dataclasses.replace(CONFIG, vocab_size=words)
    graphdef, weights = moe.init_weights(config, jax.random.key(0))
    model = longcat_policy(graphdef, config, LAW, ALL)
    (packed, _), *_ = sft.batches(itertools.islice(pairs(), 40), ENCODE, settings)
    (rows,) = sft.micro_batches(packed, 1, lists=True)
    rows = jax.tree.map(jnp.asarray, rows)
    plain = {name: a for name, a in rows.items() if name != "predicted"}
    gradient_of = jax.value_and_grad(functools.partial(sft.sft_loss, model=model), has_aux=True)
    (expected, (_, terms)), other = jax.jit(gradient_of)(weights, plain)
    monkeypatch.setattr(logprobs, "CHUNK_LOGITS", 7 * words)
    program = jax.jit(gradient_of).lower(weights, rows).compile()
    (loss, (_, found)), gradient = program(weights, rows)
    assert float(loss) == pytest.approx(float(expected), rel=1e-6)
    for name, value in terms.items():
        assert float(found[name]) == pytest.approx(float(value), rel=1e-5), name
    for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * max(abs(b).max(), 1e-3))
    sizes = [
        math.prod(map(int, shape.split(",")))
        for shape in re.findall(r"f32\[([\d,]+)\]", program.as_text())
        if str(words) in shape.split(",")
    ]
    assert max(sizes) == words * config.hidden_size < words * rows["tokens"].size


@functools.cache
def on_mesh():
    """Policy, weights and batch on eight devices."""
    rules = ShardingRules(mesh=make_mesh(data=2, expert=2, context=2))
    graphdef, placed = tiny.on_mesh(CONFIG, rules, fresh()[1])
    cut = rules.spec("act_batch", "act_keys")
    rows = {name: jax.device_put(array, cut) for name, array in batch().items()}
    return rules.mesh, longcat_policy(graphdef, CONFIG, LAW, ALL), placed, rows


def test_a_mesh_changes_no_loss():
    mesh, model, weights, rows = on_mesh()
    with jax.set_mesh(mesh):
        total, (_, found) = jax.jit(functools.partial(sft.sft_loss, model=model))(weights, rows)
    (expected_total, (_, expected)), _ = loss_and_gradient(ALL)
    assert float(total) == pytest.approx(float(expected_total), rel=1e-5)
    for name, value in expected.items():
        assert float(found[name]) == pytest.approx(float(value), rel=1e-4), name


@pytest.mark.parametrize(("factor", "overflows"), [(0.25, True), (8.0, False)])
def test_choices_that_wait_for_a_later_round_are_a_metric(factor, overflows):
    rules = ShardingRules(mesh=make_mesh(expert=2))
    config = dataclasses.replace(CONFIG, exchange=moe.PaddedExchange(buffer_factor=factor))
    graphdef, weights = tiny.on_mesh(config, rules, fresh()[1])
    model = longcat_policy(graphdef, config, LAW, watches_exchange=True)
    with jax.set_mesh(rules.mesh):
        output, added, metrics = jax.jit(model.forward_with_losses)(weights, batch())
    assert float(added) == 0
    assert set(metrics) == {"exchange/overflowed_share"}
    share = float(metrics["exchange/overflowed_share"])
    waited = share * float(output.load[:, : config.num_experts].sum())
    assert waited == pytest.approx(round(waited), abs=1e-3)
    assert 0.3 < share < 1 if overflows else share == 0


@pytest.mark.slow
def test_a_mesh_changes_no_gradient_and_no_metric_of_the_routers():
    mesh, model, weights, rows = on_mesh()
    with jax.set_mesh(mesh):
        loss = functools.partial(sft.sft_loss, model=model)
        gradient, _ = jax.jit(jax.grad(loss, has_aux=True))(weights, rows)
        looked = sft.make_routing_metrics(model)(weights, rows)
    _, expected = loss_and_gradient(ALL)
    for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-4 * max(abs(b).max(), 1e-3))
    alone = sft.make_routing_metrics(policy(ALL))(fresh()[1], batch())
    for name, value in alone.items():
        assert float(looked[name]) == pytest.approx(float(value), rel=1e-3), name


def test_rates_of_a_narrower_model_scale_steps_and_no_decay():
    proxy = tiny.smallest_config(num_mtp_layers=1, hidden_size=16)
    optimizer = optimizers.AdamW(schedule=OPTIMIZER.schedule, weight_decay=0.1)
    weights = fresh()[1]

    def moved(**kwargs):
        model = policy(**kwargs)

        @jax.jit
        def update(weights, gradient, load):
            state = trainer.initial_state(model, optimizer, weights)
            state, _ = trainer.apply_gradient(
                state, gradient, load, model=model, optimizer=optimizer
            )
            return jax.tree.map(jnp.subtract, state.weights, weights)

        _, gradient = loss_and_gradient(auxiliary.NONE)
        return update(weights, gradient, jnp.ones((1, CONFIG.num_targets), jnp.int32))

    plain, scaled = moved(), moved(rates_of=proxy)
    decay = {name: -3e-3 * 0.1 * weights[name] for name in ("head", "embedding")}
    for name, factor in (("head", 0.5), ("embedding", 1.0)):
        np.testing.assert_allclose(
            scaled[name] - decay[name], factor * (plain[name] - decay[name]), atol=1e-6
        )
    muon = optimizers.Muon(schedule=OPTIMIZER.schedule)
    with pytest.raises(ConfigError, match="Use AdamW"):
        trainer.initial_state(policy(rates_of=proxy), muon, weights)


def test_what_does_not_fit_is_refused():
    for weights in ({"mtp": -1.0}, {"mtp": float("nan")}, {"hidden_z": float("inf")}):
        with pytest.raises(ConfigError, match=r"is not in \[0, inf\)"):
            AuxiliaryLosses(**weights)
    with pytest.raises(ConfigError, match="num_mtp_layers=0"):
        AuxiliaryLosses(mtp=0.1).refuse_misfit(tiny.smallest_config())
    with pytest.raises(ConfigError, match="num_groups=3"):
        AuxiliaryLosses(balance=DeviceBalance(num_groups=3, weight=1.0)).refuse_misfit(CONFIG)
