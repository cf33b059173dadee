import copy
import dataclasses

import numpy as np
import pytest

from loong_jax.data.tokenizer import AsciiTokenizer
from loong_jax.errors import ConfigError
from loong_jax.rollout.engine_config import PageConfig
from loong_jax.rollout.records import SamplingSettings, Ticket
from loong_jax.rollout.replica import Replica
from tests.doubles.fake_model import fake_engine, fake_problem, fake_weights
from tests.rollout.written import content, tickets

ENGINE = fake_engine()
WEIGHTS = [fake_weights(seed) for seed in range(3)]
SAMPLING = SamplingSettings(max_new_tokens=20)


def make_replica(engine=ENGINE, version=0, **settings) -> Replica:
    settings = {"group_size": 3, "sampling": SAMPLING, "seed": 1} | settings
    replica = Replica(engine, **settings)
    replica.assign(version, WEIGHTS[version])
    return replica


def finish(replica: Replica):
    groups, blocks = {}, []
    while not replica.is_empty:
        done, stats = replica.step()
        groups |= {group.ticket.number: group for group in done}
        blocks.append(stats)
        assert len(blocks) < 1000
    return groups, blocks


def write(asked, engine=ENGINE, **settings):
    """Groups and blocks of a replica that has nothing else to write."""
    replica = make_replica(engine, **settings)
    replica.submit(asked)
    return finish(replica)


@pytest.fixture(scope="module")
def reference():
    return write(tickets(range(10)))


def test_groups_come_out_whole(reference):
    groups, blocks = reference
    assert sorted(groups) == list(range(10))
    tokenizer = AsciiTokenizer()
    reasons = set()
    for number, group in groups.items():
        assert [r.attempt for r in group.rollouts] == [0, 1, 2]
        for rollout in group.rollouts:
            assert rollout.ticket == number
            assert rollout.versions == ((0, 0),)
            assert rollout.text == tokenizer.decode(rollout.tokens).removesuffix("<eos>")
            prompt = [tokenizer.bos_id, *tokenizer.encode(group.ticket.problem.prompt)]
            assert rollout.prompt.tolist() == prompt
            assert len(rollout.tokens) == len(rollout.engine_logprob) == len(rollout.loss_mask)
            assert rollout.loss_mask.all()
            assert rollout.engine_logprob.dtype == np.float32
            assert rollout.tokens.dtype == np.int32
            assert (rollout.engine_logprob < 0).all()
            ends_with_stop = rollout.tokens[-1] == tokenizer.eos_id
            assert rollout.finish_reason == ("stop" if ends_with_stop else "length")
            assert ends_with_stop or len(rollout.tokens) == 20
            assert tokenizer.eos_id not in rollout.tokens[:-1]
            assert rollout.started_s < rollout.ended_s
            reasons.add(rollout.finish_reason)
    assert reasons == {"stop", "length"}
    num_tokens = sum(len(r.tokens) for group in groups.values() for r in group.rollouts)
    assert sum(stats.num_tokens for stats in blocks) == num_tokens


def test_samples_follow_the_table_of_the_model(reference):
    groups, _ = reference
    table = np.asarray(WEIGHTS[0]["table"], np.float64)
    log_table = table - np.log(np.exp(table).sum(axis=1, keepdims=True))
    for group in groups.values():
        for rollout in group.rollouts:
            total = int(rollout.prompt.sum())
            for token, log_prob in zip(rollout.tokens, rollout.engine_logprob, strict=True):
                assert abs(log_table[total % len(table), token] - log_prob) < 1e-5
                total += int(token)


def test_every_end_token_of_the_tokenizer_ends_a_sample(reference):
    engine = fake_engine(decode_steps=3, max_stop_ids=1)
    ends = engine.tokenizer.end_ids = (2, ord("a"), ord("7"))
    sampling = dataclasses.replace(SAMPLING, stop_ids=(ord("k"),))
    cut = content(write(tickets(range(10)), engine, sampling=sampling)[0])
    assert cut == {
        key: kept(tokens, log_probs, lambda written: written[-1] in (*ends, ord("k")))
        for key, (tokens, log_probs) in content(reference[0]).items()
    }
    assert {tokens[-1] for tokens, _ in cut.values()} >= {*ends, ord("k")}


