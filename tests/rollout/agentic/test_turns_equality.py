"""Samples of several turns are what full forward passes of the plain model give.

Each turn that ends with a chosen token counts as a call here, whose answer depends on what was
written.
"""

import dataclasses
import functools
import threading
import time
from collections import Counter

import numpy as np
import pytest

from loong_jax.data.tokenizer import AsciiTokenizer
from loong_jax.rollout.agentic import paused
from loong_jax.rollout.agentic.agent import Agent, Toolbox, TurnLimits
from loong_jax.rollout.engine_config import PageConfig
from loong_jax.rollout.paged_engine import engine_for
from loong_jax.rollout.records import SamplingSettings, Ticket
from loong_jax.rollout.replica import Replica
from loong_jax.verifiers.tool_calls import ToolCall, ToolCalls
from tests.doubles import tiny
from tests.doubles.fake_model import fake_problem
from tests.processes import wait_until
from tests.rollout import drafting_model
from tests.sweeps import thinned

SEED, GROUP, LENGTH = 5, 2, 48
NUM_STOPS = 12
PROMPTS = ["a", "bc defg", "twelve chars", "qrstu?", "twelve ch"]
TOKENIZER = AsciiTokenizer()


class Sum:
    """A number made of what was written, so that a lost token changes the answer."""

    name, description, parameters = "sum", "", {"properties": {"text": {"type": "string"}}}

    def __init__(self, gate):
        self.gate = gate  # nothing is answered before it opens

    def call(self, arguments, *, problem, timeout_s):
        text = arguments["text"]
        assert self.gate.wait(60)
        time.sleep(sum(text.encode()) % 3 * 0.01)  # answers come back in no fixed order
        return str(sum(text.encode()) % 89)


@pytest.fixture(autouse=True)
def every_turn_calls(monkeypatch):
    def read(text, schemas):
        return ToolCalls((ToolCall("sum", {"text": text[:-1]}),))

    monkeypatch.setattr(paused, "read_turn_end", read)


@functools.cache
def engine(*, pages=False, drafts=False, slots_per_replica=8):
    graphdef, _ = drafting_model.model()
    shapes = tiny.engine_shapes(
        slots_per_replica=slots_per_replica,
        cache_length=LENGTH,
        chunked_prefill=True,
        max_stop_ids=NUM_STOPS,
        speculation=drafts,
        pages=PageConfig(num_pages=14, page_size=4) if pages else None,
    )
    return engine_for(graphdef, drafting_model.MODEL, TOKENIZER, shapes)


def tickets():
    problems = [fake_problem(n, prompt) for n, prompt in enumerate(PROMPTS)]
    named = [dataclasses.replace(p, arguments={"tools": ["sum"]}) for p in problems]
    return [Ticket(number=n, problem=p) for n, p in enumerate(named)]


def write(engine, stop_ids, wanted=None, move_at=()):
    """Groups and counters of two replicas; the second gets what the first gives at `move_at`."""
    sampling = SamplingSettings(max_new_tokens=30, temperature=0.8, stop_ids=stop_ids)
    gate = threading.Event()
    agent = Agent(toolbox=Toolbox([Sum(gate)]), limits=TurnLimits(timeout_s=120))
    asked = tickets() if wanted is None else [tickets()[n] for n in wanted]
    replicas = [
        Replica(engine, group_size=GROUP, sampling=sampling, seed=SEED, agent=agent)
        for _ in range(2)
    ]
    for replica in replicas:
        replica.assign(0, drafting_model.model()[1])
    replicas[0].submit(asked)
    groups, counts = {}, Counter()
    for step in range(400):
        if step in move_at:
            counts["moved_paused"] += replicas[0].statistics()["num_paused"]
            replicas[1].take(replicas[0].give([0, 1, 2, 3]))
        if step >= max(move_at, default=0):
            gate.set()
            wait_for_tools(replicas)
        for replica in replicas:
            groups |= {g.ticket.number: g for g in replica.step()[0]}
        if all(replica.is_empty for replica in replicas):
            break
    assert len(groups) == len(asked)
    for replica in replicas:
        counts.update(replica.statistics())
    assert counts["num_slots_held"] == counts["num_paused"] == 0
    assert counts.get("num_pages_held", 0) == 0
    return groups, counts


def wait_for_tools(replicas):
    """Until all calls have ended, so that the load does not depend on how fast steps are."""
    paused = [p for replica in replicas for p in replica._tools.paused]
    wait_until(lambda: not any(p.calls.answers() is None for p in paused))


@functools.cache
def frequent_tokens():
    """The tokens that the model draws most often, which therefore end turns soon."""
    groups, _ = write(engine(), ())
    tokens = np.concatenate([r.tokens for g in groups.values() for r in g.rollouts])
    return tuple(np.bincount(tokens).argsort()[-NUM_STOPS:].tolist())


def check_against_plain_model(groups):
    """Every token of the policy, whatever tools wrote before it; returns the number of turns."""
    rows = len(PROMPTS) * GROUP
    drafting_model.count_near_ties(groups, num_rows=rows, seed=SEED, length=LENGTH)
    return sum(len(r.turns) for g in groups.values() for r in g.rollouts)


def test_paused_samples_are_those_of_the_plain_model():
    groups, counts = write(engine(), frequent_tokens())
    assert check_against_plain_model(groups) > 2 * len(PROMPTS) * GROUP
    assert counts["num_turns_of_tools"] > len(PROMPTS) * GROUP
    assert counts["num_tokens_reprefilled"] == 0
    alone, _ = write(engine(), frequent_tokens(), wanted=[3])
    for mine, theirs in zip(alone[3].rollouts, groups[3].rollouts, strict=True):
        np.testing.assert_array_equal(mine.tokens, theirs.tokens)
        assert [t.first for t in mine.turns] == [t.first for t in theirs.turns]


@pytest.mark.slow
@pytest.mark.parametrize("drafts", thinned([False, True], 1))
def test_pages_preemption_and_moves_change_no_sample(drafts):
    plain, _ = write(engine(), frequent_tokens())
    groups, counts = write(engine(pages=True, drafts=drafts), frequent_tokens(), move_at=(6, 11))
    assert check_against_plain_model(groups) > 2 * len(PROMPTS) * GROUP
    for number, group in groups.items():
        for mine, theirs in zip(group.rollouts, plain[number].rollouts, strict=True):
            np.testing.assert_array_equal(mine.tokens, theirs.tokens)
    assert counts["num_preemptions"] > 0 or drafts
    assert counts["num_tickets_taken"] > 0
    assert counts["moved_paused"] > 0
