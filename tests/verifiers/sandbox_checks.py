"""Running one program, for tests of the sandbox."""

from loong_jax.sandbox import Limits, Program, ProgramResult, Sandbox

# Wall time far above CPU time, so that a busy machine changes no status.
LIMITS = Limits(cpu_s=0.3, wall_s=20.0, memory_bytes=128 * 2**20)


def run(sandbox: Sandbox, source: str, *arguments) -> ProgramResult:
    (result,) = sandbox.run([Program(source=source, arguments=[list(arguments)])])
    assert result.tier == sandbox.tier
    return result
