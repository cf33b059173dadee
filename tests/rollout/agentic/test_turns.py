"""Samples of several turns: what the policy wrote, what tools answered, and who is masked."""

import dataclasses
import threading
import time

import numpy as np
import pytest

from loong_jax.data import tool_template
from loong_jax.data.tokenizer import AsciiTokenizer
from loong_jax.errors import ConfigError
from loong_jax.rollout import records
from loong_jax.rollout.agentic.agent import Agent, Toolbox, TurnLimits
from loong_jax.rollout.records import SamplingSettings, Ticket
from loong_jax.rollout.replica import Replica
from tests.doubles.fake_model import fake_problem
from tests.doubles.scripted_model import scripted_engine, scripted_weights

CALL = tool_template.call_text("add", {"a": 0, "b": 0}).replace("0", "#")
FINAL = "<longcat_think>#</longcat_think><longcat_answer>##</longcat_answer>"
TURNS = [CALL, "so " + CALL + CALL, FINAL]
SAMPLING = SamplingSettings(max_new_tokens=288)
TOKENIZER = AsciiTokenizer()
NAMES = {
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}


class Add:
    """Counts its calls; waits for `gate`, if there is one, and fails at even sums on request."""

    name, description, parameters = "add", "Adds two numbers.", NAMES

    def __init__(self, gate=None, fails_at_even=False):
        self.gate, self.fails_at_even, self.calls = gate, fails_at_even, []

    def call(self, arguments, *, problem, timeout_s):
        if self.gate is not None:
            self.gate.wait(20)
        self.calls.append((problem.uid, arguments["a"], arguments["b"]))
        total = arguments["a"] + arguments["b"]
        if self.fails_at_even and total % 2 == 0:
            raise ValueError(f"{total} is even")
        return str(total)


def problem(number):
    asked = fake_problem(number, f"{'q' * number}?")
    return dataclasses.replace(asked, arguments={"tools": ["add"]})


def tickets(count, first=0):
    return [Ticket(number=n, problem=problem(n)) for n in range(first, first + count)]


def make_replica(engine, tool, *, turns=TURNS, sampling=SAMPLING, seed=3, **settings):
    limits = settings.pop("limits", TurnLimits())
    agent = Agent(toolbox=Toolbox([tool]), limits=limits, **settings)
    replica = Replica(engine, group_size=2, sampling=sampling, seed=seed, agent=agent)
    replica.assign(0, scripted_weights(turns))
    return replica


def finish(replica, timeout_s=60.0):
    groups, deadline_s = {}, time.monotonic() + timeout_s
    while not replica.is_empty:
        groups |= {group.ticket.number: group for group in replica.step()[0]}
        assert time.monotonic() < deadline_s
    return groups


def written_by(rollout, role):
    """Texts of the turns of one role."""
    parts = (rollout.tokens[t.first :][: t.num_tokens] for t in rollout.turns if t.role == role)
    return [TOKENIZER.decode(part) for part in parts]


@pytest.fixture(scope="module")
def engine():
    return scripted_engine()


@pytest.fixture(scope="module")
def reference(engine):
    tool = Add()
    replica = make_replica(engine, tool)
    replica.submit(tickets(4))
    return finish(replica), replica.statistics(), tool.calls


def sums(text):
    """The answers that a turn asks for."""
    bodies = text.split('"a": ')[1:]
    return [int(body[0]) + int(body.split('"b": ')[1][0]) for body in bodies]


def test_tools_are_called_with_what_the_policy_wrote_and_answers_come_back(reference):
    groups, counts, calls = reference
    assert sorted(groups) == [0, 1, 2, 3]
    for group in groups.values():
        assert group.version == 0
        for rollout in group.rollouts:
            assert [turn.role for turn in rollout.turns] == ["policy", "tool"] * 2 + ["policy"]
            assert [t.num_calls for t in rollout.turns if t.role == "tool"] == [1, 2]
            asked, answered = written_by(rollout, "policy"), written_by(rollout, "tool")
            for turn, answer in zip(asked, answered, strict=False):
                expected = "".join(
                    f"<longcat_tool_response>{n}</longcat_tool_response>" for n in sums(turn)
                )
                assert answer == expected
            assert rollout.finish_reason == "stop"
            assert rollout.text == asked[-1].removesuffix("<eos>")
            assert rollout.versions == ((0, 0),)
    assert counts["num_calls"] == len(calls) == 4 * 2 * 3
    assert counts["num_turns_of_tools"] == 4 * 2 * 2
    assert counts["num_paused"] == counts["num_slots_held"] == counts["num_calls_failed"] == 0


def test_only_what_the_policy_wrote_is_under_the_mask_and_has_log_probabilities(reference):
    for group in reference[0].values():
        for rollout in group.rollouts:
            by_policy = np.zeros(len(rollout.tokens), bool)
            ends = np.flatnonzero(rollout.tokens == TOKENIZER.eos_id)
            starts = [0, *(np.flatnonzero(rollout.tokens == 11)[[0, 2]] + 1)]
            for start, end in zip(starts, ends, strict=True):  # by the tags alone
                by_policy[start : end + 1] = True
            np.testing.assert_array_equal(rollout.loss_mask, by_policy)
            assert len(rollout.engine_logprob) == len(rollout.tokens)
            assert not rollout.engine_logprob[~by_policy].any()
            digits = (rollout.tokens >= 48) & (rollout.tokens <= 57) & by_policy
            np.testing.assert_allclose(
                rollout.engine_logprob[digits], -np.log(10), rtol=1e-4
            )  # each digit is as likely as the others


