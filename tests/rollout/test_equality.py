"""Whatever the engine does, every sample is what full forward passes of the plain model give.

Batching, pages, chunks, preemption, migration, prefixes found again and drafts, all at once and in
orders that hypothesis chooses.
"""

import hypothesis
import pytest
from hypothesis import strategies as st

from loong_jax.rollout.records import SamplingSettings, Ticket
from loong_jax.rollout.replica import Replica
from tests.doubles.fake_model import fake_problem
from tests.rollout import drafting_model, engine_checks

SEED, GROUP, NUM_TICKETS = 5, 3, 6
SAMPLED = SamplingSettings(max_new_tokens=12, temperature=0.8)
GREEDY = SamplingSettings(max_new_tokens=12, greedy=True)
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
        rows = 2 * NUM_TICKETS * GROUP
        ties.append(drafting_model.count_near_ties(groups, num_rows=rows, seed=SEED))
        for name, count in counts.items():
            total[name] = total.get(name, 0) + count

    run()
    assert everything_happened(total, pages=pages, drafts=drafts) == set()
    assert sum(ties) <= 2 * len(ties)  # rounding decides next to nothing
