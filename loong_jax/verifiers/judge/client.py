"""The way to a judge: any OpenAI-compatible endpoint, within time, size and budget.

The `openai` package is imported with the first request. Every attempt has a deadline for the whole
of it, so a server that sends a byte now and then stalls nobody: its body is given up at the next
byte or silence, the body of an error is not read at all, and a head that does not end after twice
the time is left to a thread of its own. A server that says `x-should-retry: false`, as OpenAI's own
do, is not asked again.
"""

import concurrent.futures
import dataclasses
import hashlib
import importlib.util
import json
import os
import random
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from loong_jax.errors import VerifierError

URL, MODEL = "LOONG_JUDGE_URL", "LOONG_JUDGE_MODEL"
_RETRIED_STATUS = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_MAX_REPLY_BYTES = 4 * 2**20
_CHARS_PER_TOKEN = 4  # an estimate, for servers that report no usage
_LATE = "the reply did not end in time"


class JudgeUnavailable(Exception):
    """No reply: `reason` is the verdict's, such as `budget`, `timeout` or `endpoint`.

    `status` is that of HTTP where the endpoint answered with an error.
    """

    def __init__(self, reason: str, detail: str, status: int | None = None):
        super().__init__(detail)
        self.reason = reason
        self.status = status


class Completion(NamedTuple):
    """The reply of a model. Without counts from the server the tokens are an estimate."""

    text: str | None  # None where the model refused
    refusal: str | None  # as the API's own field says it
    finish_reason: str  # "stop", "length", "content_filter", ... or "" where it is not said
    prompt_tokens: int
    reply_tokens: int
    is_estimate: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A judge's address, and limits and settings of its requests."""

    base_url: str  # such as http://127.0.0.1:8000/v1, our own `loong serve` included
    model: str
    api_key_env: str = "LOONG_JUDGE_API_KEY"  # the variable, never the key itself
    temperature: float = 0.0
    max_reply_tokens: int = 2048
    timeout_s: float = 60.0  # of one attempt, from its start to its last byte
    max_attempts: int = 4
    backoff_s: float = 0.5  # before the second attempt; doubles, with jitter, up to 30 s
    json_mode: bool = False  # the server takes response_format json_object

    def __post_init__(self):
        if not self.base_url.startswith(("http://", "https://")):
            raise VerifierError(
                f"base_url={self.base_url!r} is no http address. Give one that ends in /v1."
            )
        if not self.model:
            raise VerifierError("model is empty. Name the model that the endpoint serves.")
        for name in ("max_reply_tokens", "timeout_s", "max_attempts", "backoff_s"):
            if not getattr(self, name) > 0:
                raise VerifierError(f"{name}={getattr(self, name)} is not above 0. Raise it.")

    @classmethod
    def from_environment(cls, settings: Mapping[str, Any] | None = None) -> "Endpoint":
        """`settings`, and for what they leave out the variables LOONG_JUDGE_URL and _MODEL."""
        fields = dict(settings or {})
        fields.setdefault("base_url", os.environ.get(URL, ""))
        fields.setdefault("model", os.environ.get(MODEL, ""))
        if not fields["base_url"] or not fields["model"]:
            raise VerifierError(
                f"the judge has no endpoint: set {URL} (an OpenAI-compatible address such as "
                f"http://127.0.0.1:8000/v1, which `loong serve` has too) and {MODEL}, or give "
                "endpoint={'base_url': ..., 'model': ...}."
            )
        unknown = set(fields) - {field.name for field in dataclasses.fields(cls)}
        if unknown:
            raise VerifierError(f"endpoint has no setting {sorted(unknown)}. Leave them out.")
        return cls(**fields)