def test_only_new_tokens_are_read(reference):
    groups, counts, _ = reference
    rollouts = [r for g in groups.values() for r in g.rollouts]
    num_tool_tokens = sum(t.num_tokens for r in rollouts for t in r.turns if t.role == "tool")
    num_turns = sum(t.role == "tool" for r in rollouts for t in r.turns)
    # The token that ended the policy's turn was drawn and never read.
    assert counts["num_tokens_read_on"] == num_tool_tokens + num_turns
    assert counts["num_tokens_of_tools"] == num_tool_tokens
    assert counts["num_tokens_reprefilled"] == 0


def test_equal_seeds_give_equal_samples_whatever_the_company(engine, reference):
    other = make_replica(engine, Add())
    other.submit(tickets(4)[2:])
    alone = finish(other)
    for number in alone:
        for mine, theirs in zip(alone[number].rollouts, reference[0][number].rollouts, strict=True):
            np.testing.assert_array_equal(mine.tokens, theirs.tokens)
            np.testing.assert_array_equal(mine.engine_logprob, theirs.engine_logprob)
    different = make_replica(engine, Add(), seed=4)
    different.submit(tickets(4)[2:])
    again = finish(different)
    assert any(
        not np.array_equal(a.tokens, b.tokens)
        for number in alone
        for a, b in zip(alone[number].rollouts, again[number].rollouts, strict=True)
    )


def test_others_decode_while_tools_run(engine):
    gate = threading.Event()
    replica = make_replica(engine, Add(gate))
    plain_problem = fake_problem(9, "qq?")
    replica.submit(tickets(2))
    replica.submit([Ticket(number=7, problem=plain_problem)])  # names no tools
    done = {}
    for _ in range(60):
        done |= {g.ticket.number: g for g in replica.step()[0]}
        if 7 in done:
            break
    assert done[7].rollouts[0].turns == ()
    assert done[7].rollouts[0].loss_mask.all()
    for _ in range(3):
        replica.step()
    counts = replica.statistics()
    assert counts["num_paused"] == 4
    assert counts["num_slots_held"] == 0
    gate.set()
    assert set(finish(replica)) == {0, 1}


@pytest.mark.parametrize("keep_cache", [True, False])
def test_new_weights_find_samples_before_behind_and_without_their_tools(engine, keep_cache):
    """Equal weights under new numbers: nothing but the numbers of the versions may differ."""
    swapped = make_replica(engine, Add())
    undisturbed = make_replica(engine, Add())
    for replica in (swapped, undisturbed):
        replica.submit(tickets(6))
    groups, version, num_back_without_slot = {}, 0, 0
    while not swapped.is_empty:
        for _ in range(3):
            groups |= {group.ticket.number: group for group in swapped.step()[0]}
            time.sleep(0.01)  # tools answer meanwhile
        num_back_without_slot += sum(a.cache is not None for a in swapped.under_way())
        version += 1
        assert version < 1000
        swapped.swap(version, scripted_weights(TURNS), keep_cache=keep_cache)
    assert num_back_without_slot > 0
    expected = finish(undisturbed)
    assert sorted(groups) == sorted(expected)
    for number, group in groups.items():
        for mine, theirs in zip(group.rollouts, expected[number].rollouts, strict=True):
            np.testing.assert_array_equal(mine.tokens, theirs.tokens)
            np.testing.assert_array_equal(mine.loss_mask, theirs.loss_mask)
            assert [turn.role for turn in mine.turns] == [turn.role for turn in theirs.turns]
            numbers = [version for _, version in mine.versions]
            assert numbers == sorted(set(numbers))
            assert len(numbers) > 1


def test_a_rollout_with_turns_survives_a_snapshot(reference):
    group = reference[0][1]
    again = records.group_from_plain(records.decode(records.encode(records.group_to_plain(group))))
    for mine, theirs in zip(again.rollouts, group.rollouts, strict=True):
        assert mine.turns == theirs.turns
        np.testing.assert_array_equal(mine.loss_mask, theirs.loss_mask)


def test_tools_that_are_not_there_are_refused_before_anything_is_queued(engine):
    replica = make_replica(engine, Add())
    asked = dataclasses.replace(problem(0), arguments={"tools": ["add", "search"]})
    with pytest.raises(ConfigError, match="search"):
        replica.submit([Ticket(number=0, problem=asked)])
    assert replica.is_empty
    with pytest.raises(AssertionError, match="chunked_prefill"):
        Replica(
            scripted_engine(chunked_prefill=False),
            group_size=1,
            sampling=SAMPLING,
            seed=0,
            agent=Agent(toolbox=Toolbox([Add()])),
        )
