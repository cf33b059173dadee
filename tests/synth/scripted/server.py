"""The HTTP side of the scripted author: OpenAI's chat completions on a loopback port.

Deterministic: a reply depends on the messages and the request's seed alone. What fails for good is
announced by `x-should-retry: false`, so a client is free to ask as often as it takes where only the
machine was slow, and its transcripts tell nothing of the machine.
"""

import contextlib
import http.server
import json
import random
import re
import select
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from loong_jax.synth import calls
from loong_jax.verifiers.judge import prompts as judge_prompts
from tests.synth.scripted import play, roles
from tests.synth.scripted.play import Ask, Role, Said

NAME = "scripted"
MAX_SILENCE_S = 120.0  # after which a client that never gives up is hung up on
_CHARS_PER_TOKEN = 4
_FINAL = {"x-should-retry": "false"}
_FENCED = re.compile(r"BEGIN (\w+)\n(.*)\nEND \1", re.DOTALL)
REFUSALS = (
    "I'm sorry, but I can't help with that request.",
    "I cannot write this problem, since it may conflict with my guidelines.",
    "As an AI language model, I am unable to provide this.",
)


class Answer(NamedTuple):
    """What goes over the wire: `defect` is planted, `how` is how the server behaves."""

    how: str  # "answer", "timed_out", "http_500", "dropped" or "rate_limited"
    text: str = ""
    finish_reason: str = "stop"
    defect: str | None = None