@dataclasses.dataclass(kw_only=True)
class Budget:
    """Limits on judging; every attempt counts. Prices are unknown here: use tokens."""

    max_requests: int | None = None
    max_tokens: int | None = None  # of prompts and replies together
    num_requests: int = 0
    num_tokens: int = 0
    num_estimated_tokens: int = 0  # the part of them that no server reported

    def __post_init__(self):
        for name in ("max_requests", "max_tokens"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise VerifierError(f"{name}={value} is below 0. Leave it out for no limit.")
        self._lock = threading.Lock()

    def take_request(self) -> None:
        """Counts one attempt; raises JudgeUnavailable where nothing is left."""
        with self._lock:
            if self.max_requests is not None and self.num_requests >= self.max_requests:
                raise JudgeUnavailable("budget", f"{self.num_requests} requests are spent")
            if self.max_tokens is not None and self.num_tokens >= self.max_tokens:
                raise JudgeUnavailable("budget", f"{self.num_tokens} tokens are spent")
            self.num_requests += 1

    def add_tokens(self, count: int, *, is_estimate: bool) -> None:
        with self._lock:
            self.num_tokens += count
            self.num_estimated_tokens += count if is_estimate else 0


class Client:
    """Asks one endpoint. Safe to share between threads."""

    def __init__(
        self,
        endpoint: Endpoint,
        budget: Budget | None = None,
    ):
        if importlib.util.find_spec("openai") is None:
            raise VerifierError(
                "the judge needs the package openai, which is missing. Run: pip install openai"
            )
        self.endpoint: Endpoint = endpoint
        self.budget = budget or Budget()
        self._lock = threading.Lock()
        self._openai: Any = None

    def ask(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The reply's text. Raises JudgeUnavailable once attempts or budget are spent."""
        text = self.complete(messages).text
        if text is None:
            raise JudgeUnavailable("endpoint", "the judge refused")
        return text

    def complete(
        self, messages: Sequence[Mapping[str, str]], settings: Mapping[str, Any] | None = None
    ) -> Completion:
        """The whole answer; `settings` of the API go over the endpoint's own, such as `seed`.

        Raises JudgeUnavailable once attempts or budget are spent.
        """
        last = JudgeUnavailable("endpoint", "never asked")
        for attempt in range(self.endpoint.max_attempts):
            if attempt:
                time.sleep(self._pause_s(attempt, last))
            self.budget.take_request()
            try:
                return self._attempt(messages, settings or {})
            except _Again as error:
                last = error
        detail = f"{last} ({self.endpoint.max_attempts} attempts)"
        raise JudgeUnavailable(last.reason, detail, last.status)

    def close(self) -> None:
        with self._lock:
            if self._openai is not None:
                self._openai.close()
                self._openai = None

    def _attempt(
        self, messages: Sequence[Mapping[str, str]], settings: Mapping[str, Any]
    ) -> Completion:
        asked: dict[str, Any] = {
            "model": self.endpoint.model,
            "temperature": self.endpoint.temperature,
            "max_tokens": self.endpoint.max_reply_tokens,
        }
        if self.endpoint.json_mode:
            asked["response_format"] = {"type": "json_object"}
        asked |= settings
        connection = self._connection()
        received: concurrent.futures.Future[bytes] = concurrent.futures.Future()

        def receive() -> None:
            try:
                received.set_result(self._receive(connection, messages, asked))
            except BaseException as error:
                received.set_exception(error)

        threading.Thread(target=receive, name="judge", daemon=True).start()
        try:
            body = received.result(2 * self.endpoint.timeout_s)
        except TimeoutError:
            raise _Again("timeout", _LATE) from None
        completion = _completion(body, num_asked_chars=len(str(messages)))
        num_tokens = completion.prompt_tokens + completion.reply_tokens
        self.budget.add_tokens(num_tokens, is_estimate=completion.is_estimate)
        return completion

    def _receive(
        self, connection: Any, messages: Sequence[Mapping[str, str]], asked: Mapping[str, Any]
    ) -> bytes:
        """The body of the answer; JudgeUnavailable where there is none."""
        import openai

        deadline = time.monotonic() + self.endpoint.timeout_s
        try:
            with connection.chat.completions.with_streaming_response.create(
                messages=list(messages), timeout=self.endpoint.timeout_s, **asked
            ) as response:
                return _body(response, deadline)
        except openai.APITimeoutError as error:
            raise _Again("timeout", f"no reply in {self.endpoint.timeout_s} s") from error
        except openai.APIStatusError as error:
            detail = f"status {error.status_code}"
            if error.status_code in _RETRIED_STATUS and _may_retry(error.response):
                after_s = _retry_after(error.response)
                raise _Again("endpoint", detail, after_s, error.status_code) from error
            raise JudgeUnavailable("endpoint", detail, error.status_code) from error
        except openai.APIError as error:
            raise _Again("endpoint", f"{type(error).__name__}: {error}"[:200]) from error
        except JudgeUnavailable:
            raise
        except Exception as error:  # of the transport below: a body that breaks off, a bad length
            raise _Again("endpoint", f"{type(error).__name__}: {error}"[:200]) from error

    def _connection(self) -> Any:
        with self._lock:
            if self._openai is None:
                import openai

                self._openai = openai.OpenAI(
                    base_url=self.endpoint.base_url,
                    api_key=os.environ.get(self.endpoint.api_key_env) or "none",
                    max_retries=0,  # ours count against the budget
                    http_client=openai.DefaultHttpxClient(event_hooks={"response": [_leave_error]}),
                )
            return self._openai

    def _pause_s(self, attempt: int, last: JudgeUnavailable) -> float:
        """Full jitter around a doubling pause, or what the server asked for, at most 30 s."""
        asked = last.after_s if isinstance(last, _Again) else 0.0
        pause = self.endpoint.backoff_s * 2 ** (attempt - 1) * random.uniform(0.5, 1.0)
        return min(30.0, max(asked, pause))


class _Again(JudgeUnavailable):
    """A failure that another attempt may mend."""

    def __init__(self, reason: str, detail: str, after_s: float = 0.0, status: int | None = None):
        super().__init__(reason, detail, status)
        self.after_s = after_s


def _leave_error(response: Any) -> None:
    """Closes the answer of an error: its status and head say all, and its body need not end."""
    if response.status_code >= 400:
        response.close()


def _body(response: Any, deadline: float) -> bytes:
    """The whole body. What it ends by instead may be mended by another attempt, unless the
    response's head says that it may not."""
    failed = _Again if _may_retry(response) else JudgeUnavailable
    body = bytearray()
    try:
        for chunk in response.iter_bytes():
            body += chunk
            if len(body) > _MAX_REPLY_BYTES:
                detail = f"a reply of more than {_MAX_REPLY_BYTES} bytes"
                raise JudgeUnavailable("endpoint", detail)
            if time.monotonic() > deadline:
                raise failed("timeout", _LATE)
    except JudgeUnavailable:
        raise
    except Exception as error:  # of the transport below, which is one or another package
        name = type(error).__name__
        if "Timeout" in name:
            raise failed("timeout", _LATE) from error
        raise failed("endpoint", f"{name}: {error}"[:200]) from error
    return bytes(body)


def _completion(body: bytes, num_asked_chars: int) -> Completion:
    """A chat completion, with its tokens where the server counts them."""
    try:
        reply = json.loads(body)
        choice = reply["choices"][0]
        text, refusal = choice["message"]["content"], choice["message"].get("refusal")
        finish = choice.get("finish_reason")
        usage = reply.get("usage") or {}
    except (ValueError, KeyError, IndexError, TypeError, RecursionError, AttributeError) as error:
        raise _Again("endpoint", f"no chat completion: {body[:80]!r}") from error
    refusal = refusal if isinstance(refusal, str) and refusal else None
    if refusal is not None:
        text = None
    elif not isinstance(text, str):
        raise _Again("endpoint", "a message without text")
    counts = _counts(usage)
    asked, said = counts or (
        num_asked_chars // _CHARS_PER_TOKEN, len(text or refusal or "") // _CHARS_PER_TOKEN
    )  # fmt: skip
    finish = finish if isinstance(finish, str) else ""
    return Completion(text, refusal, finish, asked, said, counts is None)


def _counts(usage: Any) -> tuple[int, int] | None:
    """Tokens of prompt and reply; those of the reply are the rest of the total."""
    if not isinstance(usage, dict):
        return None
    total, asked = usage.get("total_tokens"), usage.get("prompt_tokens", 0)
    if not all(isinstance(count, int) and count >= 0 for count in (total, asked)):
        return None
    return asked, max(0, total - asked)


def _may_retry(response: Any) -> bool:
    return response.headers.get("x-should-retry") != "false"


def _retry_after(response: Any) -> float:
    try:
        return max(0.0, float(response.headers.get("retry-after", 0)))
    except ValueError:
        return 0.0


def content_hash(*parts: Any) -> str:
    """Hash of JSON values: the same content, the same key."""
    body = json.dumps(parts, sort_keys=True).encode()
    return hashlib.blake2b(body, digest_size=16).hexdigest()
