"""Verifier "lean": proofs judged by a server that speaks kimina-lean-server's batch protocol.

`POST {url}/verify` with {"codes": [{"custom_id", "proof"}], "timeout", "disable_cache"} answers
{"results": [{"custom_id", "error" | "response": {"env", "messages", "sorries", ...}}]}. Correct is
a proof with a response, no message of severity error, no sorry, and axioms within propext,
Classical.choice and Quot.sound, told by our own `#print axioms` for the name that we gave to our
own statement. Source: LongCat-Flash-Thinking 2.2.2; the server of the Numina project.

A record has `statement` (`theorem name binders : type`), `answer` (what follows `:=`, such as
`by simp`), and perhaps `header`: our imports and `open` lines. The statement is written by us,
under a name that nobody can guess. A proof that starts a new command, or uses what reaches the
elaborator, the file system or the trusted base, is refused by name; the list is of the known cheats
of REPL-based graders.

What the server is asked is deterministic but for that name. What it fails to answer is ungradable.
"""

import dataclasses
import http.client
import json
import os
import re
import secrets
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from loong_jax.errors import VerifierError
from loong_jax.problems import verdict
from loong_jax.problems.verdict import Verdict, answer_span
from loong_jax.verifiers import OfRecords, formal
from loong_jax.verifiers.formal.lean_repl import LeanReplPool

URL = "LOONG_LEAN_URL"
MAX_REPLY_BYTES = 64 * 2**20
_RETRIED = (429, 500, 502, 503, 504)
ALLOWED_AXIOMS = frozenset({"propext", "Classical.choice", "Quot.sound"})
_STATEMENT = re.compile(
    r"\s*(?:theorem|lemma)\s+(?P<name>[^\s:({\[⦃]+)(?P<rest>.*?)(?:\s*:=\s*(?:by\s+)?(?:sorry)?)?\s*",
    re.DOTALL,
)
_FORBIDDEN = frozenset(
    [
        *("sorry", "admit", "sorryAx", "axiom", "opaque", "constant", "unsafe", "partial"),
        *("native_decide", "ofReduceBool", "reduceBool", "ofReduceNat", "trustCompiler"),
        *("implemented_by", "extern", "csimp", "skipKernelTC", "set_option", "initialize"),
        *("macro", "macro_rules", "syntax", "notation", "infix", "infixl", "infixr", "prefix"),
        *("postfix", "elab", "elab_rules", "declare_syntax_cat", "instance", "attribute", "local"),
        *("run_cmd", "run_tac", "run_elab", "run_meta", "by_elab", "eval_term", "IO", "Lean"),
        *("import", "open", "namespace", "section", "end", "universe", "variable", "export"),
        *("theorem", "lemma", "def", "abbrev", "example", "structure", "inductive", "class"),
        *("deriving", "mutual", "include", "omit", "alias", "addDecl", "elabCommand"),
    ]
)
_WORD = re.compile(r"[^\W\d][\w'!?]*")
_AXIOMS = re.compile(r"'(?P<name>[^']+)' depends on axioms: \[(?P<axioms>[^\]]*)\]", re.DOTALL)
_NO_AXIOMS = re.compile(r"'(?P<name>[^']+)' does not depend on any axioms")