@pytest.mark.parametrize(
    "shapes", [{"decode_steps": 1}, {"decode_steps": 8, "slots_per_replica": 3}]
)
def test_a_text_ends_a_sample_with_the_token_that_completes_it(reference, shapes):
    decode = AsciiTokenizer().decode
    texts = [decode(tokens) for tokens, _ in content(reference[0]).values()]
    stops = (texts[0][0], texts[4][3:6], texts[9][1:3])
    sampling = dataclasses.replace(SAMPLING, stops=stops)
    groups, _ = write(tickets(range(10)), fake_engine(**shapes), sampling=sampling)
    cut = content(groups)
    assert cut == {
        key: kept(tokens, log_probs, lambda written: any(s in decode(written) for s in stops))
        for key, (tokens, log_probs) in content(reference[0]).items()
    }
    assert 1 in map(len, (tokens for tokens, _ in cut.values()))
    for rollout in (rollout for group in groups.values() for rollout in group.rollouts):
        if any(stop in rollout.text for stop in stops):
            assert rollout.finish_reason == "stop"


def kept(tokens, log_probs, is_over):
    """A sample up to the first token at which it is over."""
    ends = (n for n in range(1, len(tokens) + 1) if is_over(tokens[:n]))
    end = next(ends, len(tokens))
    return tokens[:end], log_probs[:end]


def test_slots_are_refilled_while_others_go_on(reference):
    _, blocks = reference
    assert [stats.active_slots for stats in blocks[:3]] == [8, 8, 8]
    # 30 samples of up to 20 tokens on 8 slots: batch by batch would take 4 * 5 blocks.
    assert len(blocks) < 20


def test_a_sample_does_not_depend_on_order_slots_or_company(reference):
    expected = content(reference[0])
    shuffled = make_replica()
    for number in (7, 3, 9, 0, 1, 2, 8, 4, 6, 5):
        shuffled.submit(tickets([number]))
        shuffled.step()
    # `step` handed some groups on already; these are those that were left.
    left = content(finish(shuffled)[0])
    assert left
    assert left.items() <= expected.items()
    small = fake_engine(slots_per_replica=2, prefill_prompts=1, prefill_members=2)
    for engine, numbers in ((small, [5, 2]), (fake_engine(narrow_slots=(2, 5)), [1, 2])):
        assert content(write(tickets(numbers), engine)[0]).items() <= expected.items()


def test_issues_and_seeds_draw_differently(reference):
    other_issue = content(write([Ticket(number=3, problem=fake_problem(3), issue=1)])[0])
    other_seed = content(write(tickets([3]), seed=2)[0])
    expected = content(reference[0])
    for key, value in expected.items():
        assert value != other_issue.get(key)
        assert value != other_seed.get(key)


def test_a_group_larger_than_all_slots_is_written(reference):
    replica = make_replica()
    replica.submit(tickets([4]), group_size=21, sampling=SAMPLING)
    groups, _ = finish(replica)
    assert len(groups[4].rollouts) == 21
    assert (
        content(groups).items()
        >= {key: value for key, value in content(reference[0]).items() if key[0] == 4}.items()
    )


def test_the_version_changes_only_when_empty_and_tags_follow_it(reference):
    replica = make_replica()
    replica.submit(tickets([0, 1]))
    replica.step()
    with pytest.raises(AssertionError, match="written under 0"):
        replica.assign(1, WEIGHTS[1])
    first, _ = finish(replica)
    replica.assign(1, WEIGHTS[1])
    replica.submit(tickets([0, 1]))
    second, _ = finish(replica)
    for groups, version in ((first, 0), (second, 1)):
        assert {g.version for g in groups.values()} == {version}
        assert {r.versions for g in groups.values() for r in g.rollouts} == {((0, version),)}
    assert content(first).items() <= content(reference[0]).items()
    assert content(first) != content(second)
    assert content(write(tickets([0, 1]), version=1)[0]) == content(second)


