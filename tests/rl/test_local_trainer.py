import queue
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from loong_jax import checksums
from loong_jax.errors import ConfigError
from loong_jax.rl import events, local_trainer, objectives, optimizers, trainer
from loong_jax.rollout.versions import VersionError, VersionStore
from tests.doubles.toy_policy import toy_group, toy_policy, toy_weights

TIMEOUT_S = 60.0


def make_store(weights_by_version):
    store = VersionStore(max_staleness=6)
    for version, weights in sorted(weights_by_version.items()):
        store.put(version, weights)
    return store


def holders(store):
    return [name for names in store.holders().values() for name in names]


def settings(**changes):
    return local_trainer.TrainerSettings(
        **{
            "objective": objectives.longcat_objective(group_size=4, max_response_tokens=9),
            "optimizer": optimizers.AdamW(schedule=optimizers.WarmupConstant(peak=0.01)),
            "max_staleness": 2,
            "row_length": 32,
            "rows": 3,
            "score_rows": 2,
        }
        | changes
    )


def make(tmp_path, state=None, store=None, chosen=None, model=None, starts=True, **kwargs):
    chosen = chosen or settings()
    state = state or trainer.initial_state(toy_policy(), chosen.optimizer, toy_weights())
    store = store or make_store({0: toy_weights()})
    worker = local_trainer.LocalTrainer(
        model=model or toy_policy(),
        settings=chosen,
        state=state,
        versions=store,
        checkpoints=tmp_path,
        **kwargs,
    )
    heard = queue.Queue()
    if starts:
        worker.start(heard.put)
    return worker, store, heard


def get(heard, kind):
    event = heard.get(timeout=TIMEOUT_S)
    assert isinstance(event, kind), event
    assert not hasattr(event, "start_s") or event.end_s >= event.start_s
    return event


def groups(step, seed=0):
    return [
        toy_group(4 * step + n, (1.0, 0.0, None, 0.0), version=step, seed=seed) for n in range(3)
    ]


def one_step(worker, heard, step):
    """What the orchestrator commands for one step at staleness 0."""
    worker.score(groups(step - 1))
    scored = get(heard, events.GroupsScored)
    worker.train(step, scored.groups)
    trained = get(heard, events.StepTrained)
    worker.publish(step)
    get(heard, events.VersionPublished)
    return scored, trained


def test_commands_are_carried_out_in_order(tmp_path):
    worker, store, heard = make(tmp_path)
    scored, trained = one_step(worker, heard, 1)
    assert [g.ticket.number for g in scored.groups] == [0, 1, 2]
    assert trained.step == 1
    assert trained.metrics["staleness/histogram"] == {"0": 12}
    assert trained.metrics["rewards/mean"] == pytest.approx(1 / 3)
    assert trained.metrics["ratio/mean_by_lag"]["0"] == pytest.approx(1, abs=1e-5)
    assert jnp.any(store.get(1)["head"] != store.get(0)["head"])
    assert holders(store) == []
    one_step(worker, heard, 2)  # published buffers survive the donation of the next step
    assert checksums.of_all(jax.tree.leaves(store.get(1))) == store.leaf_checksums(1)
    worker.close(TIMEOUT_S)
    assert not any(t.name == "trainer" and t.is_alive() for t in threading.enumerate())


def test_each_group_is_scored_under_its_own_version(tmp_path):
    store = make_store({0: toy_weights(0), 1: toy_weights(1)})
    worker, store, heard = make(tmp_path, store=store)
    both = [toy_group(7, (1.0, 0.0), version=1), toy_group(8, (1.0, 0.0), version=0)]
    worker.score(both)
    scored = get(heard, events.GroupsScored).groups
    worker.close(TIMEOUT_S)
    for group in scored:
        weights = store.get(group.version)
        for rollout in group.rollouts:
            tokens = np.concatenate([rollout.prompt, rollout.tokens])[None]
            positions = np.arange(tokens.shape[1])[None]
            row = dict(tokens=tokens, positions=positions, segment_ids=np.ones_like(tokens))
            logits_of = toy_policy().logits(weights, tokens.size)
            logits = logits_of(toy_policy().states(weights, row)[0][0])
            logprob = np.asarray(jax.nn.log_softmax(logits))
            head = len(rollout.prompt)
            expected = [
                logprob[head + t - 1, token] for t, token in enumerate(rollout.tokens.tolist())
            ]
            np.testing.assert_allclose(rollout.behavior_logprob, expected, rtol=1e-5)


def test_scores_do_not_depend_on_what_is_scored_with_them(tmp_path):
    worker, _, heard = make(tmp_path)
    worker.score(groups(0))
    together = get(heard, events.GroupsScored).groups
    for group in reversed(groups(0)):
        worker.score([group])
    apart = [get(heard, events.GroupsScored).groups[0] for _ in range(3)][::-1]
    worker.close(TIMEOUT_S)
    for one, other in zip(together, apart, strict=True):
        for a, b in zip(one.rollouts, other.rollouts, strict=True):
            np.testing.assert_array_equal(a.behavior_logprob, b.behavior_logprob)


