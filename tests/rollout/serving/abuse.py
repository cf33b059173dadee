"""Malformed and abusive requests, drawn from a seed: each is a function of a server.

A function returns what came of it: an HTTP status, a gRPC code's name, or what the client did.
Sockets have time-outs, and everything goes to 127.0.0.1.
"""

import contextlib
import inspect
import json
import random
import socket
import struct

import grpc

from loong_jax.rollout.serving.grpc_service import messages
from tests.rollout.serving import live

TIMEOUT_S = 10.0
PATHS = ("/v1/chat/completions", "/v1/completions")
ODD_VALUES = (
    None, True, False, -1, 0, 1, 2**31, 2**63, 10**300, -0.0, 1e-308, 1e308, "", "x", "\ud800",
    "漢", "\x00", "x" * 5000, [], [[]], [None], [0] * 3000, {}, {"a": {"b": []}}, [1, "a"],
    ["a"] * 20,
    [{"role": "user", "content": "x" * 3000}], [{"role": 3}], [{"role": "user", "content": [1]}],
)  # fmt: skip
FIELDS = (
    *("prompt", "messages", "max_tokens", "n", "temperature", "top_p", "top_k", "min_p", "seed"),
    *("stop", "stream", "stream_options", "logprobs", "top_logprobs", "model", "echo", "user"),
    *("tools", "best_of", "surprise"),
)


def draw(rng):
    """One abusive request: a function of this module that takes a server and a generator."""
    kind, seed = rng.choice(KINDS), rng.getrandbits(32)
    return lambda server: kind(server, random.Random(seed))


# ---- HTTP


def garbage(server, rng):
    return _raw(server.port, rng.randbytes(rng.randrange(1, 2000)))


def broken_head(server, rng):
    lines = [
        f"POST {rng.choice(PATHS)} HTTP/{rng.choice(['1.1', '9.9', ''])}",
        rng.choice(
            ["Host: x", "Host", ": x", "Host: x\x00", "X: " + "y" * rng.choice([10, 70_000])]
        ),
        rng.choice(["Content-Length: -1", "Content-Length: x", "Transfer-Encoding: chunked", "a"]),
    ]
    return _raw(server.port, ("\r\n".join(lines) + "\r\n\r\nzz\r\n").encode())


def broken_body(server, rng):
    good = json.dumps({"prompt": "abc", "max_tokens": 4}).encode()
    at = rng.randrange(len(good))
    body = rng.choice(
        [
            good[:at],
            good[:at] + rng.randbytes(3) + good[at:],
            b"\xff\xfe" + good,
            b'{"prompt": "a", "temperature": '
            + rng.choice([b"NaN", b"-Infinity", b"1e999"])
            + b"}",
            b'{"a":' * rng.randrange(1, 9000),
            b"9" * 6000,
            b'{"prompt": "' + b"x" * 60_000 + b'"}',
            b"x" * (server.frontend.limits.max_body_bytes + rng.randrange(1, 9)),
        ]
    )
    return _post(server, rng, body)


def odd_values(server, rng):
    body = {"prompt": "abc"} if rng.random() < 0.5 else {"messages": [_message(rng)]}
    body["max_tokens"] = rng.choice([1, 5, 50])
    for name in rng.sample(FIELDS, rng.randrange(1, 4)):
        body[name] = rng.choice(ODD_VALUES)
    return _post(server, rng, json.dumps(body).encode())


def wrong_key(server, rng):
    key = rng.choice(["", "x", live.KEY[:-1], live.KEY * 50])
    return server.post(rng.choice(PATHS), {"prompt": "a"}, key=key, timeout=TIMEOUT_S)[0]


def wrong_method(server, rng):
    method = rng.choice(["GET", "PUT", "DELETE", "OPTIONS", "BREW"])
    path = rng.choice([*PATHS, "/", "/v1", "/v1/models/%00", "/../../etc/passwd", "/" + "a" * 3000])
    return server.http(method, path, timeout=TIMEOUT_S)[0]


def gone_while_answered(server, rng):
    """Reads a little of an answer, or nothing, and goes, with or without a goodbye."""
    body = json.dumps(
        {"prompt": "ab", "n": rng.randrange(1, 5), "max_tokens": 100, "stream": rng.random() < 0.8}
    ).encode()
    with _connected(server.port) as sock:
        sock.sendall(_head(rng, len(body)) + body)
        if rng.random() < 0.7:
            sock.recv(rng.choice([1, 100, 1000]))
        if rng.random() < 0.5:  # a reset instead of an end
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return "gone"