def test_cancel_frees_slots_and_leaves_the_others_alone(reference):
    replica = make_replica()
    replica.submit(tickets(range(6)))  # 0, 1 and two attempts of 2 run, the rest waits
    replica.step()
    replica.cancel([0, 2, 5, 99])
    assert replica.active_slots <= 3
    groups, _ = finish(replica)
    assert sorted(groups) == [1, 3, 4]
    assert content(groups).items() <= content(reference[0]).items()
    assert replica.active_slots == 0
    replica.submit(tickets([0]))  # a cancelled ticket may come again
    assert content(finish(replica)[0]).items() <= content(reference[0]).items()
    replica.submit(tickets([1]))
    replica.step()
    replica.cancel([1])
    assert replica.is_empty
    replica.assign(1, WEIGHTS[1])


def test_misuse_is_refused():
    with pytest.raises(ConfigError, match="top_k"):
        make_replica(sampling=SamplingSettings(top_k=3))
    replica = make_replica()
    with pytest.raises(ValueError, match="largest bucket"):
        replica.submit([Ticket(number=0, problem=fake_problem(0, "q" * 24))])
    assert replica.is_empty
    with pytest.raises(ValueError, match="cache_length"):
        replica.submit(tickets([0]), sampling=SamplingSettings(max_new_tokens=1000))
    assert replica.is_empty


def test_a_prompt_is_read_once_for_all_attempts(reference):
    groups, blocks = reference
    # Groups of 3 do not divide prefills of 8 members: some prompt is read a second time.
    assert len(groups) <= sum(stats.num_prompts for stats in blocks) <= len(groups) * 8 / 6
    _, blocks = write(tickets(range(10)), fake_engine(prefill_members=12))
    assert sum(stats.num_prompts for stats in blocks) == 10


CHUNKED = fake_engine(prefill_lengths=(8,), cache_length=64, chunked_prefill=True)


def recorded():
    """`CHUNKED`, which notes in `calls` in which order chunks are read and blocks decoded."""
    engine = copy.copy(CHUNKED)
    engine.calls = []

    def noting(method, call):
        def noted(*given, **named):
            engine.calls.append(call)
            return method(*given, **named)

        return noted

    engine.prefill_chunk = noting(CHUNKED.prefill_chunk, "chunk")
    engine.generate = noting(CHUNKED.generate, "block")
    return engine


def test_a_long_prompt_is_read_between_blocks_and_holds_up_nobody():
    """Five chunks of 8; the shorter ones go on, and none of them waits for more than a chunk."""
    long = Ticket(number=1, problem=fake_problem(1, prompt="w" * 36))
    short = [Ticket(number=n, problem=fake_problem(n, prompt=f"{n}?")) for n in (2, 3, 4)]
    engine = recorded()
    replica = make_replica(engine, group_size=2)
    replica.submit(short[:1])
    replica.step()
    replica.submit([long, *short[1:]])
    engine.calls.clear()
    groups, stats = replica.step()
    assert engine.calls == ["chunk", "block"]
    assert stats.num_prompts == 2  # what came after the long prompt is decoding
    after, _ = finish(replica)
    between = replica.statistics()["num_chunks_between_blocks"]
    assert engine.calls.count("chunk") == 5
    # As long as anything decodes there is a block after every chunk.
    assert engine.calls[: 2 * between] == ["chunk", "block"] * between
    assert between >= 3
    expected, _ = write([long, *short], CHUNKED, group_size=2)  # nothing decodes yet: read at once
    assert content(after | {g.ticket.number: g for g in groups}) == content(expected)


def test_a_long_prompt_that_is_not_wanted_any_more_is_not_read_on():
    engine = recorded()
    replica, other = (make_replica(engine, group_size=2) for _ in range(2))
    long = [Ticket(number=n, problem=fake_problem(n, prompt="w" * 36)) for n in (1, 2)]
    replica.submit(tickets([5]))
    replica.step()
    replica.submit(long)
    replica.step()
    payload = replica.give([2])  # it was being read, so nothing is lost but the reading
    assert [attempt.prefix for attempt in payload.attempts] == [None, None]
    other.take(payload)
    replica.cancel([1])
    engine.calls.clear()
    finish(replica)
    assert "chunk" not in engine.calls
    groups, _ = finish(other)
    expected, _ = write(long, CHUNKED, group_size=2)
    assert content(groups) == content({2: expected[2]})


