"""The gRPC interface, by a client of ours and by what JetStream's clients send."""

import contextlib
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from loong_jax.rollout.serving.grpc_service import messages
from tests.processes import wait_until
from tests.rollout.serving import live

TIMEOUT_S = 30


@pytest.fixture(scope="module")
def channel(server):
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as found:
        yield found


def decode(channel, request, *, key=live.GRPC_KEY, timeout=TIMEOUT_S):
    """The call; `request` is a message or bytes."""
    data = request if isinstance(request, bytes) else request.SerializeToString()
    return live.decoding(channel)(data, metadata=key, timeout=timeout)


def control(channel, name, request, answer=messages.StatusResponse, *, key=live.GRPC_KEY):
    call = channel.unary_unary(f"/loong.Control/{name}", response_deserializer=answer.FromString)
    return call(request.SerializeToString(), metadata=key, timeout=TIMEOUT_S)


@contextlib.contextmanager
def failing(code):
    with pytest.raises(grpc.RpcError) as caught:
        yield caught
    assert caught.value.code() is code


def text_request(text, **fields):
    content = messages.DecodeRequest.TextContent(text=text)
    return messages.DecodeRequest(**({"text_content": content, "max_tokens": 10} | fields))


def samples(responses):
    """Text, tokens, log-probabilities and reason of every sample."""
    found = []
    for response in responses:
        assert response.policy_version == 7
        for i, sample in enumerate(response.stream_content.samples):
            if len(found) <= i:
                found.append(["", [], [], ""])
            found[i][0] += sample.text
            found[i][1] += sample.token_ids
            found[i][2] += sample.log_probs
            found[i][3] = sample.finish_reason or found[i][3]
    return found


def test_decode_and_completions_agree(server, channel):
    for settings in ({}, {"seed": 3, "temperature": 0.9, "top_p": 0.8, "num_samples": 3}):
        found = samples(decode(channel, text_request("let x be", **settings)))
        body = {"prompt": "let x be", "max_tokens": 10, "logprobs": 0, "temperature": 0}
        body |= {"n": 3, **settings} if settings else {}
        body.pop("num_samples", None)
        choices = server.post("/v1/completions", body)[2]["choices"]
        assert [sample[0] for sample in found] == [choice["text"] for choice in choices]
        assert [sample[3] for sample in found] == [choice["finish_reason"] for choice in choices]
        for sample, choice in zip(found, choices, strict=True):
            wanted = choice["logprobs"]["token_logprobs"]
            assert sample[2] == pytest.approx(wanted, abs=1e-6)
            decoded = [server.frontend.tokenizer.decode([token]) for token in sample[1]]
            assert decoded == choice["logprobs"]["tokens"]


def test_tokens_with_and_without_bos(server, channel):
    as_text = samples(decode(channel, text_request("ab")))
    for ids, has_bos in ((b"ab", False), (b"\x01ab", True)):
        content = messages.DecodeRequest.TokenContent(token_ids=list(ids))
        request = messages.DecodeRequest(token_content=content, has_bos=has_bos, max_tokens=10)
        assert samples(decode(channel, request)) == as_text


def test_what_an_older_client_sends_is_read(channel):
    """Its fields 1 to 3 are gone from the protocol, and unknown to us."""
    old = b"\x0a\x00\x18\x01"  # session_cache="", priority=1
    request = old + text_request("ab").SerializeToString()
    assert samples(decode(channel, request)) == samples(decode(channel, text_request("ab")))


def test_health(channel):
    call = channel.unary_unary(
        "/jetstream_proto.Orchestrator/HealthCheck",
        response_deserializer=messages.HealthCheckResponse.FromString,
    )
    assert call(b"", timeout=TIMEOUT_S).is_live


