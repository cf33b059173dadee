import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from loong_jax.errors import ConfigError
from loong_jax.rl import objectives
from tests.rl.objectives import cases

BASE = objectives.longcat_objective(group_size=4, max_response_tokens=11)
STEPPED = objectives.SteppedBound(steps=(3, 8), values=(0.2, 0.05))


def led_by(schedule, start=0.28):
    clip = objectives.TripletClip(eps_pos_high=start, pos_high_schedule=schedule)
    return dataclasses.replace(BASE, clip=clip)


def test_a_line_goes_from_the_clips_value_to_its_end_and_stays():
    line = objectives.LinearBound(end=0.1, num_steps=4)
    found = [float(objectives.bound_at(line, 0.3, step)) for step in (0, 1, 2, 4, 9)]
    np.testing.assert_allclose(found, [0.3, 0.25, 0.2, 0.1, 0.1], rtol=1e-6)


def test_stages_begin_at_their_step():
    found = [float(objectives.bound_at(STEPPED, 0.28, step)) for step in (0, 2, 3, 7, 8, 99)]
    np.testing.assert_allclose(found, [0.28, 0.28, 0.2, 0.2, 0.05, 0.05], rtol=1e-6)


@pytest.mark.parametrize("step", [0, 3, 8])
def test_the_loss_of_a_step_is_that_of_a_constant_bound(step):
    batch, _ = cases.packed(cases.responses(1))
    loss, gradient, sums = cases.evaluate(led_by(STEPPED), batch, step=step)
    bound = float(objectives.bound_at(STEPPED, 0.28, step))
    expected = cases.evaluate(led_by(None, start=bound), batch)
    np.testing.assert_allclose(loss, expected[0], rtol=1e-6)
    np.testing.assert_allclose(gradient, expected[1], rtol=1e-6)
    np.testing.assert_array_equal(sums.num_clipped_H, expected[2].num_clipped_H)


def test_steps_share_one_program():
    batch, _ = cases.packed(cases.responses(2))
    rest = {name: jnp.asarray(value) for name, value in batch.items()}
    traces = []

    @jax.jit
    def loss(step):
        traces.append(step)
        return objectives.policy_loss(led_by(STEPPED), **rest, num_groups=2, step=step)[0]

    found = {float(loss(jnp.int32(step))) for step in range(10)}
    assert len(traces) == 1
    assert len(found) == 3


@pytest.mark.parametrize(
    "make",
    [
        lambda: objectives.LinearBound(end=-0.1, num_steps=4),
        lambda: objectives.LinearBound(end=0.1, num_steps=0),
        lambda: objectives.SteppedBound(steps=(), values=()),
        lambda: objectives.SteppedBound(steps=(0,), values=(0.1,)),
        lambda: objectives.SteppedBound(steps=(5, 5), values=(0.1, 0.2)),
        lambda: objectives.SteppedBound(steps=(5, 6), values=(0.1,)),
        lambda: objectives.SteppedBound(steps=(5,), values=(-0.1,)),
        lambda: objectives.AsymmetricClip(eps_low=1.2),
        lambda: objectives.DetachedClip(high=0.5),
        lambda: objectives.Band(low=2.0, high=1.0),
        lambda: objectives.EngineTrust(veto_below=1.0),
        lambda: objectives.EngineTrust(sequence_cap=0.0),
        lambda: dataclasses.replace(BASE, engine=objectives.EngineTrust(sequence_cap=2.0)),
    ],
)
def test_settings_outside_their_rule_are_refused(make):
    with pytest.raises(ConfigError):
        make()