@pytest.mark.parametrize("keep_cache", [True, False])
def test_a_swap_to_equal_weights_changes_nothing_but_the_versions(reference, keep_cache):
    replica = make_replica()
    replica.submit(tickets(range(10)))
    done, _ = replica.step()
    groups = {group.ticket.number: group for group in done}
    running = replica.active_slots
    replica.swap(1, WEIGHTS[0], keep_cache=keep_cache)
    assert replica.version == 1
    assert replica.active_slots == (running if keep_cache else 0)
    rest, _ = finish(replica)
    groups |= rest
    expected = content(reference[0])
    found = content(groups)
    assert {k: tokens for k, (tokens, _) in found.items()} == {
        k: tokens for k, (tokens, _) in expected.items()
    }
    for key, (_, logprobs) in found.items():
        np.testing.assert_allclose(logprobs, expected[key][1], atol=1e-5)
    versions = {r.versions for group in groups.values() for r in group.rollouts}
    assert any(len(v) == 2 and v[0] == (0, 0) and v[1][1] == 1 for v in versions)
    assert {group.version for group in groups.values()} == {0}
    reread = replica.statistics()["num_tokens_reprefilled"]
    assert (reread > 0) != keep_cache


@pytest.mark.parametrize(
    "pages", [None, PageConfig(num_pages=32, page_size=8)], ids=["own", "paged"]
)
def test_a_replica_that_rests_gives_its_cache_up_and_goes_on_from_there(reference, pages):
    replica = make_replica(fake_engine(pages=pages))
    replica.submit(tickets(range(10)))
    done, _ = replica.step()
    groups = {group.ticket.number: group for group in done}
    before, running = replica.statistics(), replica.active_slots
    assert running > 2
    replica.rest()
    replica.rest()  # is no second one
    counts = replica.statistics()
    assert (counts["num_rests"], counts["num_slots_rested"]) == (1, running)
    assert (counts["num_slots_held"], counts.get("num_pages_held", 0)) == (0, 0)
    assert {k: v for k, v in before.items() if "held" not in k and v > counts[k]} == {}
    assert replica.step()[1].num_tokens == 0
    assert not replica.is_empty
    replica.cancel([9, 1])  # of a queue, and of what waits in host memory
    replica.submit(tickets([11]))
    replica.resume()
    rest, _ = finish(replica)
    expected = content(reference[0])
    found = content({n: group for n, group in (groups | rest).items() if n != 11})
    assert found == {key: value for key, value in expected.items() if key[0] not in (1, 9)}
    assert 11 in rest
    counts = replica.statistics()
    assert (counts["num_restarts"], counts["num_tokens_reprefilled"]) == (0, 0)
    replica.rest()
    replica.assign(1, WEIGHTS[1])  # an empty one may change version meanwhile
    replica.resume()
    replica.submit(tickets([0]))
    assert finish(replica)[0][0].version == 1


def test_a_long_prompt_that_is_being_read_is_read_anew_after_a_rest():
    long = Ticket(number=1, problem=fake_problem(1, prompt="w" * 36))
    replica = make_replica(CHUNKED, group_size=2)
    replica.submit(tickets([5]))
    replica.step()
    replica.submit([long])
    replica.step()
    replica.rest()
    replica.resume()
    alone, _ = write([*tickets([5]), long], CHUNKED, group_size=2)
    assert content(finish(replica)[0]) == content(alone)


def test_a_trace_of_lengths_ends_every_attempt():
    def limits(ticket):
        return tuple(1 + (ticket.number + attempt) % 7 for attempt in range(3))

    groups, _ = write(tickets(range(6)), limits=limits)
    for group in groups.values():
        for rollout in group.rollouts:
            limit = limits(group.ticket)[rollout.attempt]
            assert len(rollout.tokens) <= limit
            if rollout.finish_reason == "length":
                assert len(rollout.tokens) == limit
    assert {r.finish_reason for g in groups.values() for r in g.rollouts} >= {"length"}
    assert sorted(groups) == list(range(6))


def test_an_empty_step_does_nothing():
    groups, stats = make_replica().step()
    assert groups == []
    assert (stats.num_tokens, stats.active_slots, stats.num_prompts) == (0, 0, 0)
