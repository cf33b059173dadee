"""Admission of a file's problems, before anything rewards by them.

Every answer that is known to be right, gold or worked solution, must be right for its verifier; and
each verifier must withstand, on problems of this very file, what `verifiers.admission` tries.
Without a prover proofs are ungradable: such problems are told of, and train nothing.
"""

import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from loong_jax import verifiers
from loong_jax.data import json_files
from loong_jax.data.problem_files import Posed
from loong_jax.errors import ConfigError, VerifierError
from loong_jax.problems import response
from loong_jax.problems.verdict import Verdict
from loong_jax.recipes import FileProblems
from loong_jax.run import own_problems
from loong_jax.run.session import Judge
from loong_jax.verifiers import admission, admission_cases, raised
from loong_jax.verifiers.admission import Case

logger = logging.getLogger(__name__)

RECORD = "admission.json"  # in the run directory
NUM_CASES = {"code": 1}  # of a file that a verifier is tried on; of others:
USUAL_CASES = 4
# As in the cases that they are admitted with in general: bare prose beside a gold may be read.
RENDER = {"math": admission.in_box, "loongbench": admission.in_box}
# Answers that are judged, of verifiers that cost something: a call, a process.
MAX_ASKED = {"judge": 16, "resyn": 256}
WITH_PROVERS = ("coq", "lean")  # programs that a machine may lack


def is_done(run_dir: Path) -> bool:
    """True if the run's problems were admitted before."""
    return (run_dir / RECORD).exists()


def require(settings: FileProblems, judge: Judge, run_dir: Path) -> None:
    """Admits all, and notes in `RUN_DIR/admission.json` what was tried.

    Raises ConfigError by line for answers that are refused, and where nothing can be judged;
    VerifierError for a verifier that is refused.
    """
    start_s = time.monotonic()
    posed = own_problems.read(settings).posed
    by_verifier: dict[str, list[Posed]] = {}
    for one in posed:
        by_verifier.setdefault(one.problem.verifier, []).append(one)
    ungradable: dict[str, str] = {}
    for name in WITH_PROVERS:
        if name in by_verifier and (said := _tried(name)).outcome == "ungradable":
            ungradable[name] = f"{said.reason}: {said.evidence}"
            logger.warning(
                "verifier %r can judge nothing here (%s), so its %d problems will train nothing",
                name, ungradable[name], len(by_verifier.pop(name)),
            )  # fmt: skip
    if not by_verifier:
        raise ConfigError(
            f"no problem of {settings.file} can be judged: {ungradable}. Start the prover, or add "
            "problems of another verifier."
        )
    answers: list[Posed] = []
    for name, found in by_verifier.items():
        answers += [one for one in found if one.answer is not None][: MAX_ASKED.get(name)]
    refuse_wrong_answers(settings, answers, judge)
    table = own_problems.verifiers_of(settings)
    reports = {name: _admit(name, found, table) for name, found in by_verifier.items()}
    json_files.write_json(
        run_dir / RECORD,
        {
            "num_problems": len(posed),
            "num_answers_judged": len(answers),
            "verdicts_by_verifier": {name: r.num_verdicts for name, r in reports.items()},
            "ungradable": ungradable,
            "seconds": round(time.monotonic() - start_s, 1),
        },
    )


def refuse_wrong_answers(settings: FileProblems, answers: Sequence[Posed], judge: Judge) -> None:
    """ConfigError for the lines whose own answer is not right for their verifier.

    VerifierError where a verifier of your own raises: that is no fault of the lines.
    """
    texts = [one.solution or response.render_response("", one.answer or "") for one in answers]
    verdicts = judge.of_texts([one.problem for one in answers], texts)
    table = own_problems.verifiers_of(settings)
    judged = list(zip(answers, verdicts, strict=True))
    own = [said for one, said in judged if one.problem.verifier in table]
    if found := raised.kinds(own)[: own_problems.MAX_NAMED]:
        of = f"of {len(own)} answers that are to be right"
        lines = [f"{first} ({count} {of})." for first, count in found]
        raise VerifierError("\n".join([*lines, raised.REMEDY]))

    def fault(one: Posed, verdict: Verdict) -> str:
        return (
            f"has an answer that its verifier {one.problem.verifier!r} calls {verdict.outcome} "
            f"({verdict.reason}: {verdict.evidence[:120]}): {one.answer!r:.80}. Mend gold, "
            "solution or arguments"
        )

    bad = [(one, fault(one, verdict)) for one, verdict in judged if not verdict.is_correct]
    own_problems.refuse_lines(settings, bad)


def _admit(name: str, found: Sequence[Posed], table: Mapping[str, str]) -> admission.Report:
    """A verifier on cases of the file, or on its own where no answer of the file is known."""
    cases = _cases(found, NUM_CASES.get(name, USUAL_CASES))
    if not cases:
        return admission_cases.admit_registered(name, table).require()
    with contextlib.closing(verifiers.get_verifier(name, table=table)) as verifier:
        return admission.admit(verifier, cases, name=f"verifier {name!r}").require()


def _tried(name: str) -> Verdict:
    """The verdict on an answer that is known to be right."""
    case = admission_cases.cases_of(name)[0]
    with contextlib.closing(verifiers.get_verifier(name)) as verifier:
        return verifier.verify(case.problem, case.render(case.answer))


def _cases(found: Sequence[Posed], count: int) -> list[Case]:
    """Problems with answers of their own, spread over the file."""
    known = {one.answer: one for one in found if one.answer is not None}
    # Zero is its own negative, which admission takes for a second, wrong answer.
    known = {answer: one for answer, one in known.items() if answer.strip() != "0"} or known
    spread = list(known.values())[:: max(1, len(known) // count)][:count]
    return [
        Case(
            problem=one.problem,
            answer=one.answer or "",
            render=RENDER.get(one.problem.verifier, admission.in_tags),
            has_others=True,
        )
        for one in spread
    ]
