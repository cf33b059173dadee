"""`loong synth`: loongenv and resyn as their rooms have them, and the loop of formal.

That is statements, a prover that learns from its own proofs, and the audit.
"""

import dataclasses
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from rich.console import Console

from loong_jax import options
from loong_jax.data import json_files
from loong_jax.errors import ConfigError, refuse_below
from loong_jax.eval import metrics
from loong_jax.eval.metrics import Estimate
from loong_jax.report import synthesis
from loong_jax.run import places
from loong_jax.run.tiny_prover import ProverSettings, TinyProver
from loong_jax.synth import authors
from loong_jax.synth.formal import backends, expert_iteration, formalise, proofs
from loong_jax.synth.formal.backends import Backend
from loong_jax.synth.formal.expert_iteration import Goal, LoopSettings, Round, Solution
from loong_jax.synth.formal.formulas import Theorems
from loong_jax.synth.loongenv import command as loongenv
from loong_jax.synth.resyn import command as resyn

Audit = Literal["none", "coq", "metamath-exe"]
LOOP, CONTROL = synthesis.LOOP, synthesis.CONTROL


@dataclasses.dataclass(frozen=True, kw_only=True)
class StatementSettings:
    """Numbers and kinds of statements, and their author."""

    theorems: Theorems = dataclasses.field(default_factory=Theorems)
    num_problems: int = 1500  # told in words: for the cold start and the pool
    num_held_out: int = 200  # that measure, and never train
    cold_start_nodes: int = 5  # the largest proof that the search for the cold start may find
    author: str = "none"  # an address that ends in /v1, or "none": statements as they are drawn
    model: str = ""  # the name the endpoint knows

    def __post_init__(self):
        refuse_below(self, 1, "num_problems", "num_held_out", "cold_start_nodes")


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
        refuse_below(self, 1, "num_seeds")


def main(arguments: Sequence[str]) -> int:
    """`loong synth NAME`."""
    name, *rest = arguments
    rooms = {  # options, what carries them out, and the page about it
        "loongenv": (loongenv.LoongEnvOptions, loongenv.main, synthesis.write_loongenv),
        "resyn": (resyn.ResynOptions, resyn.main, synthesis.write_resyn),
        "formal": (FormalOptions, run_formal, None),
    }
    if name not in rooms:
        raise ConfigError(f"{name!r} makes no problems. Choose one of: {', '.join(rooms)}.")
    kind, carry_out, write_page = rooms[name]
    chosen = options.parse(kind, f"loong synth {name}", rest)
    status = carry_out(chosen)
    if write_page is not None:
        print(write_page(chosen.out))
    return status


def run_formal(chosen: FormalOptions) -> int:
    """Prints tables, writes JSON and chart; exit status 1 unless the audit accepts all proofs."""
    places.prepare_files(json=chosen.json, chart=chosen.chart)
    console = Console()
    started_s, cpu_s = time.monotonic(), time.process_time()
    places_of = ("run_dir", "json", "chart")
    settings = {k: v for k, v in dataclasses.asdict(chosen).items() if k not in places_of}
    authors.claim(chosen.run_dir / "settings.json", settings | {"audit": None, "num_seeds": None})
    seeds = range(chosen.seed, chosen.seed + chosen.num_seeds)
    runs = [run_seed(chosen, seed, console) for seed in seeds]
    found = over_seeds(runs)
    if len(runs) > 1:
        console.print(synthesis.formal_table(found, f"mean of {len(runs)} seeds"))
    record = {
        "settings": settings,
        "author": chosen.statements.model,
        "over_seeds": found,
        "runs": runs,
        # Of this call: one that resumes leaves out what was done before, and sandboxes count apart.
        "call_wall_s": time.monotonic() - started_s,
        "call_cpu_s": time.process_time() - cpu_s,
    }
    json_files.write_json(chosen.json or chosen.run_dir / "formal.json", record)
    chart = chosen.chart or chosen.run_dir / "formal.png"
    chart.write_bytes(synthesis.formal_chart(found))
    console.print(f"wrote {chart}; CPU time of this call {record['call_cpu_s']:.0f} s")
    return int(any(one["audit"]["accepted"] < one["audit"]["counted"] for one in runs))