@dataclasses.dataclass(frozen=True)
class LeanClient:
    """A client of one server: batches, retries with growing pauses, limits.

    `timeout_s` is what the server grants one proof; a batch waits that long for each of its rounds
    over `num_workers` proofs, plus `grace_s`. `api_key` is sent as a bearer token.
    """

    url: str
    _: dataclasses.KW_ONLY
    timeout_s: int = 60
    grace_s: float = 10.0
    max_batch: int = 32
    num_workers: int = 8
    num_tries: int = 3
    pause_s: float = 0.5
    api_key: str | None = dataclasses.field(default=None, repr=False)

    def __post_init__(self):
        if not re.match(r"https?://", self.url):
            raise VerifierError(f"url={self.url!r} is no http address. Name a running Lean server.")
        if min(self.timeout_s, self.max_batch, self.num_workers, self.num_tries) < 1:
            raise VerifierError("timeout_s, max_batch, num_workers and num_tries start at 1.")

    def check(self, codes: Sequence[tuple[str, str]]) -> dict[str, Mapping[str, Any]]:
        """One result for each (id, source); a proof that got none has {"error": why}."""
        found: dict[str, Mapping[str, Any]] = {}
        for start in range(0, len(codes), self.max_batch):
            batch = codes[start : start + self.max_batch]
            results, why = {}, "the server's reply leaves this proof out"
            try:
                results = self._results(batch)
            except VerifierError as error:
                why = str(error)
            found |= {name: results.get(name, {"error": why}) for name, _ in batch}
        return found

    def close(self) -> None:
        """Holds nothing."""

    def _results(self, batch: Sequence[tuple[str, str]]) -> dict[str, Mapping[str, Any]]:
        body = {
            "codes": [{"custom_id": name, "proof": code} for name, code in batch],
            "timeout": self.timeout_s,
            "disable_cache": False,
        }
        reply = self._post(json.dumps(body).encode(), len(batch))
        results = reply.get("results") if isinstance(reply, dict) else None
        if not isinstance(results, list):
            raise VerifierError("the server's reply holds no results")
        told: list[tuple[Any, dict]] = [
            (r.get("custom_id"), r) for r in results if isinstance(r, dict)
        ]
        names = [name for name, _ in told]
        return {name: result for name, result in told if names.count(name) == 1}

    def _post(self, body: bytes, num_proofs: int) -> Any:
        url, why = self.url.rstrip("/") + "/verify", ""
        headers = {"Content-Type": "application/json"}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        wait_s = -(-num_proofs // self.num_workers) * self.timeout_s + self.grace_s
        for attempt in range(self.num_tries):
            if attempt:
                time.sleep(self.pause_s * 2 ** (attempt - 1))
            request = urllib.request.Request(url, body, headers, method="POST")
            try:
                with urllib.request.urlopen(request, timeout=wait_s) as reply:
                    raw = reply.read(MAX_REPLY_BYTES + 1)
                if len(raw) > MAX_REPLY_BYTES:
                    raise VerifierError(f"the reply has more than {MAX_REPLY_BYTES} bytes")
                return json.loads(raw)
            except urllib.error.HTTPError as error:
                why = f"HTTP {error.code}"
                if error.code not in _RETRIED:
                    break
            except (OSError, http.client.HTTPException) as error:
                why = f"{type(error).__name__}: {error}"
            except (ValueError, RecursionError) as error:
                why = f"no JSON: {error}"
        raise VerifierError(f"{url} gave no answer: {why}. Check the server.")


class LeanVerifier(OfRecords):
    """Judges proofs of Lean 4 statements: by the server at `url`, or by REPLs of this machine.

    LOONG_LEAN_URL fills a `url` that is left out, else it is port 8000 of this machine.
    `repl` holds the arguments of LeanReplPool, at least {"command": [...]}; without it the rest
    goes to LeanClient. A REPL is a process like ours: what keeps a proof from running code is the
    list of refused words, so on a machine of value run it in a container, as `command` may.
    """

    def __init__(
        self, *, url: str | None = None, repl: Mapping[str, Any] | None = None, **client: Any
    ):
        if repl is not None and client:
            raise VerifierError(f"repl goes without {sorted(client)}, which are a server's.")
        self._client: LeanClient | LeanReplPool
        if repl is not None:
            self._client = LeanReplPool(**repl)
        else:
            self._client = LeanClient(url or os.environ.get(URL, "http://127.0.0.1:8000"), **client)

    def judged(self, record: Mapping[str, Any]) -> Verdict:
        return self.verify_records([record])[0]

    def verify_records(self, records: Sequence[Mapping[str, Any]]) -> list[Verdict]:
        """Verdicts in order, in as few requests as the batch size allows."""
        start = time.perf_counter()
        requests = [_request(record) for record in records]
        results = self._client.check([r for r in requests if not isinstance(r, Verdict)])
        judged = [r if isinstance(r, Verdict) else _verdict(r[0], results[r[0]]) for r in requests]
        cost_s = (time.perf_counter() - start) / max(1, len(records))
        return [dataclasses.replace(j, evidence=j.evidence[:300], cost_s=cost_s) for j in judged]

    def check_statements(self, statements: Sequence[str], header: str = "import Mathlib") -> list:
        """A verdict per statement: correct if it elaborates with `:= by sorry` (2.2.2)."""
        read = [read_statement(text, header) for text in statements]
        names = [_name() for _ in read]
        pairs = zip(names, read, strict=True)
        results = self._client.check(
            [
                (name, f"{said.header}\n\ntheorem {name}{said.rest} := by sorry\n")
                for name, said in pairs
                if said is not None
            ]
        )
        judged = []
        for name in names:
            found = verdict.wrong("statement", "it is not of the form `theorem name ... : type`")
            if name in results:
                found = _read(results[name], "statement")
            judged.append(found if isinstance(found, Verdict) else verdict.correct("it elaborates"))
        return judged

    def close(self) -> None:
        self._client.close()


def _name() -> str:
    return f"loong_{secrets.token_hex(12)}"


def _request(record: Mapping[str, Any]) -> tuple[str, str] | Verdict:
    """The name of our theorem, and the source that proves it."""
    statement, answer = record.get("statement"), record.get("answer")
    header = record.get("header", "import Mathlib")
    if not all(isinstance(text, str) for text in (statement, answer, header)):
        return verdict.ungradable("record", "statement, answer or header is no text")
    read = read_statement(str(statement), header)
    if read is None:
        return verdict.ungradable("statement", "it is not of the form `theorem name ... : type`")
    proof = answer_span(str(answer))
    if isinstance(proof, Verdict):
        return proof
    marks = ("#", "@[", "«", "/-", "-/")
    no = formal.refused(proof, max_chars=200_000, word=_WORD, forbidden=_FORBIDDEN, marks=marks)
    if no is not None:
        return no
    name = _name()
    return name, source(read, name, proof)


def _read(
    result: Mapping[str, Any], wrong: str
) -> Verdict | tuple[Mapping[str, Any], list[tuple[str, str]]]:
    """The response of a result and its messages, or the verdict where that says it already."""
    error, response = result.get("error"), result.get("response")
    if error:
        reason = "timeout" if "timed out" in str(error) else "server"
        return verdict.ungradable(reason, str(error))
    if not isinstance(response, dict) or not isinstance(response.get("messages") or [], list):
        return verdict.ungradable("server", "the result holds no response")
    if "message" in response:
        return verdict.ungradable("server", f"REPL: {response['message']}")
    found = [m for m in response.get("messages") or [] if isinstance(m, dict)]
    messages = [(str(m.get("severity")), str(m.get("data"))) for m in found]
    if errors := [data for severity, data in messages if severity == "error"]:
        return verdict.wrong(wrong, errors[0])
    return response, messages


def _verdict(name: str, result: Mapping[str, Any]) -> Verdict:
    read = _read(result, "proof")
    if isinstance(read, Verdict):
        return read
    response, messages = read
    if response.get("sorries") or any("sorry" in data for _, data in messages):
        return verdict.wrong("sorry", "the proof is not finished")
    axioms = axioms_of(name, [data for severity, data in messages if severity == "info"])
    if axioms is None:
        return verdict.wrong("axioms", "the checker did not tell the axioms of our statement once")
    if extra := sorted(axioms - ALLOWED_AXIOMS):
        return verdict.wrong("axioms", f"it rests on {', '.join(extra)}")
    return verdict.correct(f"axioms: {', '.join(sorted(axioms)) or 'none'}")


# ---- sources


class Statement(NamedTuple):
    """A theorem without its proof: `rest` is its binders and type."""

    header: str  # imports and options of ours
    rest: str


def read_statement(statement: str, header: str = "import Mathlib") -> Statement | None:
    """The statement `theorem name binders : type`, with or without `:= by sorry` after it."""
    match = _STATEMENT.fullmatch(statement)
    if match is None or ":" not in match["rest"] or ":=" in match["rest"]:
        return None
    return Statement(header, match["rest"])


def source(statement: Statement, name: str, proof: str) -> str:
    """The whole file: our statement under `name`, the proof, and the question for its axioms."""
    proof = proof.strip().removeprefix(":=").strip()
    if not re.match(r"by\b", proof):
        proof = f"({proof})"
    return (
        f"{statement.header}\n\ntheorem {name}{statement.rest} := {proof}\n\n#print axioms {name}\n"
    )


def axioms_of(name: str, messages: list[str]) -> frozenset[str] | None:
    """The axioms that the checker reported for `name`; None where it said nothing, or twice."""
    reports = []
    for text in messages:
        if (match := _AXIOMS.search(text)) and match["name"] == name:
            reports.append(frozenset(a.strip() for a in match["axioms"].split(",") if a.strip()))
        if (match := _NO_AXIOMS.search(text)) and match["name"] == name:
            reports.append(frozenset())
    return reports[0] if len(reports) == 1 else None