def test_a_step_at_staleness_0_needs_no_scores(tmp_path):
    """The step makes the behaviour's log-probabilities anyway: ratios are 1, and weights equal."""
    scored, _, heard = make(tmp_path / "a")
    _, expected = one_step(scored, heard, 1)
    worker, _, heard = make(tmp_path / "b", chosen=settings(max_staleness=0, scores_in_step=True))
    untouched, trained = one_step(worker, heard, 1)
    for group, found in zip(groups(0), untouched.groups, strict=True):
        for a, b in zip(group.rollouts, found.rollouts, strict=True):
            np.testing.assert_array_equal(a.behavior_logprob, b.behavior_logprob)
    assert trained.metrics["ratio/mean_by_lag"] == {"0": 1.0}
    for name in ("loss", "grad_norm", "engine_ratio/max"):
        assert trained.metrics[name] == pytest.approx(expected.metrics[name], rel=1e-4), name
    worker.train(2, groups(0))  # of the version before
    assert "than the step scores by" in get(heard, events.WorkerFailed).error
    for one in (scored, worker):
        one.close(TIMEOUT_S)
    a, b = (jax.tree.leaves(one.weights) for one in (scored, worker))
    for one, other in zip(a, b, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_a_version_stays_alive_while_it_waits_to_be_scored(tmp_path):
    worker, store, heard = make(tmp_path, starts=False)
    worker.score(groups(0))
    assert len(holders(store)) == 1
    assert not store.retire(0)
    worker.start(heard.put)
    get(heard, events.GroupsScored)
    assert store.holders() == {}
    worker.close(TIMEOUT_S)


def test_a_version_that_is_gone_is_refused_and_nothing_stays_held(tmp_path):
    worker, store, _ = make(tmp_path)
    with pytest.raises(VersionError, match="version 3"):
        worker.score([toy_group(0, (1.0, 0.0)), toy_group(1, (1.0, 0.0), version=3)])
    assert holders(store) == []
    worker.close(TIMEOUT_S)


def refused():
    raise ConfigError("own.py:Mine gave 7. Return 8.")


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (lambda w: w.train(5, groups(0)), "AssertionError"),
        (lambda w: w.publish(3), "AssertionError"),
        (lambda w: w.save(2, {}), "AssertionError"),
        (lambda w: w.train(1, []), "ValueError"),
        (lambda w: w._commands.put(("train", refused)), "own.py:Mine"),
    ],
)
def test_failures_are_events_and_nothing_runs_after_them(tmp_path, command, error):
    worker, _, heard = make(tmp_path)
    command(worker)
    assert get(heard, events.WorkerFailed).error.startswith(error)
    worker.train(1, groups(0))
    assert "not run" in get(heard, events.WorkerFailed).error
    worker.close(TIMEOUT_S)


def test_close_names_a_trainer_that_does_not_end(tmp_path):
    worker, _, _ = make(tmp_path)
    release = threading.Event()
    worker._commands.put(("wait", lambda: release.wait(TIMEOUT_S)))
    with pytest.raises(TimeoutError, match="still busy"):
        worker.close(0.05)
    release.set()
    worker._thread.join(TIMEOUT_S)


def test_resume_equals_uninterrupted_bit_for_bit(tmp_path):
    worker, store, heard = make(tmp_path / "a")
    for step in range(1, 5):
        one_step(worker, heard, step)
    worker.close(TIMEOUT_S)
    whole = store.get(4)

    worker, store, heard = make(tmp_path / "b")
    for step in (1, 2):
        one_step(worker, heard, step)
    control = {"versions": [1, 2], "buffer": {"tokens": np.arange(3)}, "counts": (1, None)}
    worker.save(2, control)
    assert get(heard, events.Saved).step == 2
    one_step(worker, heard, 3)  # lost: after the checkpoint
    worker.close(TIMEOUT_S)

    state, versions, again, skipped = local_trainer.restore(
        toy_policy(), settings(), toy_weights(), tmp_path / "b"
    )
    assert sorted(versions) == [1, 2]
    assert skipped == ()
    np.testing.assert_array_equal(again["buffer"]["tokens"], [0, 1, 2])
    assert again["counts"] == [1, None]
    jax.tree.map(np.testing.assert_array_equal, versions[1], store.get(1))
    worker, resumed, heard = make(tmp_path / "b", state=state, store=make_store(versions))
    for step in (3, 4):
        one_step(worker, heard, step)
    worker.close(TIMEOUT_S)
    jax.tree.map(np.testing.assert_array_equal, resumed.get(4), whole)


def test_the_bound_in_force_is_a_metric(tmp_path):
    clip = objectives.TripletClip(
        eps_pos_high=0.3, pos_high_schedule=objectives.LinearBound(end=0.1, num_steps=2)
    )
    objective = objectives.longcat_objective(group_size=4, max_response_tokens=9, clip=clip)
    worker, _, heard = make(tmp_path, chosen=settings(objective=objective))
    found = [one_step(worker, heard, step)[1].metrics["clip/eps_pos_high"] for step in (1, 2, 3)]
    assert found == pytest.approx([0.3, 0.2, 0.1])
    worker.close(TIMEOUT_S)


def test_grpo_with_its_reference(tmp_path):
    chosen = settings(objective=objectives.grpo_objective(group_size=4, beta=0.1))
    worker, _, heard = make(tmp_path, chosen=chosen, reference=toy_weights(5))
    _, trained = one_step(worker, heard, 1)
    assert trained.metrics["kl/mean"] > 0
    worker.close(TIMEOUT_S)
