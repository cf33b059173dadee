"""Keywords, the ideas that come of them, what is asked for each, and where it ended.

ReSyn drew its keywords from problems of the benchmarks it was then judged on. Here they come from a
person, as texts or a file, and are compared with what will be evaluated: names of known benchmark
tasks, and the texts of evaluation sets that are given. Questions of the environments that were made
are compared too, by runs of words.
"""

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from loong_jax.data import json_files
from loong_jax.data.json_files import BadLine
from loong_jax.errors import ConfigError, refuse_below, refuse_no_share
from loong_jax.problems import response
from loong_jax.problems.problem import Domain
from loong_jax.synth import calls
from loong_jax.synth.calls import Request
from loong_jax.synth.resyn.measures import CalibrationRule

MAX_KEYWORD_CHARS = 60
NGRAM = 8  # words that stand alike in a question and in an evaluation text
_TEXT_KEYS = ("question", "prompt", "problem", "input", "text")

# Tasks of benchmarks that results on reasoning are reported on, as their authors name them.
KNOWN_TASKS: Mapping[str, tuple[str, ...]] = {
    "BBH": (
        "boolean expressions", "causal judgement", "date understanding", "disambiguation qa",
        "dyck languages", "formal fallacies", "geometric shapes", "hyperbaton",
        "logical deduction", "movie recommendation", "multistep arithmetic", "navigate",
        "object counting", "penguins in a table", "reasoning about colored objects", "ruin names",
        "salient translation error detection", "snarks", "sports understanding",
        "temporal sequences", "tracking shuffled objects", "web of lies", "word sorting",
    ),
    "BBEH": (
        "boardgame qa", "boolean expressions", "buggy tables", "causal understanding",
        "disambiguation qa", "dyck languages", "geometric shapes", "hyperbaton", "linguini",
        "movie recommendation", "multistep arithmetic", "nycc", "object counting",
        "object properties", "sarc triples", "shuffled objects", "spatial reasoning", "sportqa",
        "temporal sequence", "time arithmetic", "web of lies", "word sorting", "zebra puzzles",
    ),
    "KOR-Bench": ("operation", "logic", "cipher", "puzzle", "counterfactual"),
    "ZebraLogic": ("zebra puzzles", "zebra logic"),
    "Sudoku-Bench": ("sudoku",),
}  # fmt: skip


