import dataclasses
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from loong_jax.synth import calls
from loong_jax.synth.authors import AuthorDown
from loong_jax.synth.calls import CallStore, Request, Settings
from tests.synth.scripted import Said, play
from tests.synth.scripted.played import ATTEMPTS

SCHEMA = calls.fields(code=str)


def requests(count, **changes):
    fields = {"domain": "maths", "packages": "sympy"}
    return [
        Request(
            role="coder", prompt_name="loongenv/code", schema=SCHEMA,
            fields={"question": f"number {n}", **fields}, **changes,
        )
        for n in range(count)
    ]  # fmt: skip


def test_replies_come_in_order_and_are_paid_for_once(scripted, author):
    server = scripted()
    first = author(server, max_parallel=4)
    replies = first.ask(requests(12) + requests(12))
    assert [r.parsed["code"] for r in replies] == [f"print('number {n}')" for n in range(12)] * 2
    assert all(r.failure is None for r in replies)
    assert len(server.ledger.entries) == 12, "equal requests are one call"
    assert first.budget.num_requests == 12
    first.close()
    first.store.close()
    second = author(server)
    again = second.ask(requests(12))
    assert [r.text for r in again] == [r.text for r in replies[:12]]
    assert len(server.ledger.entries) == 12
    assert second.budget.num_requests == 12, "what the store holds counts against the budget"
    second.ask(requests(1, seed=1))
    assert len(server.ledger.entries) == 13, "another seed is another call"


def test_a_transcript_says_all_that_was_asked(scripted, author):
    server = scripted()
    made = author(server, settings={"coder": Settings(temperature=0.7, max_reply_tokens=99)})
    [reply] = made.ask(requests(1, seed=5))
    said = reply.transcript
    assert said.settings == {"temperature": 0.7, "max_tokens": 99}
    assert (said.model, said.seed, said.role) == ("scripted", 5, "coder")
    assert said.prompt_tokens + said.reply_tokens > 100
    assert not said.is_estimate
    assert play.digest(said.messages, said.seed) == server.ledger.entries[0]["digest"]
    assert json.loads(said.reply) == reply.parsed
    [other] = made.ask(
        [Request(role="another", prompt_name="loongenv/code", fields=requests(1)[0].fields, seed=5)]
    )
    assert other.transcript.key != said.key, "other settings are another call"
    assert other.parsed is None
    assert other.text == reply.text


@pytest.mark.parametrize(
    ("defect", "failure", "is_paid"),
    [
        ("refusal", "refused", True), ("malformed_json", "malformed", True),
        ("missing_key", "malformed", True), ("truncated", "truncated", True),
        ("timed_out", "timed_out", False), ("http_500", "http_500", False),
        ("dropped", "unreachable", False), ("rate_limited", None, True),
    ],
)  # fmt: skip
def test_failures_are_data(scripted, author, defect, failure, is_paid):
    server = scripted(rates={defect: 1.0})
    made = author(server, endpoint={"timeout_s": 0.3})
    [reply] = made.ask(requests(1))
    assert reply.failure == failure
    assert (reply.text is None) == (failure is not None)
    assert server.ledger.entries[-1]["defect"] == defect
    if is_paid:
        assert reply.transcript.reply
    made.close()
    assert len(made.store) == 1, "a failure that stands is kept as well"
    made.store.close()
    asked = len(server.ledger.entries)
    [again] = author(server).ask(requests(1))
    assert again.failure == failure
    assert len(server.ledger.entries) == asked


def test_a_budget_ends_the_asking_and_is_no_answer(scripted, author):
    server = scripted()
    made = author(server, budget={"max_requests": 3}, max_parallel=1)
    replies = made.ask(requests(5))
    assert [r.failure for r in replies] == [None] * 3 + ["over_budget"] * 2
    assert len(made.store) == 3
    made.close()
    made.store.close()
    assert author(server, budget={"max_requests": 9}).ask(requests(5))[4].failure is None
    assert len(server.ledger.entries) == 5