def run_seed(chosen: FormalOptions, seed: int, console: Console) -> dict[str, Any]:
    """The figures of one run; what it leaves is in RUN_DIR/seed-N.

    The control is the same loop, in which nothing is learnt from what was found.
    """
    directory = chosen.run_dir / f"seed-{seed}"
    backend = backends.get_backend("metamath")
    made = statements(chosen.statements, directory / "statements", backend, seed)
    if made.funnel:
        ends = ", ".join(f"{stage} {count}" for stage, count in made.funnel.items())
        console.print(f"{sum(made.funnel.values())} problems in words ended so: {ends}")
    console.print(
        f"seed {seed}: {len(made.cold_start)} statements proved by search, "
        f"{len(made.pool)} to attempt, {len(made.held_out)} held out"
    )
    prover = TinyProver(chosen.prover, progress=lambda said: console.print(f"  {said}"))
    arms: dict[str, list[Round]] = {}
    for arm in (LOOP, CONTROL) if chosen.control else (LOOP,):
        console.print(f"{arm}: {synthesis.LABEL[arm]}")
        if arm == CONTROL:
            _share_first_round(directory)
        arms[arm] = expert_iteration.run(
            directory / arm,
            dataclasses.replace(chosen.loop, learns=arm == LOOP, seed=seed),
            prover,
            backends.ProofChecker(backend),
            cold_start=made.cold_start,
            pool=made.pool,
            held_out=made.held_out,
            on_round=lambda done: console.print(str(expert_iteration.summary(done))),
        )
    found = figures(arms, level_of={goal.uid: goal.level for goal in made.held_out}, seed=seed)
    console.print(synthesis.formal_table(found, f"seed {seed}"))
    audited = audit(chosen.audit, made, arms)
    if chosen.audit != "none":
        console.print(
            f"{chosen.audit} accepts {audited['accepted']} of {audited['counted']} counted proofs,"
            f" refuses {len(audited['refused'])}, and cannot judge {audited['ungradable']}"
        )
    counts = {
        "num_cold_start": len(made.cold_start),
        "num_pool": len(made.pool),
        "num_held_out": len(made.held_out),
    }
    return {"seed": seed, "funnel": made.funnel, **counts, **found, "audit": audited}


def _share_first_round(directory: Path) -> None:
    """Copies the first round to the other arm: both begin with the same training, from one seed."""
    source, target = (directory / arm / "round-0" for arm in (LOOP, CONTROL))
    partial = target.with_name("round-0.partial")
    if not target.exists():
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(source, partial)
        partial.rename(target)


# ---- statements: drawn, told in words, formalised by an author, proved


class Statements(NamedTuple):
    """No two of all these are kin. `funnel` says where problems in words ended."""

    cold_start: list[Solution]
    pool: list[Goal]
    held_out: list[Goal]
    funnel: dict[str, int]


def statements(
    settings: StatementSettings, directory: Path, backend: Backend, seed: int
) -> Statements:
    """Statements of all three kinds. What an author said is kept in `directory`."""
    rng = np.random.default_rng(seed)
    drawn, num_tried = {}, 0
    wanted = settings.num_held_out + settings.num_problems
    while len(drawn) < wanted and num_tried < 100 * wanted:
        posed, size = settings.theorems.draw(rng)
        drawn.setdefault(posed.kin, (posed, size))
        num_tried += 1
    if len(drawn) < wanted:
        raise ConfigError(
            f"there are too few different theorems of at most {settings.theorems.max_size} steps "
            f"for {wanted} statements. Ask for fewer, or raise max_size."
        )
    everything = list(drawn.values())
    held_out = [proofs.goal_of(*one) for one in everything[: settings.num_held_out]]
    rest, funnel = everything[settings.num_held_out :], {}
    if settings.author != "none":
        directory.mkdir(parents=True, exist_ok=True)
        problems = [formalise.told(posed, rng) for posed, _ in rest]
        endpoint = authors.endpoint_of(settings.author, settings.model)
        with authors.open_author(directory, endpoint) as author:
            made = formalise.formalise(problems, author, backend, seed=seed)
        formalise.drop_kin(made, {goal.kin for goal in held_out})
        json_files.write_jsonl(directory / "formalised.jsonl", [one.record() for one in made])
        # What goes on are the author's own words for it, not what they were meant to say.
        rest = [
            (one.statement, size)
            for one, (_, size) in zip(made, rest, strict=True)
            if one.is_kept and one.statement is not None
        ]
        funnel = formalise.funnel(made)
    found = [
        (proofs.goal_of(posed, size), proofs.search(posed, settings.cold_start_nodes))
        for posed, size in rest
    ]
    cold_start = [Solution(goal, node.letters) for goal, node in found if node is not None]
    pool = [goal for goal, node in found if node is None]
    if not cold_start:
        raise ConfigError(
            f"the search proves none of {len(rest)} statements. Raise cold_start_nodes or "
            "num_problems."
        )
    return Statements(cold_start, pool, held_out, funnel)


