"""A scripted OpenAI-compatible endpoint on loopback: it plays judges, good and bad ones."""

import contextlib
import http.server
import json
import threading
import time
from fractions import Fraction

import pytest

ROLES = ("right", "wrong", "yes", "no", "keys", "malformed", "refusing", "two", "prose", "extra")


def read_value(text):
    """The number an answer of the tests states, by a reader that shares nothing with ours."""
    text = text.strip().strip("$").replace("\\frac", "").replace("}{", "/").strip("{}")
    try:
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        return text.casefold().strip(" .")


class ScriptedEndpoint:
    """Serves until closed. `role` says how it judges; `faults` are statuses to fail with first."""

    def __init__(self):
        self.role = "right"
        self.faults: list[int] = []
        self.delay_s = 0.0
        self.drip_s = 0.0
        self.has_usage = True
        self.seen: list[dict] = []  # bodies of requests
        self.data: list[dict] = []  # what was asked about
        self.headers: list[dict] = []
        self.raw: str | None = None  # a reply to give instead of a role's
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"endpoint": self})
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        self._thread.start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def take(self, body, headers):
        system, user = (message["content"] for message in body["messages"])
        fenced = user.split("\n")
        data = json.loads(fenced[1])
        with self._lock:
            self.seen.append(body)
            self.data.append(data)
            self.headers.append(headers)
            fault = self.faults.pop(0) if self.faults else None
        return fault, system, data

    def say(self, system, data):
        if self.raw is not None:
            return self.raw
        if "criteria" in data:
            met = {number: self._meets(text, data) for number, text in data["criteria"].items()}
            return json.dumps({"reasoning": "each alone", "met": met})
        right = read_value(data["answer"]) == read_value(data["reference"])
        said = {
            "right": right,
            "wrong": not right,
            "yes": True,
            "no": False,
            "keys": right or not any(c.isdigit() for c in data["answer"]),
        }.get(self.role, right)
        reply = {"verdict": "correct" if said else "wrong"}
        if '"reasoning"' in system:
            reply = {"reasoning": "compared", **reply}
        if self.role == "two":
            return json.dumps(reply) + "\n" + json.dumps(reply)
        if self.role == "prose":
            return f"I would say: {json.dumps(reply)}"
        if self.role == "extra":
            return json.dumps(reply | {"confidence": 1})
        if self.role == "malformed":
            return '{"reasoning": "x", "verdict": correct}'
        if self.role == "refusing":
            return "I am sorry, I cannot help with that."
        return json.dumps(reply)

    def _meets(self, text, data):
        return {"yes": True, "no": False}.get(self.role, text.split()[-1] in data["answer"])


@contextlib.contextmanager
def in_environment():
    """An endpoint that the environment names, as a user would."""
    server = ScriptedEndpoint()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LOONG_JUDGE_URL", server.url)
            patch.setenv("LOONG_JUDGE_MODEL", "scripted")
            yield server
    finally:
        server.close()


class _Handler(http.server.BaseHTTPRequestHandler):
    endpoint: ScriptedEndpoint
    protocol_version = "HTTP/1.1"
    wbufsize = 2**16  # head and body leave together: no delayed acknowledgement between them

    def do_POST(self):
        size = int(self.headers["Content-Length"])
        body = json.loads(self.rfile.read(size))
        fault, system, data = self.endpoint.take(
            body, {k.lower(): v for k, v in self.headers.items()}
        )
        time.sleep(self.endpoint.delay_s)
        if fault is not None:
            self._send(fault, b'{"error": {"message": "scripted"}}')
            return
        reply = {
            "id": "1",
            "object": "chat.completion",
            "created": 0,
            "model": body["model"],
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "stop",
                    "message": {"role": "assistant", "content": self.endpoint.say(system, data)},
                }
            ],
        }
        if self.endpoint.has_usage:
            reply["usage"] = {"prompt_tokens": 90, "completion_tokens": 10, "total_tokens": 100}
        self._send(200, json.dumps(reply).encode())

    def _send(self, status, body):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if status == 429:
            self.send_header("Retry-After", "0")
        self.end_headers()
        with contextlib.suppress(OSError):
            if not self.endpoint.drip_s:
                self.wfile.write(body)
                self.wfile.flush()
                return
            for byte in body:
                self.wfile.write(bytes([byte]))
                self.wfile.flush()
                time.sleep(self.endpoint.drip_s)

    def log_message(self, *_):
        pass
