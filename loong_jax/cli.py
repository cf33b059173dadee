"""The command line: `loong ARGS`, which is the same as `python -m loong_jax.cli ARGS`.

A command is a function in the room that does the work, which is imported when it runs: `loong
--help` answers at once.

Knows: cli_help, errors, interrupts, process, remote.
"""

import dataclasses
import importlib
import itertools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import loong_jax
from loong_jax import cli_help, interrupts, process, remote
from loong_jax.errors import ConfigError, LoongError

HELP = ("-h", "--help")
Arguments = Sequence[str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """One word after `loong`; what `run` names gets the words after it, and
    returns the exit status."""

    usage: str
    summary: str
    run: str  # "module:function" in loong_jax
    # of the words after it: True once there is something that the same command goes on from
    has_saved: Callable[[Arguments], bool] | None = None
    reads: tuple[str, ...] = ()  # options whose values are paths that must exist; "": first word
    loads: tuple[str, ...] = ()  # the same, of what may be a URL instead


def command() -> NoReturn:
    """`loong`: runs the command of this process, and ends it."""
    interrupts.leave(main())


def main(arguments: Arguments | None = None) -> int:
    """Runs one command and returns the exit status: 1 for an error it can name, 2 for bad usage."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        level, words = cli_help.take("--log-level", words)
        process.start_logging(level)
    except ConfigError as error:
        print(f"loong: {error}", file=sys.stderr)
        return 2
    name, *rest = words or ["--help"]
    if name in (*HELP, "help"):
        print(help_text())
        return 0
    if name == "--version":
        print(f"loong_jax {loong_jax.__version__}")
        return 0
    if name not in COMMANDS:
        known = ", ".join(COMMANDS)
        print(f"loong: {name!r} is no command. Choose one of: {known}.", file=sys.stderr)
        return 2
    process.prepare()
    try:
        _refuse_missing_paths(COMMANDS[name], rest)
        if (not rest or rest[0] in HELP) and (text := cli_help.text_of(name)):
            print(text)
            return 0
        with interrupts.handled():
            module, _, function = COMMANDS[name].run.partition(":")
            return getattr(importlib.import_module(f"loong_jax.{module}"), function)(rest)
    except (LoongError, OSError) as error:
        if isinstance(error, BrokenPipeError):  # whoever reads us has seen enough, as `| head` does
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141
        if os.environ.get("LOONG_TRACEBACK"):
            raise
        # of a file or disk that is not as it should be, which nobody looked at before
        remedy = "" if isinstance(error, LoongError) else ". Correct that, and repeat the command."
        print(f"loong {name}: {error}{remedy}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as error:
        terminated = isinstance(error, interrupts.Terminated)
        what = "terminated" if terminated else "interrupted"
        if (has_saved := COMMANDS[name].has_saved) is not None:
            goes_on = "the same command goes on from what is saved"
            anew = "nothing was saved yet, and the same command starts it anew"
            what += f"; {goes_on if has_saved(rest) else anew}"
        print(f"loong {name}: {what}", file=sys.stderr)
        return interrupts.TERMINATED if terminated else interrupts.INTERRUPTED


def _refuse_missing_paths(command: Command, words: Arguments) -> None:
    """Raises LoongError for a path or URL that cannot be read, before anything slow is imported."""
    option = ""
    for place, word in enumerate(words):
        if word == "--":
            return
        if word.startswith("-"):
            option, _, word = word.partition("=")
        elif place and not option:
            return
        is_name = option == "--problems" and not {".", "/"} & set(word)
        is_no_path = is_name or word in ("", "None")
        if option in command.loads and "://" in word:
            remote.RemotePath(word).refuse_unreadable()
        elif option in command.reads + command.loads and not (is_no_path or os.path.exists(word)):
            raise ConfigError(f"{f'{option} {word}'.strip()} does not exist. Name what is there.")


def help_text() -> str:
    """The text of `loong --help`."""
    width = max(len(command.usage) for command in COMMANDS.values()) + 2
    commands = (f"  {one.usage:<{width}}{one.summary}" for one in COMMANDS.values())
    return "\n".join([_HELP_HEAD, *commands, _HELP_END])


_HELP_HEAD = """\
usage: loong COMMAND ...

Trains LongCat-Flash reasoning models by asynchronous reinforcement learning on JAX.

commands:"""
_HELP_END = """
example:
  loong train quickstart          writes runs/quickstart; open its report.html

`loong COMMAND --help` says more. Any command takes --log-level debug|info|warning|error
(or LOONG_LOG). LOONG_TRACEBACK=1 shows where an error arose. Ctrl-C and SIGTERM let a
command clean up; the exit status is then 130 or 143. `loong serve` lets running requests
end, and its exit status is then 0."""


def _run_has_saved(words: Arguments) -> bool:
    """True where a stage of the run is done, or has left something to go on from."""
    given, left = cli_help.take("--run-dir", cli_help.take("--profile-steps", words)[1])
    run_dir = Path(given or f"runs/{''.join(left[:1]).rpartition(':')[2]}")
    checkpoints = cli_help.take("--checkpoints", words)[0] or f"{run_dir}/checkpoints"
    if "://" in checkpoints:  # which nobody looks into now
        return (run_dir / "config.json").exists()
    steps = [*run_dir.glob("stages/*/checkpoints/*"), *Path(checkpoints).glob("*")]
    left_behind = ("done.json", "noted.json", "journal/*")
    files = itertools.chain(*(run_dir.glob(f"stages/*/{name}") for name in left_behind))
    return any(step.name.isdecimal() for step in steps) or any(f.stat().st_size for f in files)


COMMANDS = {
    "train": Command(
        usage="train RECIPE",
        summary="run a recipe: SFT, RL, fusion, evaluation, report; again: resume",
        run="run.run:main",
        has_saved=_run_has_saved,
        reads=("--problems", "--data", "--from"),
        loads=("--start-from", "--teacher", "--tokenizer"),
    ),
    "launch": Command(
        usage="launch tpu-vm RECIPE",
        summary="run a recipe on a TPU slice; --dry-run shows the commands",
        run="launch.command:main",
    ),
    "serve": Command(
        usage="serve RUN_DIR",
        summary="answer requests for a model: OpenAI-compatible HTTP, JetStream's gRPC",
        run="run.serve:main",
        reads=("--api-key-file",),
        loads=("", "--tokenizer"),
    ),
    "eval": Command(
        usage="eval RUN_DIR",
        summary="pose problems to a model, a run's or your own: Mean@n, pass@k, by level",
        run="run.evaluate:main",
        reads=("--problems",),
        loads=("", "--tokenizer"),
    ),
    "report": Command(
        usage="report RUN_DIR",
        summary="write a run's report.html anew",
        run="run.run:report",
        reads=("",),
    ),
    "merge": Command(
        usage="merge METHOD",
        summary="fuse the experts of a run, or any checkpoints from one base",
        run="run.convert:merge_main",
        loads=("--base", "--experts"),
    ),
    "import-hf": Command(
        usage="import-hf SRC DST",
        summary="a published checkpoint (config.json, safetensors) as one of ours; again: goes on",
        run="run.convert:import_hf_main",
        has_saved=lambda words: Path(*words[1:2], ".import").exists(),
        loads=("",),
    ),
    "import-gguf": Command(
        usage="import-gguf SRC DST",
        summary="make a directory in the published layout from a GGUF file",
        run="run.convert:import_gguf_main",
        reads=("",),
    ),
    "export-hf": Command(
        usage="export-hf SRC DST",
        summary="a checkpoint of ours in the published layout; again: goes on if killed",
        run="run.convert:export_hf_main",
        has_saved=lambda words: Path(*words[1:2], ".loong_export").exists(),
        reads=("",),
    ),
    "curate": Command(
        usage="curate RECIPE",
        summary="filter a corpus: rules, decontamination, duplicates, difficulty; again: goes on",
        run="run.curate:main",
        has_saved=lambda words: Path(
            cli_help.take("--output", words)[0] or "", "config.json"
        ).exists(),
        reads=("--input", "--against"),
    ),
    "verify": Command(
        usage="verify VERIFIER",
        summary="judge answers in a JSON-lines file: math, code, logic, proofs and more",
        run="verifiers.command:main",
        reads=("--input",),
    ),
    "synth": Command(
        usage="synth NAME",
        summary="have an author model make problems that hold: loongenv, resyn, formal",
        run="run.synth:main",
    ),
    "bench": Command(
        usage="bench NAME",
        summary="measure this machine, or a method in short runs; --help lists which",
        run="bench:main",
    ),
    "plan": Command(
        usage="plan MODEL",
        summary="memory, schedule and roofline of a model on a TPU slice, without a TPU",
        run="plan.command:main",
    ),
    "doctor": Command(
        usage="doctor", summary="what this machine can and cannot do", run="doctor:main"
    ),
}

if __name__ == "__main__":
    command()