def audit(checker: Audit, made: Statements, arms: Mapping[str, Sequence[Round]]) -> dict[str, Any]:
    """Every counted proof before a second checker."""
    claims, verdicts = [], []
    if checker != "none":
        rounds = [done for rounds in arms.values() for done in rounds]
        claims = expert_iteration.counted(rounds, [*made.pool, *made.held_out])
        verdicts = backends.ProofChecker(backends.get_backend(checker))(claims)
    return {
        "checker": checker,
        "counted": len(claims),
        "accepted": sum(judged.is_correct for judged in verdicts),
        "refused": [
            [claim.goal.text, claim.proof, judged.reason, judged.evidence]
            for claim, judged in zip(claims, verdicts, strict=True)
            if judged.outcome == "wrong"
        ],
        "ungradable": sum(not judged.is_graded for judged in verdicts),
    }


# ---- what the rounds amount to


def figures(
    arms: Mapping[str, Sequence[Round]], *, level_of: Mapping[str, int], seed: int
) -> dict[str, Any]:
    """By arm, a record of each round; and by how much the last round of the loop is ahead."""

    def round_figures(done: Round) -> dict[str, Any]:
        graded = [a for a in done.held_out if a.num_graded]
        values = [float(a.is_solved) for a in graded]
        share = metrics.mean_estimate(values, seed=seed)
        rate = metrics.mean_estimate([a.num_correct / a.num_graded for a in graded], seed=seed)
        levels = metrics.by_group(values, [level_of[a.uid] for a in graded], seed=seed)
        return expert_iteration.summary(done) | {
            "solved_share": share.value,
            "solved_share_ci95": share.ci95,
            "pass@1": rate.value,
            "pass@1_ci95": rate.ci95,
            "solved_share_by_level": {str(level): [e.value, e.n] for level, e in levels.items()},
        }

    def difference(*rounds: Round) -> dict[str, Any]:
        """The solved share of the first round minus that of the second, paired by statement."""
        solved = [{a.uid: int(a.is_solved) for a in r.held_out if a.num_graded} for r in rounds]
        return metrics.paired_difference(*solved, seed=seed).to_json("value")

    found: dict[str, Any] = {arm: list(map(round_figures, rounds)) for arm, rounds in arms.items()}
    if len(arms.get(LOOP, [])) > 1:
        found["gain"] = difference(arms[LOOP][-1], arms[LOOP][0])
    if {LOOP, CONTROL} <= set(arms):
        found["gain_over_control"] = difference(arms[LOOP][-1], arms[CONTROL][-1])
    return found


def over_seeds(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means of `figures` over runs of different seeds; pools are shares of themselves.

    The intervals are for other seeds and other statements (`metrics.over_runs`).
    """

    def mean(records: Sequence[Mapping[str, Any]], name: str, interval: str) -> Estimate:
        return metrics.over_runs([Estimate(one[name], *one[interval], n=0) for one in records])

    found: dict[str, Any] = {}
    for arm in (LOOP, CONTROL):
        for records in zip(*(run.get(arm, []) for run in runs), strict=True):
            pools = [max(run["num_pool"], 1) for run in runs]
            shares = [one["pool_solved"] / n for one, n in zip(records, pools, strict=True)]
            figures = {
                "round": records[0]["round"],
                "num_examples": sum(one["num_examples"] for one in records) / len(records),
            }
            for name in ("solved_share", "pass@1"):
                over = mean(records, name, f"{name}_ci95")
                figures |= {name: over.value, f"{name}_ci95": over.ci95}
            figures["pool_solved_share"] = sum(shares) / len(shares)
            found.setdefault(arm, []).append(figures)
    for name in ("gain", "gain_over_control"):
        if all(name in run for run in runs):
            over = mean([run[name] for run in runs], "value", "ci95")
            found[name] = {"value": over.value, "ci95": over.ci95, "num_seeds": len(runs)}
    return found
