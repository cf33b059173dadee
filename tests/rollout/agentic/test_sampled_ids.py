"""What trains is what was sampled: no turn is encoded again, over tools and odd Unicode."""

import dataclasses
import json
import random
import time

import numpy as np
import pytest

from loong_jax.data.tokenizer import load_tokenizer
from loong_jax.errors import ConfigError
from loong_jax.rl import batching
from loong_jax.rl.rewards import MeanOnly
from loong_jax.rollout.agentic.agent import Agent, Toolbox, TurnLimits
from loong_jax.rollout.agentic.paused import PausedOnTools
from loong_jax.rollout.attempts import Attempt, Job
from loong_jax.rollout.records import Group, SamplingSettings, Ticket
from tests.doubles import bpe
from tests.doubles.fake_model import fake_problem

NUM_GROUPS, GROUP_SIZE, MAX_TOKENS = 250, 4, 600
LETTERS = [
    *'ab 1\n\t"\\é中😀\u200d\u0301\u202e<|>',
    "<|im_end|>",
    "<tool_call>",
    "\ud83d",
    "<|<|im_end|>",
]


class Echo:
    """Answers in odd characters, tokens with a meaning among them."""

    name, description, parameters = "echo", "Says something.", {"properties": {"x": True}}

    def call(self, arguments, *, problem, timeout_s):
        chance = random.Random(str(arguments))
        return "".join(chance.choice(LETTERS) for _ in range(chance.randrange(12)))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    directory = tmp_path_factory.mktemp("bpe")
    bpe.write_files(directory)
    return load_tokenizer(directory, {}, 512)


def write_turn(chance, tokenizer, calls):
    """Tokens as a model might draw them: any ids, so no text has to be encoded to them."""
    tokens = [chance.randrange(5, tokenizer.vocab_size) for _ in range(chance.randrange(1, 20))]
    if calls:
        body = json.dumps({"name": "echo", "arguments": {"x": chance.random()}})
        tokens += [3, *(t for letter in body for t in tokenizer.encode(letter)), 4]
    return [*tokens, chance.choice(tokenizer.end_ids)]


def sample(paused, attempt, chance, tokenizer):
    """Turns until one calls nothing; returns what was drawn."""
    drawn = []
    for number in range(4):
        turn = write_turn(chance, tokenizer, calls=number < 3 and chance.random() < 0.6)
        drawn += turn
        attempt.extend(np.array(turn, np.int32), np.full(len(turn), -0.5, np.float32))
        if not paused.begin(attempt, lambda: None):
            break
        while not (returned := paused.returned()):
            time.sleep(0.0002)
        assert returned == [(attempt, True)]
    return drawn


def test_ids_sampled_are_ids_trained(tokenizer):
    agent = Agent(toolbox=Toolbox([Echo()]), limits=TurnLimits(max_turns=4))
    paused = PausedOnTools(agent, tokenizer, time.monotonic)
    chance, sampling = random.Random(0), SamplingSettings(max_new_tokens=MAX_TOKENS)
    groups, sampled = [], {}
    for number in range(NUM_GROUPS):
        problem = dataclasses.replace(fake_problem(number), arguments={"tools": ["echo"]})
        ticket = Ticket(number=number, problem=problem)
        asked = [{"role": "user", "content": problem.prompt}]
        prompt = np.array(tokenizer.prompt_ids(asked), np.int32)
        rollouts = []
        for i in range(GROUP_SIZE):
            attempt = Attempt(Job(ticket, prompt, GROUP_SIZE, sampling, 0), i, 0)
            sampled[number, i] = sample(paused, attempt, chance, tokenizer)
            rollout = attempt.to_rollout("stop", "", 1.0)
            rollouts.append(
                dataclasses.replace(
                    rollout, reward=float(i % 2), behavior_logprob=rollout.engine_logprob
                )
            )
            check_turns(rollout, tokenizer)
        groups.append(Group(ticket=ticket, version=0, rollouts=tuple(rollouts)))
    assert paused.counts["calls"] > 1000
    trained = trained_ids(groups)
    assert trained == sorted(sampled.values())


def check_turns(rollout, tokenizer):
    """Behind each turn stands the template's text alone: one user of tools, one new turn."""
    for turn in rollout.turns:
        if turn.role == "tool":
            tokens = rollout.tokens[turn.first : turn.first + turn.num_tokens].tolist()
            assert rollout.tokens[turn.first - 1] in tokenizer.end_ids
            assert tokens.count(1) == 2
            assert tokens.count(2) == 1
            assert not {0, 3, 4} & set(tokens)
            text = tokenizer.decode(tokens)
            assert text.startswith("\n<|im_start|>user\n<tool_response>\n")
            assert text.endswith("\n</tool_response><|im_end|>\n<|im_start|>assistant\n")


def trained_ids(groups):
    """Tokens under the loss of each rollout, read off the packed rows."""
    found = []
    batches = batching.make_batches(groups, MeanOnly(), trainer_version=0, rows=4, row_length=1024)
    for batch in batches:
        for tokens, segments, mask in zip(
            batch.tokens, batch.segment_ids, batch.loss_mask, strict=True
        ):
            for segment in sorted(set(segments[mask].tolist())):
                found.append(tokens[mask & (segments == segment)].tolist())
    return sorted(found)


def test_a_turn_that_a_text_ended_gets_the_end_of_the_template(tokenizer):
    agent = Agent(toolbox=Toolbox([Echo()]))
    problem = dataclasses.replace(fake_problem(1), arguments={"tools": ["echo"]})
    for last, is_open in ((2, False), (0, False), (70, True)):
        tokens = agent.answer_tokens(tokenizer, problem, np.array([60, last]), ["4"])
        assert (tokens[0] == 2) == is_open


def test_a_template_without_a_place_for_tools_is_refused_at_the_start(tokenizer, tmp_path):
    odd = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
    bpe.write_files(tmp_path, template=odd)
    agent = Agent(toolbox=Toolbox([Echo()]))
    agent.check(tokenizer)
    with pytest.raises(ConfigError, match="leaves out"):
        agent.check(load_tokenizer(tmp_path, {}, 512))
