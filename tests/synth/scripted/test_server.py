import json
import socket
import struct
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest

from loong_jax.errors import ConfigError
from loong_jax.synth.authors import prompts
from loong_jax.verifiers.judge import prompts as judge_prompts
from tests.synth.scripted import Defect, Plan

FIELDS = {"question": "7 * 8?", "domain": "maths", "packages": "none"}


def post(server, messages, **body):
    body = {"model": "m", "messages": messages, **body}
    request = urllib.request.Request(
        f"{server.url}/chat/completions", json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )  # fmt: skip
    with urllib.request.urlopen(request, timeout=10) as response:
        return json.loads(response.read())


def test_it_speaks_the_api_and_repeats_itself(scripted):
    asked = prompts.messages(prompts.load("loongenv/code"), FIELDS)
    answers = [post(scripted(seed=3), asked, seed=1) for _ in range(2)]
    assert answers[0] == answers[1]
    assert json.loads(answers[0]["choices"][0]["message"]["content"]) == {"code": "print('7 * 8?')"}
    assert answers[0]["usage"]["total_tokens"] > 0


def test_what_no_role_knows_is_refused(scripted):
    server = scripted()
    for messages in ([{"role": "user", "content": "hello"}] * 2, [], [1]):
        with pytest.raises(urllib.error.HTTPError, match="400"):
            post(server, messages)


def test_a_client_that_hangs_up_leaves_no_trace(scripted, capsys):
    before = set(threading.enumerate())
    place = urllib.parse.urlsplit(scripted().url)
    with socket.create_connection((place.hostname, place.port)) as client:
        client.sendall(b"POST /v1/")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        deadline = time.monotonic() + 10
        handlers = set()  # those that have started
        while not handlers and time.monotonic() < deadline:
            time.sleep(0.01)
            handlers = {thread for thread in handling() - before if thread.ident}
    for thread in handlers:
        thread.join(10)
    assert len(handlers) == 1
    assert capsys.readouterr().err == ""


def handling():
    return {t for t in threading.enumerate() if "process_request" in t.name}


def test_it_reads_the_judges_own_prompts(scripted):
    heard = []

    def judge(ask):
        heard.append(ask.fields)
        from tests.synth.scripted import Said

        return Said('{"verdict": "correct"}')

    data = {"question": "<q>", "reference": "1", "answer": "one"}
    post(scripted(table={"judge/direct": judge}), judge_prompts.messages("direct", data))
    assert heard == [data]


def test_a_plan_plants_at_its_rates(scripted):
    import random

    defects = (Defect(name="a", about="", rate=0.1), Defect(name="b", about="", rate=0.2))
    plan = Plan(defects=defects, scale=2.0)
    rng = random.Random(0)
    drawn = [plan.draw("any", rng) for _ in range(4000)]
    assert abs(drawn.count("a") / 4000 - 0.2) < 0.02
    assert abs(drawn.count("b") / 4000 - 0.4) < 0.03
    with pytest.raises(ConfigError, match="Known"):
        Plan(defects=defects, rates={"c": 0.1})
