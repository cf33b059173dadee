"""The HTTP interface over the real engine, by a plain client of sockets."""

import json
import threading
import time

import numpy as np
import pytest

from tests.processes import wait_until
from tests.rollout.engine_runs import Run, request
from tests.rollout.serving import live

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


def ask(text="1+1=", **settings):
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 12} | settings


def events(text):
    """The JSON of every event; the last must be [DONE]."""
    found = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert found[-1] == "[DONE]"
    return [json.loads(line) for line in found[:-1]]


def by_engine(prompt, num_tokens):
    """Greedy tokens and their log-probabilities, by the engine's own calls."""
    asked = request(0, greedy=True, max_new_tokens=num_tokens)
    run = Run(*live.engine_and_weights()).fill([np.array(prompt, np.int32)], [2], [asked])
    run.decode(-(-num_tokens // 4))
    return run.tokens[0], run.log_probs[0]


def test_a_greedy_completion_is_what_the_engine_writes(server):
    prompt = [1, *b"let x be "]
    tokens, log_probs = by_engine(prompt, 10)
    body = {"model": "tiny", "prompt": prompt, "temperature": 0, "max_tokens": 10, "logprobs": 0}
    status, _, answer = server.post(TEXT, body)
    assert status == 200
    (choice,) = answer["choices"]
    tokenizer = server.frontend.tokenizer
    assert choice["text"] == tokenizer.decode([t for t in tokens if t != tokenizer.eos_id])
    assert choice["logprobs"]["tokens"] == [tokenizer.decode([token]) for token in tokens]
    np.testing.assert_allclose(choice["logprobs"]["token_logprobs"], log_probs, atol=1e-5)
    assert choice["logprobs"]["text_offset"][0] == 0
    assert choice["finish_reason"] == ("stop" if tokens[-1] == tokenizer.eos_id else "length")
    count = len(tokens)
    assert answer["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": count,
        "total_tokens": 10 + count,
    }
    as_text = server.post(TEXT, body | {"prompt": "let x be ", "model": None})[2]
    assert as_text["choices"] == answer["choices"]  # <bos> is put in front of a text


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_a_stream_adds_up_to_the_whole_answer(server, path):
    body = ask(n=3, seed=5, temperature=0.7, top_p=0.9, logprobs=True)
    if path == TEXT:
        del body["messages"]
        body |= {"prompt": ["ab", "cde"], "logprobs": 0}
    whole = server.post(path, body)[2]
    extras = {"stream": True, "stream_options": {"include_usage": True}}
    status, headers, text = server.post(path, body | extras)
    assert status == 200
    assert headers.get_content_type() == "text/event-stream"
    chunks = events(text)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == whole["usage"]
    num_choices = 3 if path == CHAT else 6
    for index in range(num_choices):
        mine = [c["choices"][0] for c in chunks[:-1] if c["choices"][0]["index"] == index]
        wanted = whole["choices"][index]
        assert mine[-1]["finish_reason"] == wanted["finish_reason"]
        assert all(chunk["finish_reason"] is None for chunk in mine[:-1])
        if path == CHAT:
            assert mine[0]["delta"] == {"role": "assistant", "content": ""}
            text = "".join(chunk["delta"].get("content", "") for chunk in mine)
            assert text == wanted["message"]["content"]
            log_probs = [e for c in mine if c["logprobs"] for e in c["logprobs"]["content"]]
            assert log_probs == wanted["logprobs"]["content"]
        else:
            assert "".join(chunk["text"] for chunk in mine) == wanted["text"]
            for name in ("tokens", "token_logprobs", "text_offset"):
                found = [e for c in mine if c["logprobs"] for e in c["logprobs"][name]]
                assert found == wanted["logprobs"][name]
    texts = [str(choice) for choice in whole["choices"]]
    assert len(set(texts)) == num_choices  # members of a group draw from streams of their own


def test_seeds_repeat_and_their_absence_does_not(server):
    def texts(**settings):
        body = ask(n=2, temperature=1.5, max_tokens=20, **settings)
        return [c["message"]["content"] for c in server.post(CHAT, body)[2]["choices"]]

    assert texts(seed=3) == texts(seed=3)
    assert texts(seed=3) != texts(seed=4)
    assert texts() != texts()


def test_a_group_reads_its_prompt_once(server):
    before = server.scheduler.metrics.prompts._value.get()
    assert server.post(CHAT, ask(n=4))[0] == 200
    assert server.scheduler.metrics.prompts._value.get() - before == 1


def test_stop_strings_end_a_sample_and_free_its_slot(server):
    body = ask(seed=1, temperature=1.0, max_tokens=60)
    text = server.post(CHAT, body)[2]["choices"][0]["message"]["content"]
    stop = text[7:9]
    blocks = server.scheduler.metrics.blocks._value.get()
    for streams in (False, True):
        _, _, answer = server.post(CHAT, body | {"stop": ["no such text", stop], "stream": streams})
        if streams:
            choices = [chunk["choices"][0] for chunk in events(answer)]
            found = "".join(choice["delta"].get("content", "") for choice in choices)
            reason = choices[-1]["finish_reason"]
        else:
            found = answer["choices"][0]["message"]["content"]
            reason = answer["choices"][0]["finish_reason"]
            assert answer["usage"]["completion_tokens"] < 20
        assert found == text[: text.index(stop)]
        assert reason == "stop"
    assert server.scheduler.metrics.blocks._value.get() - blocks < 2 * 60 / 4 / 2


def test_models_health_and_metrics(server):
    assert server.http("GET", "/v1/models")[2]["data"][0]["id"] == "tiny"
    assert server.http("GET", "/v1/models/tiny")[2]["max_model_len"] == 129
    status, _, answer = server.http("GET", "/v1/models/gpt-5")
    assert (status, answer["error"]["code"]) == (404, "model_not_found")
    assert server.http("GET", "/health", key="")[0] == 200
    text = server.http("GET", "/metrics", key="")[2]
    assert 'loong_requests_total{outcome="done"}' in text
    assert "loong_block_seconds_bucket" in text
    assert server.http("GET", "/v2/x")[2]["error"]["message"] == "GET /v2/x: Not Found."
    assert server.http("GET", CHAT)[0] == 405


@pytest.mark.parametrize("key", ["", "wrong", live.KEY + "x", "ü"])
def test_a_wrong_key_is_refused(server, key):
    for path in (CHAT, TEXT):
        status, _, answer = server.post(path, ask(), headers={"Authorization": f"Bearer {key}"})
        assert status == 401
        assert answer["error"]["code"] == "invalid_api_key"
    assert server.http("GET", "/v1/models", key=key)[0] == 401


IMAGE = {"type": "image_url", "image_url": {"url": "x"}}
REFUSED = {
    "no JSON": b"{",
    "no UTF-8": b'{"messages": "\xff"}',
    "NaN": b'{"prompt": "a", "temperature": NaN}',
    "deep": b"[" * 30_000,
    "an array": b"[]",
    "no content": {},
    "no message": ask(messages=[]),
    "a message that is none": ask(messages=[3]),
    "a role": ask(messages=[{"role": "king", "content": "x"}]),
    "an image": ask(messages=[{"role": "user", "content": [IMAGE]}]),
    "a character without token": ask("漢"),
    "half a pair": ask("\ud800"),
    "temperature": ask(temperature=-1),
    "temperature too small": ask(temperature=1e-30),
    "temperature too big": ask(temperature=10**400),
    "temperature of another type": ask(temperature="hot"),
    "top_p": ask(top_p=0),
    "n": ask(n=9),
    "n of another type": ask(n=True),
    "n with a fraction": ask(n=1.5),
    "max_tokens": ask(max_tokens=0),
    "more tokens than fit": ask(max_tokens=126),
    "a prompt that is too long": ask("x" * 200),
    "stop": ask(stop=[""]),
    "many stops": ask(stop=list("abcde")),
    "top_logprobs": ask(logprobs=True, top_logprobs=2),
    "tools": ask(tools=[{"type": "function"}]),
    "penalty": ask(presence_penalty=1.0),
    "an unknown name": ask(temprature=1.0),
    "half a pair as a name": ask(**{"\ud800": 1}),
    "a long unknown name": ask(**{"x" * 5000: 1}),
    "a part that is no text": ask(messages=[{"role": "user", "content": [IMAGE | {"text": "x"}]}]),
    "calls of tools": ask(messages=[{"role": "assistant", "content": "x", "tool_calls": [{}]}]),
    "seed": ask(seed=2**64),
    "stream": ask(stream=1),
    "stream_options": ask(stream_options=[]),
    "another model": ask(model="gpt-5"),
    "a model that is no text": ask(model=3),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_named(server, case):
    status, _, answer = server.post(CHAT, REFUSED[case])
    assert status == (404 if case == "another model" else 400)
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert answer["error"]["message"].endswith((".", "'"))
    assert len(answer["error"]["message"]) < 400


def test_a_prompt_longer_than_the_cache_is_told_the_limit(server):
    status, _, answer = server.post(TEXT, {"prompt": [40] * 129})
    assert status == 400
    assert "129 tokens" in answer["error"]["message"]
    assert "cache_length=128" in answer["error"]["message"]


def test_messages_of_an_answer_may_be_sent_back(server):
    _, _, answer = server.post(CHAT, ask(max_tokens=2, seed=1))
    said = answer["choices"][0]["message"]
    empty = {"tool_calls": None, "function_call": None, "annotations": [], "name": "bot"}
    turns = [
        *({"role": "user", "content": "1"}, {"role": "assistant", "content": "2"} | empty),
        *({"role": "assistant", "content": "3", "refusal": said["refusal"]},),
        *({"role": "user", "content": [{"type": "text", "text": "4"}]},),
    ]
    assert server.post(CHAT, ask(messages=turns, max_tokens=2))[0] == 200


@pytest.mark.parametrize("prompt", [[], [[]], [1, "a"], [-1], [128], [2**40], 3, ["a"] * 9, ""])
def test_odd_prompts(server, prompt):
    status, _, _ = server.post(TEXT, {"prompt": prompt, "max_tokens": 2})
    assert status == (200 if prompt == "" else 400)  # <bos> alone is a prompt


def test_bodies_have_a_limit_of_size(server):
    status, _, answer = server.post(CHAT, b"x" * (2**16 + 1))
    assert (status, answer["error"]["code"]) == (413, "too_long")


def test_bodies_have_a_limit_of_time(server):
    with server.sending(CHAT, b"{", length=100) as sock:
        answer = sock.recv(4096).decode()
    assert answer.startswith("HTTP/1.1 408")


def test_many_prompts_more_than_slots(server):
    answer = server.post(TEXT, {"prompt": ["a", "bb", "ccc", "dddd"], "n": 2, "max_tokens": 9})[2]
    assert [choice["index"] for choice in answer["choices"]] == list(range(8))
    assert answer["usage"]["prompt_tokens"] == 2 + 3 + 4 + 5


def test_a_client_that_goes_takes_its_request_along(server):
    server.wait_until_empty()
    done = server.scheduler.metrics.requests.labels("cancelled")._value
    before = done.get()
    for streams in (True, False):
        server.scheduler.pause()  # so that it cannot end by itself
        body = json.dumps(ask(max_tokens=100, stream=streams, n=4)).encode()
        with server.sending(CHAT, body) as sock:
            wait_until(lambda: server.scheduler.status().num_requests == 1)
            if streams:
                assert sock.recv(15) == b"HTTP/1.1 200 OK"
        wait_until(server.is_empty)
        server.scheduler.resume()
    assert done.get() - before == 2
    server.check_no_leak()


def test_a_pause_changes_no_token(server):
    body = ask(seed=9, temperature=1.0, max_tokens=100)
    wanted = server.post(CHAT, body)[2]["choices"]
    server.scheduler.pause()
    time.sleep(0.05)
    threading.Timer(0.3, server.scheduler.resume).start()
    assert server.post(CHAT, body)[2]["choices"] == wanted
