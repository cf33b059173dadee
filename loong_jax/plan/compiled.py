"""Ahead-of-time compilation in a child process, and what comes back from it.

libtpu compiles for TPUs that are not there. It must be the one that `jax[tpu]` pairs with this
jaxlib, and a process may load it once only, so each program gets a process.
"""

import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from loong_jax import configs
from loong_jax.errors import ConfigError, LoongError
from loong_jax.plan.request import Request

# Without a device to claim, without asking a metadata server, beside other loads of libtpu.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


class CompilerError(LoongError):
    """The compiler refused the program or took too long."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compiled:
    """A compiled program and its account; `text` is None where it does not fit the memory.

    `resident` are bytes by kind that lie on a device beside it; a step calls it `runs` times, not
    at all what is compiled for its memory alone.
    """

    text: str | None
    memory: Mapping[str, float]  # bytes: argument, output, alias, temp, generated_code
    arguments: Mapping[str, float]  # bytes of the arguments by kind
    coordinates: tuple[tuple[int, ...], ...]  # of each device, in the order of the mesh
    shardings: Mapping[str, str]  # mesh axes of each dimension of each argument
    weights: Mapping[str, float]  # numbers of weights: total, experts, embedding, active
    out_of_memory: Mapping[str, float] | None  # bytes: used, limit
    compile_s: float | None
    resident: Mapping[str, float] = dataclasses.field(default_factory=dict)
    runs: float = 1
    name: str = "step"
    host_bytes: float = 0.0  # for each device, of the arguments in host memory


def compile_ahead(
    request: Request, *, timeout_s: float, keep: Path | None = None
) -> list[Compiled]:
    """Compiles the request's programs; the files of the child stay in `keep` if given.

    Raises ConfigError where libtpu is missing or not this jaxlib's, CompilerError where the
    compiler fails or does not end in time.
    """
    check_versions()
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch) if keep is None else keep
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / "request.json"
        path.write_text(json.dumps(request.to_json()), encoding="utf-8")
        child = [sys.executable, "-m", "loong_jax.plan.child"]
        command = [*child, str(os.getpid()), str(path), str(directory)]
        hidden = ("XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR")  # of the caller's own programs
        environment = {k: v for k, v in os.environ.items() if k not in hidden} | ENVIRONMENT
        try:
            done = subprocess.run(
                command,
                env=environment,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise CompilerError(
                f"compiling took longer than {timeout_s:.0f} s. Raise --timeout-s, or plan fewer "
                "layers first."
            ) from error
        if done.returncode:
            if os.environ.get("LOONG_TRACEBACK"):
                print(done.stderr, file=sys.stderr)
            raise CompilerError(_reason(done.stderr, done.returncode))
        return load(directory)


def load(directory: Path) -> list[Compiled]:
    """Reads the files that the child wrote to its directory."""
    result = json.loads((directory / "compiled.json").read_text(encoding="utf-8"))
    absent = {"memory": {}, "out_of_memory": None, "compile_s": None}
    kept = {field.name for field in dataclasses.fields(Compiled)}
    return [
        Compiled(
            text=(directory / f"{name}.hlo").read_text("utf-8") if "memory" in found else None,
            coordinates=tuple(map(tuple, result["coordinates"])),
            weights=result["weights"],
            name=name,
            **absent | {key: value for key, value in found.items() if key in kept},
        )
        for name, found in result["programs"].items()
    ]


def check_versions() -> None:
    """Refuses a missing libtpu and one that jax[tpu] does not pair with this jax."""
    wanted = paired_libtpu()
    try:
        found = metadata.version("libtpu")
    except metadata.PackageNotFoundError as error:
        raise ConfigError(
            "libtpu is not installed, and it is what compiles for TPUs. Install the extra: "
            "pip install -c constraints.txt -e '.[tpu]' (no TPU is needed)."
        ) from error
    if wanted and not re.fullmatch(wanted.replace(".", r"\.").replace(r"\.*", r"(\..*)?"), found):
        raise ConfigError(
            f"libtpu {found} is not the one that jax {metadata.version('jax')} pairs, {wanted}. "
            f"Install it: pip install 'libtpu=={wanted}'."
        )


def paired_libtpu() -> str | None:
    """The libtpu that jax[tpu] asks for, `0.0.42.*`; None where jax names none."""
    for requirement in metadata.requires("jax") or ():
        found = re.match(r"libtpu\s*==\s*([\d.*]+)", requirement)
        if found and "tpu" in requirement:
            return found[1]
    return None


def versions() -> dict[str, str]:
    """The versions of packages that decide a plan."""
    known = configs.versions()
    kept = {name: known[name] for name in ("loong_jax", "jax", "jaxlib") if name in known}
    return kept | {"libtpu": metadata.version("libtpu")}


def _reason(stderr: str, code: int) -> str:
    """The last line that says something, of a process that failed."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    said = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    what = (said or lines or ["it said nothing"])[-1]
    return (
        f"the compiler's process ended with {code}: {what[:2000]} Run the same with "
        "LOONG_TRACEBACK=1 to see where."
    )
