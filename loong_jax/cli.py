"""The command line: `loong ARGS`, which is the same as `python -m loong_jax.cli ARGS`.

Every command imports its room when it runs, so that `loong --help` answers at once.
"""

import dataclasses
import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NoReturn

import loong_jax
from loong_jax import interrupts, logs, process, remote
from loong_jax.errors import CheckpointError, ConfigError, LoongError

Arguments = Sequence[str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """One word after `loong`; `run` gets the words after it and returns the exit status."""

    usage: str
    summary: str
    run: Callable[[Arguments], int]
    # of the words after it: what is there once the same command goes on from what is saved
    saves: Callable[[Arguments], Path] | None = None
    reads: tuple[str, ...] = ()  # options whose values are paths that must exist; "": first word
    loads: tuple[str, ...] = ()  # the same, of what may be a URL instead


def command() -> NoReturn:
    """`loong`: runs the command of this process, and ends it."""
    interrupts.leave(main())


def main(arguments: Arguments | None = None) -> int:
    """Runs one command and returns the exit status: 1 for an error it can name, 2 for bad usage."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        name, *rest = _without_log_level(words) or ["--help"]
    except ConfigError as error:
        print(f"loong: {error}", file=sys.stderr)
        return 2
    if name in ("-h", "--help", "help"):
        print(help_text())
        return 0
    if name == "--version":
        print(f"loong_jax {loong_jax.__version__}")
        return 0
    if name not in COMMANDS:
        commands = ", ".join(COMMANDS)
        print(f"loong: {name!r} is no command. Choose one of: {commands}.", file=sys.stderr)
        return 2
    process.prepare()
    try:
        _refuse_missing_paths(COMMANDS[name], rest)
        with interrupts.handled():
            return COMMANDS[name].run(rest)
    except LoongError as error:
        if os.environ.get("LOONG_TRACEBACK"):
            raise
        print(f"loong {name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as error:
        terminated = isinstance(error, interrupts.Terminated)
        what = "terminated" if terminated else "interrupted"
        saves = COMMANDS[name].saves
        if saves is not None and saves(rest).exists():
            what += "; the same command goes on from what is saved"
        elif saves is not None:
            what += "; nothing was saved yet"
        print(f"loong {name}: {what}", file=sys.stderr)
        return interrupts.TERMINATED if terminated else interrupts.INTERRUPTED
    except BrokenPipeError:  # the reader of our output has seen enough, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


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


def _without_log_level(words: list[str]) -> list[str]:
    """Starts logging, at the level of --log-level, which may stand anywhere before `--`."""
    level, left = _take("--log-level", words)
    logs.start(level)
    return left


def _take(option: str, words: Arguments) -> tuple[str | None, list[str]]:
    """The value of an option that stands before `--`, None without it, and the other words."""
    value, left = None, list[str]()
    rest = iter(words)
    for word in rest:
        if word == "--":
            left += [word, *rest]
        elif word == option:
            value = next(rest, "")
        elif word.startswith(f"{option}="):
            value = word.partition("=")[2]
        else:
            left.append(word)
    return value, left


def help_text() -> str:
    """What `loong --help` prints."""
    lines = [
        "usage: loong COMMAND ...",
        "",
        "Trains LongCat-Flash reasoning models by asynchronous reinforcement learning on JAX.",
        "",
        "commands:",
    ]
    width = max(len(command.usage) for command in COMMANDS.values()) + 2
    lines += [f"  {command.usage:<{width}}{command.summary}" for command in COMMANDS.values()]
    lines += [
        "",
        "example:",
        "  loong train quickstart          writes runs/quickstart; open its report.html",
        "",
        "`loong COMMAND --help` says more. Any command takes --log-level debug|info|warning|error",
        "(or LOONG_LOG). LOONG_TRACEBACK=1 shows where an error arose. Ctrl-C and SIGTERM let a",
        "command clean up; the exit status is then 130 or 143. `loong serve` lets running requests",
        "end, and its exit status is then 0.",
    ]
    return "\n".join(lines)


# ---- train


def train(arguments: Arguments) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(train_help_text())
        return 0
    profiled, words = _take("--profile-steps", arguments)
    if profiled is not None:
        os.environ["LOONG_PROFILE"] = profiled
    is_dry, words = "--dry-run" in words, [word for word in words if word != "--dry-run"]
    name, *rest = words
    if name.startswith("-"):
        name, rest = None, words
    from loong_jax import options
    from loong_jax.recipes import Recipe
    from loong_jax.run import choosing, named, train_help

    found = choosing.to_run(name, rest)
    if isinstance(found.config, Recipe):
        config, rest = named.choose(found.config, rest)
        found = found._replace(config=config)
        if {"-h", "--help"} & set(rest):
            print(train_help.settings_that_matter(name or found.name, config, found.text))
            return 0
    rest = ["--help" if word == "--help-all" else word for word in rest]
    if getattr(found.config, "pod", None) is not None:
        from loong_jax.run import distributed, pod_sft

        processes = distributed.Processes()
        chosen = options.parse_train(
            found.name, found.text, found.config, rest, processes=processes
        )
        return pod_sft.train(chosen.config, chosen.run_dir, chosen.processes)
    chosen = options.parse_train(found.name, found.text, found.config, rest)
    from loong_jax.run import run

    config = chosen.config
    if found.is_new:
        config = choosing.finished(config, found.config, rest)
    if is_dry:
        run.show_memory(config, chosen.only)
        return 0
    run.train(config, chosen.run_dir, only=chosen.only, source=chosen.source)
    return 0


def train_help_text() -> str:
    from loong_jax import recipes

    return "\n".join(
        [
            "usage: loong train RECIPE [--run-dir DIR] [--start-from DIR] [--problems FILE]",
            "                   [--data FILE] [--only STAGE --from RUN] [overrides]",
            "",
            "Runs a recipe's stages in order and leaves a run directory with checkpoints, metrics,",
            "summary.json and report.html; it is runs/RECIPE unless named. `loong train --run-dir",
            "DIR` goes on where it stopped; settings that would change what is learnt are then",
            "refused. RECIPE may also be a function of your own that returns a recipe:",
            "FILE.py:FUNCTION.",
            "",
            f"recipes: {', '.join(recipes.RECIPES)}",
            "",
            "examples:",
            "  loong train quickstart",
            "  loong train quickstart --run-dir runs/seed1 --seed 1",
            "  loong train quickstart --run-dir runs/b --only rl_stem --from runs/quickstart",
            "",
            "  loong train rl --start-from MODEL --problems mine.jsonl --rl.objective dapo",
            "  loong train sft --start-from MODEL --data chat.jsonl --lora 16",
            "  loong train --run-dir runs/rl",
            "",
            "`loong train RECIPE --help` shows the settings that matter, --help-all every one.",
        ]
    )


# ---- merge


def merge(arguments: Arguments) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(merge_help_text())
        return 0
    from loong_jax import options
    from loong_jax.merge import METHODS, checkpoints

    name, *rest = arguments
    if name not in METHODS:
        raise ConfigError(f"{name!r} is no method. Choose one of: {', '.join(METHODS)}.")
    config_type = options.with_defaults(checkpoints.MergeConfig, method=METHODS[name]())
    chosen = options.parse(config_type, f"loong merge {name}", rest)
    from loong_jax.run import merging

    return merging.merge(chosen)


def merge_help_text() -> str:
    from loong_jax.merge import METHODS

    return "\n".join(
        [
            "usage: loong merge METHOD --base DIR --experts DIR ... --output DIR [options]",
            "",
            "Fuses experts that were trained from one base, leaf by leaf. Writes the weights to",
            "OUTPUT/checkpoints, and what happened to each tensor to OUTPUT/fusion.json. From",
            "directories of safetensors files to one more of them in the memory of three tensors.",
            "Base and experts may be of two kinds: a model, and runs that began with it.",
            "",
            f"methods: {', '.join(METHODS)}",
            "",
            "example:",
            "  S=runs/quickstart/stages",
            "  loong merge longcat --base $S/sft --experts $S/rl_stem $S/rl_logic --output runs/m",
            "",
            "`loong merge METHOD --help` lists the settings of a method.",
        ]
    )


# ---- the published layout


def import_hf(arguments: Arguments) -> int:
    from loong_jax import options

    chosen = options.parse(options.ImportHfOptions, "loong import-hf", arguments)
    from loong_jax.run import convert

    convert.import_hf(chosen.source, chosen.destination, dtype=chosen.dtype)
    return 0


def import_gguf(arguments: Arguments) -> int:
    from loong_jax import options

    chosen = options.parse(options.ImportGgufOptions, "loong import-gguf", arguments)
    from loong_jax.models.hf import from_gguf

    from_gguf.import_gguf(chosen.source, chosen.destination, dtype=chosen.dtype)
    return 0


def export_hf(arguments: Arguments) -> int:
    from loong_jax import options

    chosen = options.parse(options.ExportHfOptions, "loong export-hf", arguments)
    from loong_jax.run import convert, sources

    max_shard_bytes = convert.shard_bytes(chosen.max_shard_gb)
    source = sources.find_weights(chosen.source)
    assert isinstance(source, Path)
    convert.export_hf(source, chosen.destination, max_shard_bytes=max_shard_bytes)
    return 0


# ---- launch


def launch(arguments: Arguments) -> int:
    from loong_jax import recipes

    if not arguments or arguments[0] in ("-h", "--help"):
        print(launch_help_text())
        return 0
    target, *rest = arguments
    if target != "tpu-vm":
        raise ConfigError(f"{target!r} is no target. Choose one of: tpu-vm.")
    cut = rest.index("--") if "--" in rest else len(rest)
    words, overrides = rest[:cut], tuple(rest[cut + 1 :])
    if words == ["--dry-run"]:
        words = LAUNCH_EXAMPLE.split()
        print(f"note: as an example, loong launch tpu-vm {' '.join(words)}", file=sys.stderr)
    from loong_jax import options
    from loong_jax.launch import tpu_vm
    from loong_jax.run import distributed

    recipe = _recipe_for_hosts(words, options.flags_of(tpu_vm.TpuVm) | {"--dry-run"})
    chosen = options.parse_launch(tpu_vm.TpuVm, tpu_vm.ACTIONS, words)
    vm, job = chosen.machines, tpu_vm.Job(recipe=recipe, arguments=overrides)
    if chosen.action in tpu_vm.STARTING:
        config, processes = recipes.get_recipe(recipe)(), distributed.Processes()
        config = options.parse_train(recipe, "", config, overrides, processes=processes).config
        if config.mesh.num_devices != vm.slice.num_devices:
            raise ConfigError(
                f"{vm.topology} has {vm.slice.num_devices} devices, and the mesh of the recipe is "
                f"for {config.mesh.num_devices}: {config.mesh}. Choose another topology, or end "
                "the command with -- --mesh.fsdp N and so on."
            )
    if note := vm.slice.generation.note:
        print(f"note: {note}", file=sys.stderr)
    if chosen.dry_run:
        print(tpu_vm.dry_run(vm, job, chosen.action))
        return 0
    return tpu_vm.perform(vm, job, chosen.action)


LAUNCH_EXAMPLE: str = (
    "pod-sft --name pod-sft-1 --topology v5e:4x4 --zone us-west4-a "
    "--project my-project --bucket gs://my-bucket --spot --dry-run"
)


def _recipe_for_hosts(words: list[str], flags: set[str]) -> str:
    """Takes the recipe out of the words: the first, or one behind `flags` and other options."""
    from loong_jax import recipes

    for index, word in enumerate(words):
        before = words[index - 1] if index else ""
        is_value = before.startswith("--") and "=" not in before and before not in flags
        if word in recipes.ON_ALL_PROCESSES and not is_value:
            return words.pop(index)
        if word in ("-h", "--help"):
            return recipes.ON_ALL_PROCESSES[0]
    raise ConfigError(
        f"{' '.join(words[:1])!r} stands where a recipe for several hosts belongs. Choose one of: "
        f"{', '.join(recipes.ON_ALL_PROCESSES)}."
    )


def launch_help_text() -> str:
    from loong_jax import recipes

    return "\n".join(
        [
            "usage: loong launch tpu-vm RECIPE --name N --topology v5e:4x4 --zone Z --project P",
            "                    [--bucket gs://B] [--spot] [--dry-run] [ACTION] [-- overrides]",
            "",
            "Runs a recipe on a TPU slice: every host starts the same `loong train` command.",
            "",
            "actions: create, push, run, status, logs, stop, delete, and all: the default, which",
            "creates, pushes, runs and follows the logs. Repeat it under the same name and the run",
            "resumes. The exit status is that of the run: 42 when it was preempted and has saved.",
            "",
            f"recipes: {', '.join(recipes.ON_ALL_PROCESSES)}",
            "",
            "example:",
            *textwrap.wrap(
                f"loong launch tpu-vm {LAUNCH_EXAMPLE}",
                initial_indent="  ",
                subsequent_indent="    ",
                break_on_hyphens=False,
            ),
            "",
            "`loong launch tpu-vm --dry-run` prints what this example would do, and",
            "`loong launch tpu-vm --help` lists every option. See docs/tutorials/pod.md.",
        ]
    )


# ---- report


def report(arguments: Arguments) -> int:
    from loong_jax import options

    chosen = options.parse(options.ReportOptions, "loong report", arguments)
    if not (chosen.run_dir / "config.json").exists():
        raise CheckpointError(
            f"{chosen.run_dir} holds no config.json, so it is no run. Name a run directory."
        )
    from loong_jax.run import run

    run.write_report(chosen.run_dir, keeps_machine=True)
    return 0


# ---- serve


def serve(arguments: Arguments) -> int:
    from loong_jax import options
    from loong_jax.run import serve as room

    return room.serve(options.parse(room.ServeOptions, "loong serve", arguments))


# ---- eval


def evaluate(arguments: Arguments) -> int:
    from loong_jax import options
    from loong_jax.run import evaluate as room

    return room.evaluate(options.parse(room.EvalOptions, "loong eval", arguments))


# ---- curate


def curate(arguments: Arguments) -> int:
    from loong_jax.run import curate as room

    return room.main(arguments)


# ---- verify


def verify(arguments: Arguments) -> int:
    from loong_jax import verifiers
    from loong_jax.verifiers import command

    if not arguments or arguments[0] in ("-h", "--help"):
        print(verify_help_text(verifiers.VERIFIERS))
        return 0
    name, *rest = arguments
    if name == "admission":
        return command.admit(rest)
    if ".py:" not in name and name not in verifiers.VERIFIERS:
        raise ConfigError(
            f"{name!r} judges no files. Choose one of: {', '.join(verifiers.VERIFIERS)}; or one of "
            "your own: FILE.py:CLASS."
        )
    from loong_jax import options

    chosen = options.parse(options.VerifyOptions, f"loong verify {name}", rest)
    if ".py:" in name:
        from loong_jax import recipes

        verifier = recipes.own_function(name)()
    else:
        verifier = verifiers.get_verifier(name)
    counts = command.verify_file(verifier, chosen.input, chosen.output)
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    return 0


def verify_help_text(names: Iterable[str]) -> str:
    return "\n".join(
        [
            "usage: loong verify VERIFIER --input FILE.jsonl --output FILE.jsonl",
            "",
            "Judges answers: one record a line comes in, one verdict a line goes out, in order.",
            "",
            f"verifiers: {', '.join(names)}; or one of your own: FILE.py:CLASS",
            "",
            "example:",
            "  loong verify math --input cases.jsonl --output verdicts.jsonl",
            "",
            "`loong verify admission [VERIFIER ...]` tries verifiers with answers that none may",
            "reward, and says which are admitted.",
            "",
            "docs/reference/verifiers.md says what each verifier reads, and where it errs.",
        ]
    )


# ---- synth


def synth(arguments: Arguments) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(synth_help_text())
        return 0
    name, *rest = arguments
    from loong_jax import options

    if name == "loongenv":
        from loong_jax.run import synth_page
        from loong_jax.synth.loongenv import command

        chosen = options.parse(command.LoongEnvOptions, "loong synth loongenv", rest)
        status = command.main(chosen)
        print(synth_page.write_loongenv(chosen.out))
        return status
    if name == "resyn":
        from loong_jax.run import resyn_page
        from loong_jax.synth.resyn import command as resyn

        chosen = options.parse(resyn.ResynOptions, "loong synth resyn", rest)
        status = resyn.main(chosen)
        print(resyn_page.write(chosen.out))
        return status
    if name == "formal":
        from loong_jax.run import formal

        return formal.run(options.parse(formal.FormalOptions, "loong synth formal", rest))
    raise ConfigError(f"{name!r} makes no problems. Choose one of: loongenv, resyn, formal.")


def synth_help_text() -> str:
    return "\n".join(
        [
            "usage: loong synth loongenv --seeds PATH ... --out DIR --endpoint URL --model NAME",
            "       loong synth resyn --keywords FILE --out DIR --endpoint URL --model NAME",
            "       loong synth formal [--run-dir DIR] [--audit coq]",
            "",
            "Has an author model make problems, and keeps those that hold: loongenv poses new",
            "questions after seeds and has programs answer them; resyn writes environments, which",
            "generate problems without end and judge the answers, for keywords; formal turns",
            "problems into statements, and teaches a prover from proofs that a checker accepts.",
            "",
            "example, with a model of yours as the author (`loong serve RUN_DIR`):",
            "  echo permutation > words.txt",
            "  loong synth resyn --keywords words.txt --out runs/envs \\",
            "    --endpoint http://127.0.0.1:8000/v1 --model NAME",
            "",
            "`loong synth NAME --help` says more; docs/how-to/synthesis.md explains both, and",
            "docs/how-to/formal_loop.md is about formal.",
        ]
    )


# ---- bench


def bench(arguments: Arguments) -> int:
    from loong_jax import bench as room

    if not arguments or arguments[0] in ("-h", "--help"):
        print(bench_help_text(room.BENCHES))
        return 0
    name, *rest = arguments
    return room.get_bench(name)(rest)


def bench_help_text(names: Iterable[str]) -> str:
    return "\n".join(
        [
            "usage: loong bench NAME [--json FILE] [options]",
            "",
            "Measures one thing on this machine, prints it, and writes all figures to FILE.",
            "",
            f"benches: {', '.join(names)}",
            "",
            "example:",
            "  loong bench model --json model.json --chart model.png",
            "",
            "`loong bench NAME --help` lists the options of a bench.",
        ]
    )


# ---- plan


def plan(arguments: Arguments) -> int:
    from loong_jax.plan import command

    return command.main(arguments)


# ---- doctor


def doctor(arguments: Arguments) -> int:
    from loong_jax import options

    chosen = options.parse(options.DoctorOptions, "loong doctor", arguments)
    from loong_jax import doctor as room

    checks = room.examine()
    print(room.as_json(checks) if chosen.json else room.as_text(checks))
    return 0 if room.is_healthy(checks) else 1


def _of_run(words: Arguments) -> Path:
    """What `loong train` writes first."""
    run_dir, left = _take("--run-dir", _take("--profile-steps", words)[1])
    return Path(run_dir or f"runs/{''.join(left[:1]).rpartition(':')[2]}", "config.json")


COMMANDS = {
    "train": Command(
        usage="train RECIPE",
        summary="run a recipe: SFT, RL, fusion, evaluation, report; again: resume",
        run=train,
        saves=_of_run,
        reads=("--problems", "--data", "--from"),
        loads=("--start-from", "--teacher", "--tokenizer"),
    ),
    "launch": Command(
        usage="launch tpu-vm RECIPE",
        summary="run a recipe on a TPU slice; --dry-run shows the commands",
        run=launch,
    ),
    "serve": Command(
        usage="serve RUN_DIR",
        summary="answer requests for a model: OpenAI-compatible HTTP, JetStream's gRPC",
        run=serve,
        reads=("--api-key-file",),
        loads=("", "--tokenizer"),
    ),
    "eval": Command(
        usage="eval RUN_DIR",
        summary="pose problems to a model, a run's or your own: Mean@n, pass@k, by level",
        run=evaluate,
        reads=("--problems",),
        loads=("", "--tokenizer"),
    ),
    "report": Command(
        usage="report RUN_DIR", summary="write a run's report.html anew", run=report, reads=("",)
    ),
    "merge": Command(
        usage="merge METHOD",
        summary="fuse the experts of a run, or any checkpoints from one base",
        run=merge,
        loads=("--base", "--experts"),
    ),
    "import-hf": Command(
        usage="import-hf SRC DST",
        summary="a published checkpoint (config.json, safetensors) as one of ours; again: goes on",
        run=import_hf,
        saves=lambda words: Path(*words[1:2], ".import"),
        loads=("",),
    ),
    "import-gguf": Command(
        usage="import-gguf SRC DST",
        summary="make a directory in the published layout from a GGUF file",
        run=import_gguf,
        reads=("",),
    ),
    "export-hf": Command(
        usage="export-hf SRC DST",
        summary="a checkpoint of ours in the published layout; again: goes on if killed",
        run=export_hf,
        saves=lambda words: Path(*words[1:2], ".loong_export"),
        reads=("",),
    ),
    "curate": Command(
        usage="curate RECIPE",
        summary="filter a corpus: rules, decontamination, duplicates, difficulty; again: goes on",
        run=curate,
        saves=lambda words: Path(_take("--output", words)[0] or "", "config.json"),
        reads=("--input", "--against"),
    ),
    "verify": Command(
        usage="verify VERIFIER",
        summary="judge answers in a JSON-lines file: math, code, logic, proofs and more",
        run=verify,
        reads=("--input",),
    ),
    "synth": Command(
        usage="synth NAME",
        summary="have an author model make problems that hold: loongenv, resyn, formal",
        run=synth,
    ),
    "bench": Command(
        usage="bench NAME",
        summary="measure this machine, or a method in short runs; --help lists which",
        run=bench,
    ),
    "plan": Command(
        usage="plan MODEL",
        summary="memory, schedule and roofline of a model on a TPU slice, without a TPU",
        run=plan,
    ),
    "doctor": Command(usage="doctor", summary="what this machine can and cannot do", run=doctor),
}

if __name__ == "__main__":
    command()