def gone_while_asking(server, rng):
    with _connected(server.port) as sock:
        sock.sendall(_head(rng, 5000) + b"{" * rng.randrange(100))
    return "gone"


def too_big_a_promise(server, rng):
    with _connected(server.port) as sock:
        sock.sendall(_head(rng, 10**12))
        return _status(sock)


# ---- gRPC


def grpc_garbage(server, rng):
    return _raw(server.grpc_port, rng.randbytes(rng.randrange(1, 3000)), wait_s=0.05)


def grpc_no_message(server, rng):
    return _decode(server, rng, rng.randbytes(rng.randrange(1, 200)))


def grpc_flipped(server, rng):
    data = bytearray(_request(rng).SerializeToString())
    for _ in range(rng.randrange(1, 4)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return _decode(server, rng, bytes(data))


def grpc_odd(server, rng):
    request = _request(rng)
    numbers = (-(2**31), -1, 0, 1, 3, 100, 2**31 - 1)
    floats = (float("nan"), float("inf"), -float("inf"), -1.0, 0.0, 1e-320, 1e300)
    for _ in range(rng.randrange(1, 4)):
        name = rng.choice(["max_tokens", "num_samples", "top_k"])
        setattr(request, name, rng.choice(numbers))
        name = rng.choice(["temperature", "top_p", "min_p", "timeout_s"])
        setattr(request, name, rng.choice(floats))
    if rng.random() < 0.3:
        request.token_content.token_ids.extend(rng.choice([[-5], [2**31 - 1], [0] * 400]))
    return _decode(server, rng, request.SerializeToString())


def grpc_huge(server, rng):
    content = messages.DecodeRequest.TextContent(text="x" * rng.choice([300, 9000, 70_000]))
    return _decode(server, rng, messages.DecodeRequest(text_content=content).SerializeToString())


def grpc_cancelled(server, rng):
    request = _request(rng, max_tokens=100, num_samples=rng.randrange(1, 5))
    with _channel(server) as channel:
        call = live.decoding(channel)(
            request.SerializeToString(), metadata=live.GRPC_KEY, timeout=TIMEOUT_S
        )
        if rng.random() < 0.6:
            with contextlib.suppress(grpc.RpcError):
                next(call)
        call.cancel()
    return "gone"


def grpc_unknown(server, rng):
    path = rng.choice(["/jetstream_proto.Orchestrator/X", "/x/y", "/loong.Control/Abort"])
    with _channel(server) as channel:
        try:
            channel.unary_unary(path)(rng.randbytes(30), metadata=live.GRPC_KEY, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            return error.code().name  # type: ignore[attr-defined]
    return "OK"


KINDS = [
    one
    for one in [*globals().values()]
    if inspect.isfunction(one) and [*inspect.signature(one).parameters] == ["server", "rng"]
]

# ---- by what they are made


def _message(rng):
    return {"role": rng.choice(["user", "system", "x"]), "content": rng.choice(["a", None, 3, "é"])}


def _post(server, rng, body):
    return server.post(rng.choice(PATHS), body, timeout=TIMEOUT_S)[0]


def _head(rng, length):
    return (
        f"POST {rng.choice(PATHS[1:])} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n"
        f"Authorization: Bearer {live.KEY}\r\n\r\n"
    ).encode()


def _connected(port):
    return socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)


def _raw(port, data, wait_s=1.5):
    with _connected(port) as sock:
        try:
            sock.sendall(data)
            sock.settimeout(wait_s)
            return _status(sock)
        except OSError:
            return "gone"


def _status(sock):
    try:
        words = sock.recv(4096).split()
    except OSError:
        return "gone"
    return int(words[1]) if len(words) > 1 and words[1].isdigit() else "gone"


def _request(rng, **fields):
    content = messages.DecodeRequest.TextContent(text="ab" * rng.randrange(1, 5))
    return messages.DecodeRequest(**{"text_content": content, "max_tokens": 6, **fields})


def _channel(server):
    return grpc.insecure_channel(
        f"127.0.0.1:{server.grpc_port}", options=[("grpc.use_local_subchannel_pool", 1)]
    )


def _decode(server, rng, data):
    del rng
    with _channel(server) as channel:
        try:
            list(live.decoding(channel)(data, metadata=live.GRPC_KEY, timeout=TIMEOUT_S))
        except grpc.RpcError as error:
            return error.code().name  # type: ignore[attr-defined]
    return "OK"