def test_an_endpoint_that_is_down_is_told_from_bad_luck(scripted, author):
    server = scripted(rates={"http_500": 1.0})
    made = author(server, max_parallel=1)
    replies = made.ask(requests(10))
    assert [r.failure for r in replies] == ["http_500"] * 8 + ["down"] * 2
    with pytest.raises(AuthorDown, match="http_500"):
        made.require_up()
    made.close()
    assert len(made.store) == 0, "an outage decides nothing"


def test_calls_that_run_out_of_time_together_are_no_outage(scripted, author):
    """Begun with others that were answered, they end one after the other, long after those."""
    made = author(scripted(rates={"timed_out": 0.75}), max_parallel=16, endpoint={"timeout_s": 1.0})
    failures = [reply.failure for reply in made.ask(requests(16))]
    assert failures.count("timed_out") >= 8
    assert set(failures) == {None, "timed_out"}
    made.require_up()
    made.close()
    assert len(made.store) == 16


def test_a_failure_after_the_last_reply_is_stored_when_a_run_settles(scripted, author):
    """Which call ends last is the machine's affair; what a run finds in the store is not."""
    server = scripted(rates={"http_500": 1.0})
    made = author(server)
    [failed] = made.ask(requests(1))
    assert failed.transcript.key not in made.store
    [again] = made.ask(requests(1))
    assert again.transcript == failed.transcript
    assert len({entry["digest"] for entry in server.ledger.entries}) == 1
    assert made.budget.num_requests == 1, "it is final, and known"
    made.settle()
    assert made.store.get(failed.transcript.key) == dataclasses.asdict(failed.transcript) | {
        "messages": [dict(message) for message in failed.transcript.messages]
    }


def test_a_slow_machine_leaves_no_trace(scripted, author):
    """Replies that come too late are asked for again; what fails on purpose says that it does."""
    late, lock = {}, threading.Lock()

    def role(ask):
        question = ask.fields["question"]
        with lock:
            late[question] = late.get(question, 0) + 1
        if late[question] <= slowness:
            time.sleep(0.7)
        return Said(json.dumps({"code": question}))

    rates = {"timed_out": 0.2, "http_500": 0.2, "dropped": 0.2, "rate_limited": 0.2}
    found = []
    for slowness in (0, 3):
        late.clear()
        server = scripted(rates=rates, table={"loongenv/code": role})
        made = author(
            server, store=f"{slowness}.jsonl",
            endpoint={"timeout_s": 0.4, "max_attempts": ATTEMPTS},
        )  # fmt: skip
        replies = made.ask(requests(20))
        found.append([reply.transcript for reply in replies])
        assert {reply.failure for reply in replies} == {
            None, "timed_out", "http_500", "unreachable"
        }  # fmt: skip
    assert found[0] == found[1]


def test_a_killed_process_repeats_no_paid_call(scripted, tmp_path):
    """SIGKILL right after a reply is stored and before anybody has used it."""
    server = scripted()
    program = textwrap.dedent(
        f"""
        import os, signal
        from loong_jax.synth.authors import Author
        from loong_jax.synth.calls import CallStore
        from loong_jax.verifiers.judge.client import Endpoint
        from tests.synth.test_authors import requests
        store = CallStore({str(tmp_path / "calls.jsonl")!r})
        put = store.put
        def put_and_die(key, record):
            put(key, record)
            if len(store) == 3:
                os.kill(os.getpid(), signal.SIGKILL)
        store.put = put_and_die
        endpoint = Endpoint(base_url={server.url!r}, model="scripted")
        Author(endpoint, store, max_parallel=1).ask(requests(6))
        """
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": "."}, timeout=240,
        check=False,
    )  # fmt: skip
    assert ran.returncode == -signal.SIGKILL
    with CallStore(tmp_path / "calls.jsonl") as store:
        assert len(store) == 3
    again = subprocess.run(
        [sys.executable, "-c", program.replace("== 3", "== 99")], timeout=240, check=False,
        env=os.environ | {"PYTHONPATH": "."},
    )  # fmt: skip
    assert again.returncode == 0
    digests = [entry["digest"] for entry in server.ledger.entries]
    assert len(digests) == len(set(digests)) == 6