def read(path: Path) -> list[str]:
    """Keywords of a file: one a line, `#` begins a comment; or a JSON list of texts."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        lines = [line.partition("#")[0] for line in text.splitlines()]
        words = json.loads(text) if path.suffix == ".json" else lines
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} cannot be read as keywords: {error}. Name another file."
        ) from None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ConfigError(f"{path} holds no list of texts. Write one keyword a line.")
    return cleaned(words)


def cleaned(words: Iterable[str]) -> list[str]:
    """Keywords in order, each once; ConfigError for none, or one that is a whole text."""
    found = list(dict.fromkeys(" ".join(word.split()).lower() for word in words if word.strip()))
    if not found:
        raise ConfigError("there is no keyword. Give at least one.")
    if long := [word for word in found if len(word) > MAX_KEYWORD_CHARS]:
        raise ConfigError(
            f"keyword {long[0][:80]!r} has more than {MAX_KEYWORD_CHARS} characters. A keyword is "
            "a few words, not a problem."
        )
    return found


def read_texts(path: Path) -> list[str]:
    """Texts of an evaluation set: JSON lines with a question, prompt, problem, input or text."""

    def text(record: dict[str, Any], _: int) -> str:
        key = next((key for key in _TEXT_KEYS if key in record), None)
        if key is None:
            raise BadLine(f"has none of the keys {', '.join(_TEXT_KEYS)}. Name what it asks so")
        return str(record[key])

    return json_files.read_lines(path, text, noun="text")


def audit(words: Sequence[str], sets: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    """Per keyword: tasks of known benchmarks it names, and how many texts of each set hold it."""
    bags = {name: [_words(text) for text in texts] for name, texts in sets.items()}
    return [
        {
            "keyword": word,
            "names_tasks": _named(word),
            "in_texts": {
                name: sum(_holds(bag, _words(word)) for bag in texts)
                for name, texts in bags.items()
            },
        }
        for word in words
    ]


def shared_runs(questions: Sequence[str], sets: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """By set, how many questions share a run of `NGRAM` words with one of its texts."""
    found = {}
    for name, texts in sets.items():
        known = {run for text in texts for run in _runs(text)}
        found[name] = sum(any(run in known for run in _runs(question)) for question in questions)
    return found


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def _named(word: str) -> list[str]:
    mine = [_singular(part) for part in _words(word)]
    return [
        f"{bench}: {task}"
        for bench, tasks in KNOWN_TASKS.items()
        for task in tasks
        if [_singular(part) for part in _words(task)] == mine
    ]


def _singular(word: str) -> str:
    return word[:-1] if word.endswith("s") and len(word) > 3 else word


def _holds(bag: Sequence[str], word: Sequence[str]) -> bool:
    count = len(word)
    return any(list(bag[i : i + count]) == list(word) for i in range(len(bag) - count + 1))


def _runs(text: str) -> set[tuple[str, ...]]:
    words = _words(text)
    return {tuple(words[i : i + NGRAM]) for i in range(len(words) - NGRAM + 1)}


STAGES = ("idea", "module", "gates", "novelty", "judge", "calibration")
KEPT = "kept"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResynSettings:
    """Everything that changes what comes out, beside the keywords and the author."""

    ideas_per_keyword: Annotated[int, tyro.conf.arg(aliases=["--ideas"])] = 8
    seed: int = 0  # of the requests: another one asks the same questions anew
    calibration: CalibrationRule = CalibrationRule()
    min_graded_share: float = 0.8  # of the attempts of each level
    domain: Domain = "logic"  # of the packages
    licence: str = "Apache-2.0"  # that they name
    # keywords that name an evaluation set's task
    keeps_overlapping: Annotated[bool, tyro.conf.arg(aliases=["--keep-overlapping"])] = False

    def __post_init__(self):
        refuse_below(self, 1, "ideas_per_keyword")
        refuse_no_share(self, "min_graded_share")
        if not self.domain.strip():
            raise ConfigError(f"domain={self.domain!r} is no word. Give one.")


@dataclasses.dataclass(kw_only=True)
class Item:
    """A place for one idea: `ideas_per_keyword` of them for each keyword, filled or not.

    It ends in exactly one place: `kept`, or a stage of `STAGES` with a reason.
    """

    uid: str  # "003-02": keyword 3, idea 2
    keyword: str
    title: str = ""
    description: str = ""
    source: str = ""
    levels: tuple[int, ...] = ()
    guess_share: float = 0.0
    prompt_chars: tuple[int, ...] = ()
    form: tuple[str, str] = ("", "")  # digests of its normalised verifier and template
    complaint: str = ""  # given to the revision
    was_revised: bool = False
    first_refusal: str = ""  # stage and reason that the revision answered
    calibration: dict[str, Any] = dataclasses.field(default_factory=dict)
    end: str = ""  # "kept" or a stage
    reason: str = ""
    detail: str = ""
    calls: list[str] = dataclasses.field(default_factory=list)  # keys of transcripts, in order

    @property
    def is_open(self) -> bool:
        return not self.end

    def stop(self, stage: str, reason: str, detail: str = "") -> None:
        assert self.is_open, f"item {self.uid} ended before, at {self.end}"
        assert stage == KEPT or stage in STAGES, stage
        self.end, self.reason, self.detail = stage, reason, detail[:300]


def count(items: Sequence[Item]) -> dict[str, Any]:
    """Items by stage where they ended and reason; in = out + refused at every stage, asserted."""
    stages, left = [], len(items)
    for stage in STAGES:
        reasons = Counter(item.reason for item in items if item.end == stage)
        entered, left = left, left - reasons.total()
        stages.append(
            {"stage": stage, "in": entered, "refused": dict(sorted(reasons.items())), "out": left}
        )
    kept = sum(item.end == KEPT for item in items)
    assert left == kept, f"{left} items are left, but {kept} are kept"
    revised = [item for item in items if item.was_revised]
    refusals = Counter(item.first_refusal for item in items if item.first_refusal)
    return {
        "items": len(items),
        "stages": stages,
        "kept": kept,
        "revised": len(revised),
        "kept_after_revision": sum(item.end == KEPT for item in revised),
        "first_refusals": dict(sorted(refusals.items())),
    }


def as_text(funnel: Mapping[str, Any]) -> str:
    lines = [f"{funnel['items']} ideas asked for"]
    for stage in funnel["stages"]:
        refused = ", ".join(f"{n} {why}" for why, n in stage["refused"].items()) or "none"
        lines.append(f"  {stage['stage']:<12}{stage['in']:5} in{stage['out']:5} out   {refused}")
    lines.append(
        f"{funnel['kept']} environments kept, {funnel['kept_after_revision']} of them after a "
        f"revision ({funnel['revised']} were revised)"
    )
    return "\n".join(lines)


_LISTED = {"type": "array", "items": calls.fields(title=str, description=str)}
IDEAS = {"type": "object", "required": ["ideas"], "properties": {"ideas": _LISTED}}
MODULE_VIEW = calls.fields(
    reference_free=bool, computational_advantage=bool, is_complete=bool, scales=bool, comment=str
)
QUESTION_VIEW = calls.fields(is_well_specified=bool, has_loophole=bool, comment=str)
ASKED: dict[str, tuple[str, dict[str, Any] | None]] = {  # prompt -> role, shape of the reply
    "ideas": ("idea", IDEAS),
    "module": ("coder", None),
    "judge_module": ("judge", MODULE_VIEW),
    "judge_question": ("judge", QUESTION_VIEW),
    "revise": ("coder", None),
    "solve": ("solver", None),
}
MAX_TITLE_CHARS = 200
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def request(name: str, seed: int, item: Item | None = None, **more: str) -> Request:
    """The request with the prompt of this name, filled from an item and from `more`."""
    known = more if item is None else {**dataclasses.asdict(item), "code": item.source, **more}
    role, schema = ASKED[name]
    fields = {field: known[field] for field in calls.prompt(f"resyn/{name}").fields}
    return Request(role=role, prompt_name=f"resyn/{name}", fields=fields, seed=seed, schema=schema)


def code_of(text: str) -> str:
    """The last fenced block of a reply, or all of it where there is none."""
    found = response.blocks(text)
    return (found[-1].body if found else text).strip("\n") + "\n"


def answer_of(text: str) -> str | None:
    """The last text between the answer's marks in a solver's reply; None without any."""
    found = _ANSWER.findall(text)
    return found[-1].strip() if found else None


def module_refusal(view: dict[str, Any]) -> str:
    """The first stage's reason to refuse, or "": ReSyn's either-or, and both others."""
    if not (view["reference_free"] or view["computational_advantage"]):
        return "neither reference-free nor a computational advantage"
    if not view["is_complete"]:
        return "incomplete"
    return "" if view["scales"] else "levels do not scale"


def question_refusal(view: dict[str, Any]) -> str:
    """The second stage's reason to refuse, or ""."""
    if not view["is_well_specified"]:
        return "not well specified"
    return "loophole seen" if view["has_loophole"] else ""
