"""Python as a tool: a program runs in the verifiers' sandbox, and what it prints is the answer."""

import queue
from collections.abc import Mapping
from typing import Any

from loong_jax.problems.problem import Problem
from loong_jax.problems.verdict import IsolationTier
from loong_jax.rollout.agentic.agent import ToolError
from loong_jax.sandbox import Limits, Program, Sandbox


class PythonTool:
    """Each call is a process of its own, without network and files; see `loong_jax.sandbox`.

    `num_sandboxes` programs run at once; further calls wait for their turn. A tier below
    `min_tier` is refused: at the tier "process" a program that gets around an audit hook can read
    what we can read, so what a policy writes should not run there.
    """

    name = "python"
    description = "Runs a Python program and returns what it prints. Nothing is kept between calls."
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"code": {"type": "string", "description": "The program."}},
        "required": ["code"],
    }

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        num_sandboxes: int = 2,
        min_tier: IsolationTier = "namespaces",
    ):
        """Raises VerifierError where the sandbox cannot be had."""
        self.limits = limits or Limits(output_bytes=16 * 2**10)
        self._all = [Sandbox(self.limits, min_tier=min_tier) for _ in range(num_sandboxes)]
        self._idle = queue.LifoQueue[Sandbox]()
        for sandbox in self._all:
            self._idle.put(sandbox)

    def call(self, arguments: Mapping[str, Any], *, problem: Problem, timeout_s: float) -> str:
        """Raises ToolError for a program that fails, TimeoutError if no sandbox becomes free."""
        del problem
        try:
            sandbox = self._idle.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError(f"no sandbox was free for {timeout_s:g} s") from None
        try:
            (result,) = sandbox.run([_program(arguments["code"])])
        finally:
            self._idle.put(sandbox)
        if result.status == "ok":
            return result.output
        said = [*result.output.splitlines(), f"{result.status}: {result.detail}"]
        raise ToolError("\n".join(said))

    def close(self) -> None:
        for sandbox in self._all:
            sandbox.close()


def _program(code: str) -> Program:
    """The code as a whole program, whose names are those of a module of its own."""
    source = (
        f"_code = compile({code!r}, '<program>', 'exec')\n"
        "def f():\n    exec(_code, {'__name__': '__main__'})\n    return True\n"
    )
    return Program(source=source, arguments=[[]])
