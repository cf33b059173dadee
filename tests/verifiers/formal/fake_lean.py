"""A server on loopback that answers in kimina-lean-server's shapes.

It has no Lean: a table maps marks in the proof to what the REPL answers for such sources.
"""

import contextlib
import http.server
import json
import re
import threading

POSITION = {"line": 1, "column": 0}
NO_SORRY = "declaration uses 'sorry'"


def message(severity, data):
    return {"severity": severity, "pos": POSITION, "endPos": None, "data": data}


def answer(code):
    """The REPL's part of a result for one source."""
    name = re.search(r"theorem (\S+?)[\s:({]", code)[1]
    proof = code.partition(":=")[2].partition("#print")[0]
    messages, sorries = [], []
    if "sorry" in proof:
        messages.append(message("warning", NO_SORRY))
        sorries.append({"pos": POSITION, "endPos": POSITION, "goal": "⊢ True"})
    if "wrong_tactic" in proof or "nonsense" in code:
        messages.append(message("error", "unknown identifier"))
    if "linter" in proof:
        messages.append(message("warning", "unused variable"))
    if "#print axioms" in code and "silent" not in proof:
        used = [
            axiom
            for axiom in ("propext", "Classical.choice", "Quot.sound", "Lean.ofReduceBool", "cheat")
            if axiom.rpartition(".")[2] in proof
        ]
        told = (
            f"depends on axioms: [{', '.join(used)}]" if used else "does not depend on any axioms"
        )
        messages.append(message("info", f"'{name}' {told}"))
        if "twice" in proof:
            messages.append(message("info", f"'{name}' does not depend on any axioms"))
    response = {"env": 1, "time": 0.1}
    return (
        response
        | ({"messages": messages} if messages else {})
        | ({"sorries": sorries} if sorries else {})
    )


def result(code, known):
    name = code["custom_id"]
    source = code["proof"]
    proof = " ".join(source.partition(":=")[2].partition("#print")[0].split())
    if known is not None and not any(part in source and proof == of for part, of in known):
        return {
            "custom_id": name,
            "response": {"env": 1, "messages": [message("error", "unsolved goals")]},
        }
    if "hangs" in source:
        return {"custom_id": name, "error": "Lean REPL command timed out in 60 seconds"}
    if "crashes" in source:
        return {"custom_id": name, "error": "Lean process exited"}
    if "repl_fails" in source:
        return {"custom_id": name, "response": {"message": "unknown environment", "time": 0.1}}
    return {"custom_id": name, "response": answer(source)}


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server.requests.append((self.path, dict(self.headers), body))
        status = server.failures.pop(0) if server.failures else 200
        codes = body["codes"]
        assert set(body) <= {"codes", "timeout", "infotree_type", "disable_cache"}
        assert isinstance(body["timeout"], int)
        reply = {
            "results": [
                result(code, server.known) for code in codes if "left_out" not in code["proof"]
            ]
        }
        raw = json.dumps(reply).encode() if status != 299 else b"no json"
        self.send_response(200 if status == 299 else status)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def running(known=None):
    """The server; `requests` it got, `failures` (statuses) it will answer first.

    With `known`, pairs of a part of a statement and its proof, it refuses all other proofs.
    """
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.requests, server.failures, server.known = [], [], known
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(5)
