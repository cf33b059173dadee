"""`loong verify`: a file of records in, a file of verdicts out, line by line and in order."""

import collections
import contextlib
import dataclasses
import json
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from loong_jax import options, own, verifiers
from loong_jax.errors import ConfigError, VerifierError
from loong_jax.problems import verdict
from loong_jax.problems.problem import Problem
from loong_jax.problems.verdict import Score, Verdict
from loong_jax.verifiers import Verifier, admission, admission_cases, raised

logger = logging.getLogger(__name__)

_NAMES = ("id", "uid")  # of the record, repeated beside its verdict


@dataclasses.dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """Judges every line of a JSON-lines file; the output has one verdict a line, in order.

    Most records have `answer` (a whole response or the answer alone) and `gold`;
    docs/reference/verifiers.md says what each verifier reads. A line that is no record is
    ungradable.

    Example: loong verify math --input cases.jsonl --output verdicts.jsonl
    """

    input: Path  # records, one JSON object a line
    output: Path  # {"verdict", "reason", "evidence", ...} a line; replaced when all is done


_Verifiers = Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="VERIFIER ...")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdmissionOptions:
    """Tries verifiers with answers that none may reward, and says which are admitted.

    The exit status is 1 unless all are. Example: loong verify admission math own.py:Mine
    """

    # names, or classes of your own, FILE.py:CLASS; all of ours unless named
    verifiers: _Verifiers = ()


def main(arguments: Sequence[str]) -> int:
    name, *rest = arguments
    if name == "admission":
        return admit(options.parse(AdmissionOptions, "loong verify admission", rest).verifiers)
    table = {name: name} if verifiers.own_table([name] if ".py" in name else []) else {}
    if name not in (verifiers.VERIFIERS | table):
        raise ConfigError(
            f"{name!r} judges no files. Choose one of: {', '.join(verifiers.VERIFIERS)}; or one of "
            "your own: FILE.py:CLASS."
        )
    chosen = options.parse(VerifyOptions, f"loong verify {name}", rest)
    verifier = verifiers.get_verifier(name, table=table)
    counts = verify_file(verifier, chosen.input, chosen.output)
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    return 0


def verify_file(verifier: Verifier, source: Path, destination: Path) -> dict[str, int]:
    """Judges every line of `source` and closes `verifier`; counts the outcomes.

    `destination` is replaced once all verdicts are known. Raises VerifierError where `source`
    cannot be read or `destination` cannot be replaced, such as a directory or /dev/stdout.
    """
    target = Path(os.path.realpath(destination))  # a link stays one
    counts: collections.Counter[str] = collections.Counter(
        dict.fromkeys(("correct", "wrong", "ungradable"), 0)
    )
    partial = target.with_name(target.name + ".partial")
    watch = raised.RaisedWatch(logger.warning)
    try:
        there, stdout = destination.exists(), Path("/dev/stdout")  # a file too, perhaps
        is_stdout = there and stdout.exists() and destination.samefile(stdout)
        if is_stdout or (there and not destination.is_file()):
            raise VerifierError(f"{destination} is no regular file. Name a file: it is replaced.")
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(source, "rb") as lines, open(partial, "w", encoding="utf-8") as out:
            for line in lines:
                record, judged = _judge(verifier, line)
                counts[judged.outcome] += 1
                watch.seen([judged] if isinstance(judged, Verdict) else [])
                out.write(json.dumps(_named(record) | as_record(judged)) + "\n")
        os.replace(partial, target)
        watch.ended()
    except OSError as error:
        raise VerifierError(
            f"{error.filename or partial}: {error.strerror}. Name files that can be read and "
            "written."
        ) from error
    finally:
        verifier.close()
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)  # it is left where the run was interrupted
    return {str(outcome): count for outcome, count in counts.items()}


def admit(names: Sequence[str]) -> int:
    """Tries verifiers by name, all of the table if none is named; 1 if one is not admitted.

    One that cannot be built here, for want of an endpoint or a sandbox, is not admitted either.
    """
    table = verifiers.own_table([name for name in names if ".py" in name])
    unknown = {name for name in names if name not in (*verifiers.VERIFIERS, *table.values())}
    if unknown:
        raise VerifierError(
            f"verifiers {sorted(unknown)} are unknown. Choose from {sorted(verifiers.VERIFIERS)}, "
            "or name one of your own: FILE.py:CLASS."
        )
    num_refused = 0
    short = {whole: name for name, whole in table.items()}
    for name in names or sorted(verifiers.VERIFIERS):
        print(f"trying {name}", file=sys.stderr, flush=True)
        try:
            report = admission_cases.admit_registered(short.get(name, name), table)
        except VerifierError as error:
            print(f"verifier {name!r}: REFUSED; {error}")
            num_refused += 1
            continue
        print("\n".join(admission.rows(report)))
        num_refused += not report.is_admitted
    return 1 if num_refused else 0


def as_record(judged: Verdict | Score) -> dict[str, Any]:
    if isinstance(judged, Score):
        fields = dataclasses.asdict(judged)
        return {"score": fields.pop("value"), **fields}
    fields = dataclasses.asdict(judged)
    details = fields.pop("details")
    return {"verdict": fields.pop("outcome"), **fields, **details}


def _judge(verifier: Any, line: bytes) -> tuple[Any, Verdict | Score]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        return None, verdict.ungradable("record", f"no JSON: {error}"[:200])
    if not isinstance(record, dict):
        return None, verdict.ungradable("record", "no JSON object")
    try:
        read = getattr(verifier, "verify_record", None)
        found = read(record) if read else _verify_problem(verifier, record)
        if isinstance(found, Score):
            return record, found
        return record, raised.as_verdict(found, own.place_of(type(verifier)))
    except (Exception, SystemExit) as error:
        return record, raised.verdict_on(error, own.place_of(type(verifier)))


def _verify_problem(verifier: Verifier, record: dict[str, Any]) -> Verdict:
    """Verifies by a verifier that reads problems: `gold`, `question` and the rest as arguments."""
    answer, gold = record.get("answer"), record.get("gold")
    if not isinstance(answer, str):
        return verdict.ungradable("record", "answer is missing or no text")
    problem = Problem(
        uid=str(record.get("uid", "")),
        domain="own",
        environment="records",
        level=0,
        seed=0,
        canonical="",
        prompt=str(record.get("question", "")),
        verifier="own",
        arguments=record,
        gold=None if gold is None else str(gold),
    )
    return verifier.verify(problem, answer)


def _named(record: Any) -> dict[str, Any]:
    record = record if isinstance(record, dict) else {}
    return {name: record[name] for name in _NAMES if isinstance(record.get(name), str | int)}
