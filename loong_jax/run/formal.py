"""`loong synth formal`: statements, a prover that learns from its own proofs, and the audit."""

import dataclasses
import shutil
import time
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from loong_jax.data import json_files
from loong_jax.errors import ConfigError
from loong_jax.run import formal_report, formal_statements, places
from loong_jax.run.formal_report import CONTROL, LOOP
from loong_jax.run.formal_statements import Statements, StatementSettings
from loong_jax.run.tiny_prover import ProverSettings, TinyProver
from loong_jax.synth.formal import backends, expert_iteration, propositional
from loong_jax.synth.formal.expert_iteration import LoopSettings, Round

Audit = Literal["none", "coq", "metamath-exe"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FormalOptions:
    """Teaches a tiny prover by expert iteration, every counted proof accepted by a checker.

    Problems in words become statements of propositional logic: an author translates, filters
    decide. A search proves the smallest ones, and a tiny model learns from these. Round by round it
    attempts what is unsolved, and is trained from scratch on all proofs that the checker (Metamath)
    accepted. Held-out statements measure it; a second prover that trains on the cold start alone is
    the control. Run it again and it resumes. docs/how-to/formal_loop.md says more.

    Examples:
      loong synth formal
      loong synth formal --run-dir runs/formal3 --num-seeds 3 --audit coq
      loong synth formal --statements.author http://127.0.0.1:8000/v1 --statements.model my-model
    """

    run_dir: Path = Path("runs/formal")
    statements: StatementSettings = dataclasses.field(default_factory=StatementSettings)
    loop: LoopSettings = dataclasses.field(default_factory=LoopSettings)
    prover: ProverSettings = dataclasses.field(default_factory=ProverSettings)
    control: bool = True  # the second prover
    audit: Audit = "none"  # a second checker for every counted proof
    seed: int = 0  # of everything
    num_seeds: int = 1  # runs, each with statements and provers of its own, from `seed` on
    json: Path | None = None  # all figures; RUN_DIR/formal.json without it
    chart: Path | None = None  # a PNG; RUN_DIR/formal.png without it

    def __post_init__(self):
        if self.num_seeds < 1:
            raise ConfigError(f"num_seeds={self.num_seeds} must be at least 1. Raise it.")


def run(options: FormalOptions) -> int:
    """Prints tables, writes JSON and chart; exit status 1 unless the audit accepts all proofs."""
    places.prepare_files(json=options.json, chart=options.chart)
    console = Console()
    started_s, cpu_s = time.monotonic(), time.process_time()
    _claim(options)
    seeds = range(options.seed, options.seed + options.num_seeds)
    runs = [run_seed(options, seed, console) for seed in seeds]
    found = formal_report.over_seeds(runs)
    num_samples = options.loop.num_held_out_samples
    if len(runs) > 1:
        console.print(formal_report.table(found, num_samples, f"mean of {len(runs)} seeds"))
    record = {
        "settings": _plain(options),
        "author": options.statements.model,
        "over_seeds": found,
        "runs": runs,
        # Of this call: one that resumes leaves out what was done before, and sandboxes count apart.
        "call_wall_s": time.monotonic() - started_s,
        "call_cpu_s": time.process_time() - cpu_s,
    }
    json_files.write_json(options.json or options.run_dir / "formal.json", record)
    chart = options.chart or options.run_dir / "formal.png"
    chart.write_bytes(formal_report.png(runs, num_samples))
    console.print(f"wrote {chart}; CPU time of this call {record['call_cpu_s']:.0f} s")
    return int(any(one["audit"]["accepted"] < one["audit"]["counted"] for one in runs))


def run_seed(options: FormalOptions, seed: int, console: Console) -> dict[str, Any]:
    """The figures of one run; what it leaves is in RUN_DIR/seed-N."""
    directory = options.run_dir / f"seed-{seed}"
    backend = backends.get_backend("metamath")
    statements = formal_statements.make(options.statements, directory / "statements", backend, seed)
    if statements.funnel:
        console.print(formal_report.funnel_table(statements.funnel))
    console.print(
        f"seed {seed}: {len(statements.cold_start)} statements proved by search, "
        f"{len(statements.pool)} to attempt, {len(statements.held_out)} held out"
    )
    check = propositional.TermChecker(backend)
    arms = run_arms(options, directory, seed, statements, check, console)
    level_of = {goal.uid: goal.level for goal in statements.held_out}
    found = formal_report.figures(arms, level_of=level_of, seed=seed)
    console.print(formal_report.table(found, options.loop.num_held_out_samples, f"seed {seed}"))
    audited = audit(options, statements, arms)
    if audited["checker"] != "none":
        console.print(formal_report.audit_line(audited))
    return {
        "seed": seed,
        "funnel": statements.funnel,
        "num_cold_start": len(statements.cold_start),
        "num_pool": len(statements.pool),
        "num_held_out": len(statements.held_out),
        **found,
        "audit": audited,
    }


def run_arms(
    options: FormalOptions,
    directory: Path,
    seed: int,
    statements: Statements,
    check: expert_iteration.Check,
    console: Console,
) -> dict[str, list[Round]]:
    """The loop, and its control: the same loop, in which nothing is learnt from what was found."""
    prover = TinyProver(options.prover, progress=lambda said: console.print(f"  {said}"))
    arms: dict[str, list[Round]] = {}
    for arm in (LOOP, CONTROL) if options.control else (LOOP,):
        console.print(formal_report.title(arm))
        if arm == CONTROL:
            _share_first_round(directory)
        arms[arm] = expert_iteration.run(
            directory / arm,
            dataclasses.replace(options.loop, learns=arm == LOOP, seed=seed),
            prover,
            check,
            cold_start=statements.cold_start,
            pool=statements.pool,
            held_out=statements.held_out,
            on_round=lambda done: console.print(formal_report.line(done)),
        )
    return arms


def _claim(options: FormalOptions) -> None:
    """Writes down what this run is of. ConfigError where its directory holds another run."""
    path = options.run_dir / "settings.json"
    mine = json_files.without_nan(_plain(options) | {"audit": None, "num_seeds": None})
    there = json_files.read_json(path)
    if there is None:
        json_files.write_json(path, mine)
    elif different := [name for name in mine if there.get(name) != mine[name]]:
        raise ConfigError(
            f"{options.run_dir} holds a run with other {', '.join(different)}. Name another "
            "--run-dir, or delete that one."
        )


def _share_first_round(directory: Path) -> None:
    """Both arms begin with the same training, from the same seed, so it is made once."""
    source, target = (directory / arm / "round-0" for arm in (LOOP, CONTROL))
    partial = target.with_name("round-0.partial")
    if not target.exists():
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(source, partial)
        partial.rename(target)


def audit(
    options: FormalOptions, statements: Statements, arms: dict[str, list[Round]]
) -> dict[str, Any]:
    """Every counted proof before a second checker."""
    if options.audit == "none":
        return {"checker": "none", "counted": 0, "accepted": 0, "refused": [], "ungradable": 0}
    rounds = [done for rounds in arms.values() for done in rounds]
    claims = expert_iteration.counted(rounds, [*statements.pool, *statements.held_out])
    verdicts = propositional.TermChecker(backends.get_backend(options.audit))(claims)
    return {
        "checker": options.audit,
        "counted": len(claims),
        "accepted": sum(judged.is_correct for judged in verdicts),
        "refused": [
            [claim.goal.text, claim.proof, judged.reason, judged.evidence]
            for claim, judged in zip(claims, verdicts, strict=True)
            if judged.outcome == "wrong"
        ],
        "ungradable": sum(not judged.is_graded for judged in verdicts),
    }


def _plain(options: FormalOptions) -> dict[str, Any]:
    record = dataclasses.asdict(options)
    for name in ("run_dir", "json", "chart"):
        record.pop(name)
    return record
