"""The sandbox: untrusted programs run outside our process, and only there.

`Sandbox` calls functions of small Python sources, `Executor` runs whole programs of any language;
both drive a zygote (inside/), which waits inside the isolation and forks one process per run, so
that a run of Python costs a fork and not the start of an interpreter. Isolation tiers:

- "namespaces": bubblewrap, or our own launcher where it is missing, with all namespaces unshared,
  an unprivileged user, no network, a read-only tree of the system's libraries and the interpreter
  (for whole programs its toolchains and a /tmp of each run's own besides), an empty environment,
  a filter of system calls and resource limits. The zygote is pid 1 and cannot be signalled.
- "process": resource limits and an audit hook that refuses imports beyond a short list; for calls
  alone. A hurdle for honest mistakes, not a wall against attacks: as our own user, a program that
  gets around the hook can read what we can read. Started as root, it drops to an unprivileged user.

Knows: child, errors, problems.
"""

from loong_jax.sandbox.box import PROGRAM, Ended, Limits, Run
from loong_jax.sandbox.calls import Program, ProgramResult, Sandbox, SandboxLost, expression_program
from loong_jax.sandbox.executor import Built, Executor, ToolchainMissing
from loong_jax.sandbox.mechanism import BoxLost, isolation, required_isolation

__all__ = [
    "PROGRAM", "BoxLost", "Built", "Ended", "Executor", "Limits", "Program", "ProgramResult", "Run",
    "Sandbox", "SandboxLost", "ToolchainMissing", "expression_program",
    "isolation", "required_isolation",
]  # fmt: skip
