"""Curricula: what is set aside, when it comes back, how contexts grow, and that all is kept."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loong_jax import configs, options, recipes
from loong_jax.errors import ConfigError
from loong_jax.orchestrator.curriculum import Course, Curriculum, GrowingContext, PassRates
from loong_jax.orchestrator.dora import DoraPolicy
from loong_jax.orchestrator.tickets import TicketSource
from tests.doubles.problems import made_problem


def problem(number, level=1):
    return made_problem(number, uid=f"p/{number}", level=level)


def course_of(settings, *groups):
    """After groups, each the number of a problem, its outcomes and its ticket."""
    course = Course(Curriculum(pass_rates=settings))
    for number, outcomes, ticket in groups:
        course.judged(problem(number), outcomes, ticket=ticket)
    return course


def is_posed(course, number, *, step=0, ticket=1):
    return course.is_posed(problem(number), step=step, ticket=ticket)


RIGHT, HALF, WRONG = ["correct"] * 4, ["correct", "wrong"], ["wrong"] * 4


def test_what_is_solved_too_often_or_too_seldom_is_set_aside():
    settings = PassRates(floors=((0, 0.1),), ceilings=((0, 0.9),))
    assert is_posed(course_of(settings), 0)  # nothing is known of it yet
    course = course_of(settings, (0, RIGHT, 0), (1, HALF, 0), (2, WRONG, 0))
    assert [is_posed(course, number) for number in range(3)] == [False, True, False]


def test_thresholds_move_with_the_steps():
    settings = PassRates(floors=((0, 0.6), (10, 0.0)), ceilings=((0, 1.0), (20, 0.4)))
    course = course_of(settings, (1, HALF, 0))
    at = {step: is_posed(course, 1, step=step) for step in (0, 9, 10, 19, 20, 99)}
    assert at == {0: False, 9: False, 10: True, 19: True, 20: False, 99: False}


def test_a_rate_is_a_running_mean_that_begins_anew_after_a_pause():
    settings = PassRates(weight=0.25, pause=10, ceilings=((0, 0.99),))
    begun = (1, RIGHT, 3), (1, HALF, 5)
    rate = 0.25 * 0.5 + 0.75 * 1.0

    def standing(*groups):
        return course_of(settings, *begun, *groups).standings["p/1"]

    assert standing() == standing((1, ["ungradable"] * 4, 6)) == (rate, 2, 5)
    assert standing((1, ["ungradable", "wrong"], 6)).rate == 0.75 * rate
    assert standing((1, WRONG, 16)).rate == 0.0


def test_what_is_set_aside_comes_back_after_its_pause():
    course = course_of(PassRates(ceilings=((0, 0.9),), pause=10), (1, RIGHT, 5))
    posed = [ticket for ticket in range(6, 20) if is_posed(course, 1, ticket=ticket)]
    assert posed == list(range(16, 20))


def test_levels_stand_for_all_their_problems():
    settings = PassRates(of="level", after_groups=2, ceilings=((0, 0.95),))
    assert is_posed(course_of(settings, (1, RIGHT, 0)), 2)  # one group says too little
    course = course_of(settings, (1, RIGHT, 0), (2, RIGHT, 0))
    assert not is_posed(course, 3)
    assert course.is_posed(problem(3, level=2), step=0, ticket=1)


@given(values=st.lists(st.integers(0, 100), min_size=1, max_size=40), percent=st.integers(1, 100))
def test_percentiles_are_numpys(values, percent):
    course = Course(Curriculum(context=GrowingContext(limits=(8,), percentile=percent)))
    course.lengths = tuple(values)
    shown = course.metrics(step=0, ticket=0)["curriculum/length_percentile"]
    assert shown == np.percentile(values, percent, method="inverted_cdf")


def test_a_context_grows_once_long_answers_come_near_its_limit():
    course = Course(Curriculum(context=GrowingContext(limits=(100, 150, 200), window=10)))
    course.written([100] * 9, limit=100)
    assert course.stage == 0  # fewer than the window
    course.written([50] * 9 + [100], limit=100)
    assert (course.stage, len(course.lengths)) == (0, 10)
    course.written([90, 95], limit=100)  # of the last ten, 50 x 7, 100, 90, 95, the ninth is 95
    assert (course.stage, course.lengths) == (1, ())
    course.written([100] * 10, limit=100)  # issued under the old limit
    assert (course.stage, course.lengths) == (1, ())
    for limit in (150, 200):
        course.written([limit] * 10, limit=limit)
        assert course.stage == 2


def source(**changes):
    return TicketSource(
        lambda cursor: problem(cursor % 4),
        curriculum=Curriculum(
            pass_rates=PassRates(**{"pause": 12, "ceilings": ((0, 0.95),), **changes}),
            context=GrowingContext(limits=(8, 16), window=4),
        ),
    )


def live(tickets, numbers):
    """Problems 0 and 1 are always solved, the others half of the time; answers grow long."""
    posed = []
    for number in numbers:
        ticket, _ = tickets.open(number, step=number)
        posed.append((ticket.problem.uid, ticket.max_new_tokens))
        answer(tickets, ticket)
    return posed


def answer(tickets, ticket):
    tickets.course.written([min(12, ticket.max_new_tokens)] * 2, limit=ticket.max_new_tokens)
    outcomes = RIGHT if ticket.problem.seed < 2 else HALF
    tickets.course.judged(ticket.problem, outcomes, ticket=ticket.number)
    tickets.end(ticket, 0, "trained")


def test_tickets_pass_over_what_is_solved_and_grow_longer():
    tickets = source()
    posed = live(tickets, range(12))
    assert [uid for uid, _ in posed[:4]] == ["p/0", "p/1", "p/2", "p/3"]
    assert {uid for uid, _ in posed[4:]} == {"p/2", "p/3"}
    assert [limit for _, limit in posed[:4]] == [8, 8, 16, 16]
    shown = tickets.course.metrics(step=12, ticket=12)
    assert shown["curriculum/num_too_easy"] == 2
    assert shown["curriculum/num_too_hard"] == 0
    assert shown["curriculum/num_passed_over"] >= 6
    assert shown["curriculum/max_new_tokens"] == 16
    assert shown["curriculum/length_percentile"] == 12
    assert "p/0" in {uid for uid, _ in live(tickets, range(12, 20))}  # its pause is over


def test_something_is_posed_even_where_all_is_set_aside():
    tickets = source(floors=((0, 0.9),), ceilings=((0, 0.9),))
    assert len(live(tickets, range(8))) == 8


def test_a_restored_source_goes_on_as_it_would_have():
    straight = live(source(), range(30))
    first, second = source(), source()
    begun = live(first, range(13))
    ticket, _ = first.open(13, step=13)  # open when it is saved
    second.restore(json.loads(json.dumps(first.snapshot())))
    answer(second, ticket)
    middle = [(ticket.problem.uid, ticket.max_new_tokens)]
    assert begun + middle + live(second, range(14, 30)) == straight


def test_without_a_curriculum_nothing_is_counted():
    tickets = TicketSource(lambda cursor: problem(cursor % 4))
    ticket, _ = tickets.open(0)
    assert ticket.max_new_tokens is None
    assert tickets.course is None
    assert tickets.snapshot()["curriculum"] is None
    assert [tickets.open(number)[0].problem.seed for number in range(1, 9)] == [1, 2, 3, 0] * 2


def test_nothing_is_set_aside_or_cut_off_unless_bounds_are_given():
    assert not Curriculum().is_on
    assert PassRates(floors=((0, 0.0), (9, 0.1))).is_on
    assert Curriculum(context=GrowingContext(limits=(8,))).is_on


def test_a_config_in_which_none_left_a_curriculum_out_still_reads():
    stage = recipes.get_recipe("problems")().stages["rl"]
    record = json.loads(json.dumps(configs.to_json(stage)))
    record["curriculum"] |= {"pass_rates": None, "context": None}
    assert configs.from_json(record) == stage


def test_every_bound_is_an_option():
    words = "--run-dir d --rl.curriculum.pass-rates.floors 0 0.3 50 0.1"
    words += " --rl.curriculum.pass-rates.ceilings 0 0.95 --rl.curriculum.pass-rates.pause 100"
    words += " --rl.curriculum.context.limits 48 64 96"
    recipe = recipes.get_recipe("problems")()
    chosen = options.parse_train("problems", "", recipe, words.split()).config
    assert chosen.stages["rl"].curriculum == Curriculum(
        pass_rates=PassRates(floors=((0, 0.3), (50, 0.1)), ceilings=((0, 0.95),), pause=100),
        context=GrowingContext(limits=(48, 64, 96)),
    )
    assert not recipe.stages["rl"].curriculum.is_on


def test_a_stage_refuses_a_curriculum_that_it_cannot_follow():
    stage = recipes.get_recipe("quickstart")().stages["rl_code"]
    grows = Curriculum(context=GrowingContext(limits=(16, stage.sampling.max_new_tokens)))
    kept = dataclasses.replace(stage, curriculum=grows)
    assert configs.from_json(json.loads(json.dumps(configs.to_json(kept)))) == kept
    too_long = Curriculum(context=GrowingContext(limits=(16, 64)))
    with pytest.raises(ConfigError, match=r"ends above sampling\.max_new_tokens=48"):
        dataclasses.replace(stage, curriculum=too_long)
    ordered = DoraPolicy(groups_per_step=2, max_staleness=1, deterministic=True)
    with pytest.raises(ConfigError, match="deterministic"):
        dataclasses.replace(kept, scheduler=ordered)