class ScriptedAuthor:
    """Serves at `url` from its construction until `close`. Its model is named "scripted"."""

    def __init__(
        self,
        *,
        rates: Mapping[str, float] = roles.RATES,
        ledger_path: Path | None = None,
        table: Mapping[str, Role] = roles.ROLES,
    ):
        """`rates` has the defects that are planted, `table` says who plays which prompt."""
        self.table = table
        self.ledger = play.Ledger(ledger_path)
        self._rates = rates
        self._lock = threading.Lock()
        self._limited: set[str] = set()  # digests that were told to come again
        handler = type("Handler", (_Handler,), {"author": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def answer(self, messages: Sequence[Mapping[str, str]], seed: int) -> Answer | None:
        """The reply to a chat; None for one that no role knows."""
        known = identify(messages, self.table)
        if known is None:
            return None
        name, fields = known
        digest = play.digest(messages, seed)
        rng = random.Random(digest)
        defect = self._draw(name, rng)
        if defect in ("timed_out", "http_500", "dropped"):
            answer = Answer(defect, defect=defect)
        elif defect == "rate_limited" and self._is_first(digest):
            return Answer(defect, defect=defect)
        else:
            said = self.table[name](Ask(prompt_name=name, fields=fields, rng=rng, defect=defect))
            answer = formed(said, defect, rng)
        self.ledger.write(digest=digest, prompt=name, defect=answer.defect, how=answer.how)
        return answer

    def _draw(self, prompt_name: str, rng: random.Random) -> str | None:
        """At most one defect for a reply to this prompt."""
        position, total = rng.random(), 0.0
        for defect in roles.DEFECTS:
            if not defect.prompts or prompt_name in defect.prompts:
                total += self._rates.get(defect.name, 0.0)
                if position < total:
                    return defect.name
        return None

    def _is_first(self, digest: str) -> bool:
        with self._lock:
            is_first = digest not in self._limited
            self._limited.add(digest)
            return is_first


def fields_of(
    prompt: judge_prompts.Prompt, asked: Sequence[Mapping[str, str]]
) -> dict[str, str] | None:
    """The fields that `messages` put in; None for a chat of another prompt."""
    if len(asked) != 2 or asked[0]["content"] != prompt.system:
        return None
    names, found = "|".join(prompt.fields) or "$^", {}
    for name in prompt.fields:
        match = re.search(rf"<{name}>\n(.*?)\n</{name}>", asked[1]["content"], re.DOTALL)
        if match is None:
            return None
        found[name] = re.sub(rf"&lt;(/?(?:{names})>)", lambda mark: f"<{mark[1]}", match[1])
    return found


def identify(
    messages: Sequence[Mapping[str, str]], table: Mapping[str, Role]
) -> tuple[str, dict[str, Any]] | None:
    """Which prompt of the table a chat fills in, and its fields: read from the text alone."""
    for name in table:
        if name.startswith("judge/"):
            fields = _judge_fields(name.removeprefix("judge/"), messages)
        else:
            fields = fields_of(calls.prompt(name), messages)
        if fields is not None:
            return name, fields
    return None


def _judge_fields(name: str, messages: Sequence[Mapping[str, str]]) -> dict[str, Any] | None:
    """The data of one of the judge's own prompts (verifiers/judge), which travels as JSON."""
    fenced = _FENCED.search(messages[-1]["content"])
    if fenced is None:
        return None
    wanted = judge_prompts.load(name).system.replace("{mark}", fenced[1])
    return json.loads(fenced[2]) if messages[0]["content"] == wanted else None


def formed(said: Said, defect: str | None, rng: random.Random) -> Answer:
    """What is said, with the defects of its form."""
    text = said.text
    if defect == "rate_limited":
        return Answer("answer", text, defect=defect)
    if defect == "refusal":
        return Answer("answer", rng.choice(REFUSALS), defect=defect)
    if defect == "truncated":
        return Answer("answer", text[: len(text) // 2], "length", defect)
    spoken: Any = None
    with contextlib.suppress(ValueError):
        spoken = json.loads(text)
    if defect == "malformed_json" and isinstance(spoken, dict):
        return Answer("answer", text[: rng.randrange(1, len(text) - 1)], defect=defect)
    if defect == "missing_key" and isinstance(spoken, dict) and spoken:
        del spoken[rng.choice(sorted(spoken))]
        return Answer("answer", json.dumps(spoken), defect=defect)
    return Answer("answer", text, defect=said.defect)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing of a client that hung up, as those do that were kept waiting on purpose."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(http.server.BaseHTTPRequestHandler):
    author: ScriptedAuthor
    protocol_version = "HTTP/1.1"
    wbufsize = 2**16  # head and body leave together: no delayed acknowledgement between them

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = self.author.answer(body["messages"], int(body.get("seed") or 0))
        if answer is None:
            self._send(400, {"error": {"message": "no scripted role knows this prompt"}})
        elif answer.how in ("timed_out", "dropped"):
            self._break_off(is_silent=answer.how == "timed_out")
        elif answer.how == "rate_limited":
            self._send(429, {"error": {"message": "too many requests"}}, {"Retry-After": "0"})
        elif answer.how == "http_500":
            self._send(500, {"error": {"message": "scripted"}}, _FINAL)
        else:
            self._send(200, _completion(body["messages"], answer))

    def _break_off(self, *, is_silent: bool) -> None:
        """The head of a reply, and then nothing: until the client hangs up, or by hanging up."""
        self.close_connection = True
        with contextlib.suppress(OSError):
            self._send_head(200, 1, _FINAL)
            self.wfile.flush()
            if is_silent:
                select.select([self.connection], [], [], MAX_SILENCE_S)
            else:
                self.connection.shutdown(socket.SHUT_RDWR)

    def _send(self, status: int, body: Mapping[str, Any], headers: Mapping[str, str] = {}) -> None:
        data = json.dumps(body).encode()
        with contextlib.suppress(OSError):
            self._send_head(status, len(data), headers)
            self.wfile.write(data)
            self.wfile.flush()

    def _send_head(self, status: int, num_bytes: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(num_bytes))
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: the ledger is the log."""


def _completion(messages: Sequence[Mapping[str, str]], answer: Answer) -> dict[str, Any]:
    asked = sum(len(message["content"]) for message in messages) // _CHARS_PER_TOKEN
    said = len(answer.text) // _CHARS_PER_TOKEN
    message = {"role": "assistant", "content": answer.text}
    return {
        "id": "scripted", "object": "chat.completion", "created": 0, "model": NAME,
        "choices": [{"index": 0, "finish_reason": answer.finish_reason, "message": message}],
        "usage": {
            "prompt_tokens": asked, "completion_tokens": said, "total_tokens": asked + said,
        },
    }  # fmt: skip
