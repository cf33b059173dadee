"""Words of a command line, and help texts where that of a command begins with a name."""

import importlib
from collections.abc import Sequence

LAUNCH_EXAMPLE = """\
pod-sft --name pod-sft-1 --topology v5e:4x4
    --zone us-west4-a --project my-project --bucket gs://my-bucket
    --spot --dry-run"""
_TEXTS: dict[str, tuple[str, str]] = {  # command -> its text, and the table with its {names}
    "train": (
        """\
usage: loong train RECIPE [--run-dir DIR] [--start-from DIR] [--problems FILE]
                   [--data FILE] [--only STAGE --from RUN] [overrides]

Runs a recipe's stages in order and leaves a run directory with checkpoints, metrics,
summary.json and report.html; it is runs/RECIPE unless named. `loong train --run-dir
DIR` goes on where it stopped; settings that would change what is learnt are then
refused. RECIPE may also be a function of your own that returns a recipe:
FILE.py:FUNCTION.

recipes: {names}

examples:
  loong train quickstart
  loong train quickstart --run-dir runs/seed1 --seed 1
  loong train quickstart --run-dir runs/b --only rl_stem --from runs/quickstart

  loong train rl --start-from MODEL --problems mine.jsonl --rl.objective dapo
  loong train sft --start-from MODEL --data chat.jsonl --lora 16
  loong train --run-dir runs/rl

`loong train RECIPE --help` shows the settings that matter, --help-all every one.""",
        "recipes:RECIPES",
    ),
    "merge": (
        """\
usage: loong merge METHOD --base DIR --experts DIR ... --output DIR [options]

Fuses experts that were trained from one base, leaf by leaf. Writes the weights to
OUTPUT/checkpoints, and what happened to each tensor to OUTPUT/fusion.json. From
directories of safetensors files to one more of them in the memory of three tensors.
Base and experts may be of two kinds: a model, and runs that began with it.

methods: {names}; or one of your own: FILE.py:CLASS

example:
  S=runs/quickstart/stages
  loong merge longcat --base $S/sft --experts $S/rl_stem $S/rl_logic --output runs/m

`loong merge METHOD --help` lists the settings of a method.""",
        "merge:METHODS",
    ),
    "launch": (
        """\
usage: loong launch tpu-vm RECIPE --name N --topology v5e:4x4 --zone Z --project P
                    [--bucket gs://B] [--spot] [--dry-run] [ACTION] [-- overrides]

Runs a recipe on a TPU slice: every host starts the same `loong train` command.

actions: create, push, run, status, logs, stop, delete, and all: the default, which
creates, pushes, runs and follows the logs. Repeat it under the same name and the run
resumes. The exit status is that of the run: 42 when it was preempted and has saved.

recipes: {names}

example:
  loong launch tpu-vm {example}

`loong launch tpu-vm --dry-run` prints what this example would do, and
`loong launch tpu-vm --help` lists every option. See docs/tutorials/pod.md.""",
        "recipes:ON_ALL_PROCESSES",
    ),
    "verify": (
        """\
usage: loong verify VERIFIER --input FILE.jsonl --output FILE.jsonl

Judges answers: one record a line comes in, one verdict a line goes out, in order.

verifiers: {names}; or one of your own: FILE.py:CLASS

example:
  loong verify math --input cases.jsonl --output verdicts.jsonl

`loong verify admission [VERIFIER ...]` tries verifiers with answers that none may
reward, and says which are admitted.

docs/reference/verifiers.md says what each verifier reads, and where it errs.""",
        "verifiers:VERIFIERS",
    ),
    "synth": (
        """\
usage: loong synth loongenv --seeds PATH ... --out DIR --endpoint URL --model NAME
       loong synth resyn --keywords FILE --out DIR --endpoint URL --model NAME
       loong synth formal [--run-dir DIR] [--audit coq]

Has an author model make problems, and keeps those that hold: loongenv poses new
questions after seeds and has programs answer them; resyn writes environments, which
generate problems without end and judge the answers, for keywords; formal turns
problems into statements, and teaches a prover from proofs that a checker accepts.

example, with a model of yours as the author (`loong serve RUN_DIR`):
  echo permutation > words.txt
  loong synth resyn --keywords words.txt --out runs/envs \\
    --endpoint http://127.0.0.1:8000/v1 --model NAME

`loong synth NAME --help` says more; docs/how-to/synthesis.md explains both, and
docs/how-to/formal_loop.md is about formal.""",
        "",
    ),
    "bench": (
        """\
usage: loong bench NAME [--json FILE] [options]

Measures one thing on this machine, prints it, and writes all figures to FILE.

benches: {names}

example:
  loong bench model --json model.json --chart model.png

`loong bench NAME --help` lists the options of a bench.""",
        "bench:BENCHES",
    ),
}


def text_of(command: str) -> str | None:
    """None where the command has options alone, which say it themselves."""
    if command not in _TEXTS:
        return None
    text, place = _TEXTS[command]
    module, _, table = place.partition(":")
    names = getattr(importlib.import_module(f"loong_jax.{module}"), table) if module else ()
    return text.format(names=", ".join(names), example=LAUNCH_EXAMPLE)


def take(option: str, words: Sequence[str]) -> tuple[str | None, list[str]]:
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
