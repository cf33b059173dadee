"""Whatever the engine does, every sample is what full forward passes of the plain model give.

Batching, pages, chunks, preemption, migration, prefixes found again and drafts, all at once and in
orders that hypothesis chooses. The oracle reads each finished sample in one forward pass and draws
every token from its logits and the noise of the sample's stream.
"""

import hypothesis
import jax
import numpy as np
import pytest
from hypothesis import strategies as st

from loong_jax.rollout import slots
from loong_jax.rollout.engine_config import SampleRequest
from loong_jax.rollout.records import SamplingSettings, Ticket
from loong_jax.rollout.replica import Replica
from tests.doubles.fake_model import fake_problem
from tests.rollout import drafting_model, engine_checks

SEED, GROUP, NUM_TICKETS = 5, 3, 6
SAMPLED = SamplingSettings(max_new_tokens=12, temperature=0.8)
GREEDY = SamplingSettings(max_new_tokens=12, greedy=True)
NEAR_TIE = 1e-4  # nats between the two best tokens that rounding may exchange
PROMPTS = ["a", "bc defg", "twelve chars", "twelve char-like", "twelve charts", "qrstu?"]


def tickets(issue):
    return [
        Ticket(number=n + NUM_TICKETS * issue, problem=fake_problem(n, PROMPTS[n]), issue=issue)
        for n in range(NUM_TICKETS)
    ]


def make_replica(engine):
    replica = Replica(engine, group_size=GROUP, sampling=SAMPLED, seed=SEED)
    replica.assign(0, drafting_model.model()[1])
    return replica


@jax.jit
def noise(stream, positions):
    """[positions, V]: Gumbel noise of the tokens at these positions of a sample."""
    key = slots.stream_keys(stream[None])[0]
    keys = jax.vmap(lambda p: jax.random.fold_in(jax.random.wrap_key_data(key), p))(positions)
    return jax.vmap(lambda k: jax.random.gumbel(k, (drafting_model.MODEL.vocab_size,)))(keys)


def count_near_ties(groups) -> int:
    """Tokens that rounding decided; raises AssertionError for any other that differs."""
    rollouts = [(g.ticket, r) for g in groups.values() for r in g.rollouts]
    sequences = [np.concatenate([r.prompt, r.tokens]) for _, r in rollouts]
    all_logits = drafting_model.logits_of(sequences, 2 * NUM_TICKETS * GROUP)
    ties = 0
    for (ticket, rollout), logits in zip(rollouts, all_logits, strict=False):
        start, count, sampling = len(rollout.prompt), len(rollout.tokens), rollout.sampling
        at = np.arange(count)
        scaled = logits[start - 1 + at] / sampling.temperature
        log_prob = scaled - scaled.max(axis=1, keepdims=True)
        log_prob -= np.log(np.exp(log_prob).sum(axis=1, keepdims=True))
        np.testing.assert_allclose(rollout.engine_logprob, log_prob[at, rollout.tokens], atol=1e-5)
        noisy = scaled
        if not sampling.greedy:
            request = SampleRequest.of(ticket, rollout.attempt, sampling, seed=SEED)
            positions = np.arange(drafting_model.LENGTH) + start
            noisy = (
                scaled + np.asarray(noise(np.array(request.stream, np.uint32), positions))[:count]
            )
        lost = noisy.max(axis=1) - noisy[at, rollout.tokens]
        assert lost.max() < NEAR_TIE
        ties += int((lost > 0).sum())
    return ties


def play(engine, moves):
    """All groups, and the counters, of two replicas that work as `moves` say and then to the end.

    Each move makes one of them step and then give tickets to the other.
    """
    replicas = make_replica(engine), make_replica(engine)
    groups = {}

    def step(replica):
        groups.update({g.ticket.number: g for g in replica.step()[0]})
        engine_checks.check(replica)

    replicas[0].submit(tickets(0)[::2])
    replicas[0].submit(tickets(0)[1::2], sampling=GREEDY)
    for source, numbers in moves:
        step(replicas[source])
        replicas[1 - source].take(replicas[source].give(numbers))
    again = tickets(1)
    for _ in range(500):
        if again and groups:  # the same prompts, once pages of them are there
            replicas[0].submit(again)
            again = []
        for replica in replicas:
            step(replica)
        if not again and all(replica.is_empty for replica in replicas):
            break
    assert len(groups) == 2 * NUM_TICKETS
    counts = [replica.statistics() for replica in replicas]
    return groups, {name: sum(c[name] for c in counts) for name in counts[0]}


MOVES = st.lists(
    st.tuples(st.integers(0, 1), st.sets(st.integers(0, NUM_TICKETS - 1), max_size=4)),
    min_size=2,
    max_size=5,
)


def everything_happened(counts, *, pages, drafts) -> set[str]:
    """Names of what was on and never happened."""
    wanted = {"num_tickets_taken"}
    wanted |= {"num_preemptions", "num_prefix_hits", "num_pages_shared"} if pages else set()
    wanted |= {"num_drafts_proposed", "num_drafts_kept"} if drafts else set()
    return {name for name in wanted if not counts[name]}


KINDS = [
    pytest.param(True, True, id="pages with drafts", marks=pytest.mark.slow),
    pytest.param(False, False, id="slots", marks=pytest.mark.release),
    pytest.param(False, True, id="slots with drafts", marks=pytest.mark.release),
    pytest.param(True, False, id="pages", marks=pytest.mark.release),
]


@pytest.mark.parametrize(("pages", "drafts"), KINDS)
def test_every_sample_is_that_of_the_plain_model(pages, drafts):
    engine = drafting_model.engine(pages=pages, drafts=drafts)
    total: dict[str, int] = {}
    ties = []

    @hypothesis.settings(max_examples=4, deadline=None)
    @hypothesis.given(moves=MOVES)
    @hypothesis.example(moves=[(0, set()), (0, {0, 1, 3}), (1, {1, 4})])
    def run(moves):
        groups, counts = play(engine, [(source, sorted(numbers)) for source, numbers in moves])
        ties.append(count_near_ties(groups))
        for name, count in counts.items():
            total[name] = total.get(name, 0) + count

    run()
    assert everything_happened(total, pages=pages, drafts=drafts) == set()
    assert sum(ties) <= 2 * len(ties)  # rounding decides next to nothing