REFUSED = {
    "no message": b"\xff\xff\xff",
    "no content": messages.DecodeRequest(max_tokens=3),
    "an adapter": text_request("a", lora_adapter_id="x"),
    "max_tokens": text_request("a", max_tokens=-1),
    "more tokens than fit": text_request("a", max_tokens=128),
    "num_samples": text_request("a", num_samples=99),
    "a character without token": text_request("漢"),
    "a long prompt": text_request("a" * 300),
    "temperature": text_request("a", temperature=float("nan")),
    "temperature too big": text_request("a", temperature=float("inf")),
    "top_p": text_request("a", top_p=float("nan")),
    "min_p": text_request("a", min_p=-0.5),
    "top_k": text_request("a", top_k=-1),
    "stop": text_request("a", stop=["x"] * 5),
    "timeout_s": text_request("a", timeout_s=float("nan")),
    "tokens": messages.DecodeRequest(
        token_content=messages.DecodeRequest.TokenContent(token_ids=[1, -5])
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_named(channel, case):
    with failing(grpc.StatusCode.INVALID_ARGUMENT) as caught:
        list(decode(channel, REFUSED[case]))
    assert caught.value.details().endswith(".")


def test_keys_and_unknown_methods(channel):
    with failing(grpc.StatusCode.UNAUTHENTICATED):
        list(decode(channel, text_request("a"), key=()))
    for name in ("Status", "Pause", "Abort"):
        with failing(grpc.StatusCode.UNAUTHENTICATED):
            control(channel, name, messages.StatusRequest(), key=())
    with failing(grpc.StatusCode.UNIMPLEMENTED):
        control(channel, "Explode", messages.StatusRequest())


def test_pause_abort_resume(server, channel):
    server.wait_until_empty()
    assert control(channel, "Pause", messages.PauseRequest()).is_paused
    calls = {name: decode(channel, text_request("a", request_id=name)) for name in "xy"}
    wait_until(lambda: control(channel, "Status", messages.StatusRequest()).num_requests == 2)
    abort = messages.AbortRequest(request_id="x")
    assert control(channel, "Abort", abort, messages.AbortResponse).was_running
    with failing(grpc.StatusCode.ABORTED):
        list(calls["x"])
    assert not control(channel, "Abort", abort, messages.AbortResponse).was_running
    with pytest.raises(grpc.RpcError) as caught:
        list(decode(channel, text_request("a", request_id="y")))
    assert "in use" in caught.value.details()
    assert not control(channel, "Resume", messages.ResumeRequest()).is_paused
    assert len(samples(calls["y"])[0][1]) > 0
    server.check_no_leak()


def test_deadlines_and_cancels_free_slots(server, channel):
    server.wait_until_empty()
    server.scheduler.pause()
    with failing(grpc.StatusCode.DEADLINE_EXCEEDED):
        list(decode(channel, text_request("a", timeout_s=0.1)))
    with failing(grpc.StatusCode.DEADLINE_EXCEEDED):
        list(decode(channel, text_request("a"), timeout=0.1))
    call = decode(channel, text_request("a", num_samples=4))
    wait_until(lambda: server.scheduler.status().num_requests == 1)
    call.cancel()
    wait_until(server.is_empty)
    server.scheduler.resume()
    server.check_no_leak()


def test_a_full_queue_says_when_to_come_back(server, channel):
    server.wait_until_empty()
    server.scheduler.pause()
    calls = [decode(channel, text_request("a", num_samples=7)) for _ in range(4)]
    wait_until(lambda: server.scheduler.status().num_waiting == 28)
    with failing(grpc.StatusCode.RESOURCE_EXHAUSTED) as caught:
        list(decode(channel, text_request("a")))
    assert int(dict(caught.value.trailing_metadata())["retry-after"]) >= 1
    server.scheduler.resume()
    assert [len(samples(call)) for call in calls] == [7] * 4
    server.check_no_leak()


def test_many_clients_at_once(server, channel):
    requests = [text_request("a" * i, seed=i, temperature=1.0) for i in range(1, 13)]
    wanted = [samples(decode(channel, request)) for request in requests]
    with ThreadPoolExecutor(len(requests)) as pool:
        found = list(pool.map(lambda request: samples(decode(channel, request)), requests))
    for one, other in zip(found, wanted, strict=True):
        assert one[0][:2] == other[0][:2]
