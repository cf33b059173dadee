"""`loong synth resyn`: from keywords to environment packages, stage by stage over all ideas.

Replies are the only outside input, and an author keeps them on disk before anybody sees them: a
run that was killed is the same run again, without a second payment. Equal replies give equal files.
Source: ReSyn, arXiv:2602.20117.
"""

import contextlib
import dataclasses
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from loong_jax.data import json_files, packages
from loong_jax.data.packages import Package
from loong_jax.environments.modules import Call, Module, Outcome
from loong_jax.synth import authors
from loong_jax.synth.authors import Author
from loong_jax.synth.calls import Reply, Request, Settings
from loong_jax.synth.resyn import ideas, measures
from loong_jax.synth.resyn.gates import Examiner
from loong_jax.synth.resyn.ideas import KEPT, Item, ResynSettings
from loong_jax.synth.resyn.measures import Form, LevelCount
from loong_jax.verifiers.judge.client import Budget

NUM_EXAMPLES = 2  # of each level, for the judge
SECOND_TRY = 10_000  # added to the seed of a question that is asked again
FIRST_SEED = 1_000_000  # of a solver's instances: apart from those that gates looked at
CODE_TOKENS = 16_384  # a module of 20,000 characters, and thoughts before it
ANSWER_TOKENS = 8192
BUDGET_SPENT = 3  # exit status
ROLES = {
    "idea": Settings(temperature=1.0, max_reply_tokens=ANSWER_TOKENS),
    "coder": Settings(temperature=0.2, max_reply_tokens=CODE_TOKENS),
    "judge": Settings(temperature=0.0, max_reply_tokens=ANSWER_TOKENS),
    "solver": Settings(temperature=0.7, max_reply_tokens=ANSWER_TOKENS),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResynOptions:
    """Writes reasoning environments for keywords with an author model, and admits what holds.

    Each keyword gives ideas; each idea becomes a Python module that draws, words and judges
    problems. It is run in the sandbox alone, tried by mechanical gates, read by a judge in two
    stages, corrected once, and kept if a solver's success falls as its level rises.

    OUT gets packages/ (one directory per environment), report.html (where every idea ended, and the
    solve rates), report.json, items.jsonl, audit.json and calls.jsonl (every call, paid for once).
    A run that was stopped goes on when the same command runs again.

    Example: loong synth resyn --out envs --keywords words.txt
    --endpoint http://127.0.0.1:8000/v1 --model my-model

    Then: loong train environments --packages envs/packages
    """

    out: Path  # directory of the results; made, or gone on with
    keywords: Path  # one keyword a line, # for comments; or .json with a list
    endpoint: str = ""  # an address that ends in /v1; else LOONG_AUTHOR_URL
    model: str = ""  # the name the endpoint knows; else LOONG_AUTHOR_MODEL
    settings: Annotated[ResynSettings, tyro.conf.arg(name="")] = ResynSettings()
    evaluation_sets: tuple[Path, ...] = ()  # JSON lines to audit keywords and questions against
    # the budget, over all starts of this run
    max_requests: Annotated[int | None, tyro.conf.arg(aliases=["--max-calls"])] = None
    max_tokens: int | None = None  # of prompts and replies together
    max_parallel: int = 16  # calls at a time
    timeout_s: float = 300.0  # of one attempt at a call


def main(options: ResynOptions) -> int:
    """Runs, writes all files but the page, and says what came of it.

    Returns the exit status: 0, or BUDGET_SPENT where the budget ended the run early.
    """
    settings = options.settings
    sets = {path.name: ideas.read_texts(path) for path in options.evaluation_sets}
    words = _audited(ideas.read(options.keywords), sets, options)
    endpoint = authors.endpoint_of(options.endpoint, options.model, timeout_s=options.timeout_s)
    authors.claim(
        options.out / "run.json",
        {"settings": dataclasses.asdict(settings), "keywords": words, "model": endpoint.model},
    )
    budget = Budget(max_requests=options.max_requests, max_tokens=options.max_tokens)
    with authors.open_author(
        options.out, endpoint, settings=ROLES, budget=budget, max_parallel=options.max_parallel
    ) as author:
        report = _run(author, words, options.out, settings, sets)
    print(ideas.as_text(report["funnel"]))
    figures = report["diversity"]
    print(
        f"{figures['distinct_both']} differ in verifier and question; {report['calls']} calls, "
        f"{budget.num_tokens} tokens, written by {report['author']}"
    )
    print(f"packages: {options.out / 'packages'}")
    if not report["is_complete"]:
        print("the budget ended this run; the same command with a larger one goes on")
        return BUDGET_SPENT
    return 0


def _audited(words: list[str], sets: dict[str, list[str]], options: ResynOptions) -> list[str]:
    """The keywords without those that name an evaluated task, unless they are wanted."""
    rows = ideas.audit(words, sets)
    left_out = [row["keyword"] for row in rows if row["names_tasks"]]
    left_out = [] if options.settings.keeps_overlapping else left_out
    json_files.write_json(options.out / "audit.json", {"keywords": rows, "left_out": left_out})
    if left_out:
        print(
            f"left out, since they name evaluated tasks: {', '.join(left_out)} (audit.json)",
            file=sys.stderr,
        )
    return ideas.cleaned(word for word in words if word not in left_out)


def _run(
    author: Author, keywords: Sequence[str], out: Path, settings: ResynSettings,
    evaluation_sets: Mapping[str, Sequence[str]],
) -> dict[str, Any]:  # fmt: skip
    """Writes packages, items, funnel and report below `out`; returns the report."""

    def on_stage(stage: str, count: int) -> None:
        print(f"{stage:<12}{count:6}", file=sys.stderr, flush=True)

    with contextlib.closing(Examiner(out / "work")) as examiner:
        flow = _Flow(author, examiner, settings)
        on_stage("ideas", len(keywords))
        items = flow.ideas(keywords)
        for stage, carry_out in (
            ("modules", lambda: flow.written([i for i in items if i.is_open], "module")),
            ("gates", lambda: flow.examine(items)),
            ("judge", lambda: flow.judge(items)),
            ("revision", lambda: flow.revise(items)),
            ("calibration", lambda: flow.calibrate([i for i in items if i.is_open])),
        ):
            needs_it = [i for i in items if i.is_open and (stage != "revision" or i.complaint)]
            on_stage(stage, len(needs_it))
            carry_out()
        kept = [item for item in items if item.is_open]
        on_stage("packages", len(kept))
        author.settle()
        for item in kept:
            item.stop(KEPT, KEPT)
            _write_package(author, item, out / "packages", settings)
        hashes = {Module(item.source).hash for item in kept}
        for manifest in (out / "packages").glob(f"*/{packages.MANIFEST}"):
            if manifest.parent.name.rpartition("-")[2] not in hashes:
                shutil.rmtree(manifest.parent)  # of an earlier start, with a smaller budget say
        shared = ideas.shared_runs(flow.questions(kept), evaluation_sets)
    num_calls = len({key for item in items for key in item.calls})
    report = {
        "author": author.name,
        "funnel": ideas.count(items),
        "diversity": measures.measure(
            {i.uid: flow.forms[i.uid] for i in kept}, {i.uid: i.keyword for i in kept}
        ),
        "solve_rates": [
            {"item": i.uid, "title": i.title}
            | {name: i.calibration[name] for name in ("counts", "decision")}
            for i in items
            if i.calibration
        ],
        "calls": num_calls,
        "calls_per_kept": round(num_calls / len(kept), 1) if kept else None,
        "questions_like_evaluation": shared,
        "is_complete": flow.is_complete,
    }
    json_files.write_jsonl(out / "items.jsonl", map(dataclasses.asdict, items))
    json_files.write_json(out / "report.json", report)
    return report


def _write_package(author: Author, item: Item, directory: Path, settings: ResynSettings) -> None:
    words = re.findall(r"[a-z0-9]+", item.title.lower())
    package = Package(
        name=f"{'_'.join(words)[:40].rstrip('_')}_{item.uid.replace('-', '_')}",
        module=Module(item.source), levels=item.levels, domain=settings.domain,
        licence=settings.licence, author=author.name, title=item.title,
        about={
            "item": item.uid, "keyword": item.keyword, "description": item.description,
            "guess_share": item.guess_share, "prompt_chars": list(item.prompt_chars),
            "calibration": item.calibration, "was_revised": item.was_revised,
            "form": list(item.form),
        },
    )  # fmt: skip
    records = [author.store.get(key) for key in dict.fromkeys(item.calls)]
    packages.write(directory, package, [record for record in records if record is not None])


class _Flow:
    """The stages; each looks at open items alone, in the order of their uids."""

    def __init__(self, author: Author, examiner: Examiner, settings: ResynSettings):
        self.author, self.examiner, self.settings = author, examiner, settings
        self.forms: dict[str, Form] = {}  # of the items that passed the gates, by uid
        self.is_complete = True  # no call was left out for the budget

    def ask(self, requests: Sequence[Request]) -> list[Reply]:
        """Replies in order; AuthorDown where the endpoint has stopped answering."""
        replies = self.author.ask(requests)
        self.author.require_up()
        self.is_complete &= not any(reply.failure == "over_budget" for reply in replies)
        return replies

    def run(self, item: Item, calls: Sequence[Call]) -> list[Outcome]:
        """The outcomes of calls of the item's module."""
        return self.examiner.runner.run(Module(item.source), calls)

    def ideas(self, keywords: Sequence[str]) -> list[Item]:
        """So many places for each keyword, filled with its ideas or stopped without one."""
        count, seed = self.settings.ideas_per_keyword, self.settings.seed
        replies = self.ask(
            [ideas.request("ideas", seed, keyword=w, count=str(count)) for w in keywords]
        )
        items, titles = [], set()
        for number, (keyword, reply) in enumerate(zip(keywords, replies, strict=True)):
            found = reply.parsed["ideas"] if reply.parsed else []
            for place in range(count):
                item = Item(uid=f"{number:03d}-{place:02d}", keyword=keyword)
                item.calls.append(reply.transcript.key)
                items.append(item)
                if reply.failure:
                    item.stop("idea", reply.failure, reply.transcript.detail)
                elif place >= len(found):
                    item.stop("idea", "too few ideas", f"{len(found)} of {count}")
                else:
                    item.title = " ".join(found[place]["title"].split())
                    item.description = found[place]["description"]
                    title = item.title.lower()[: ideas.MAX_TITLE_CHARS]
                    if title in titles:
                        item.stop("idea", "same title")
                    titles.add(title)
        return items

    def written(self, todo: Sequence[Item], name: str) -> None:
        """Each item with the module that the author writes, or stopped without one."""
        seed = self.settings.seed
        replies = self.ask([ideas.request(name, seed, item) for item in todo])
        for item, reply in zip(todo, replies, strict=True):
            item.calls.append(reply.transcript.key)
            if reply.text is None:
                item.stop("module", reply.failure or "", reply.transcript.detail)
            else:
                item.source = ideas.code_of(reply.text)

    def examine(self, items: Sequence[Item]) -> None:
        """Gates, then novelty against all items before; a refusal is the revision's complaint.

        What was revised before is stopped instead.
        """
        todo = [item for item in items if item.is_open and not item.complaint]
        found = self.examiner.examine([Module(item.source) for item in todo])
        for item, examined in zip(todo, found, strict=True):
            if not examined.is_accepted:
                self._refuse(item, "gates", examined.gate, examined.detail)
                continue
            item.levels, item.guess_share = examined.levels, examined.guess_share
            item.prompt_chars = examined.prompt_chars
            self._require_new(item)

    def _require_new(self, item: Item) -> None:
        """A duplicate is stopped at once: a revision of it would be another idea."""
        posed = self.run(item, [("pose", (item.levels[0], seed)) for seed in range(12)])
        form = measures.form_of(item.source, [one.value[1] for one in posed])
        item.form = form.digests
        for uid, other in self.forms.items():
            pairs = zip(("verifier", "template"), form.digests, other.digests, strict=True)
            same = [what for what, one, another in pairs if one == another]
            if same and uid != item.uid:
                item.stop("novelty", f"same {same[0]}", f"as {uid}")
                return
        self.forms[item.uid] = form

    def judge(self, items: Sequence[Item]) -> None:
        """Both stages of the judge; the second sees what passed the first."""
        self._judged(items, "judge_module", ideas.module_refusal)
        self._judged(items, "judge_question", ideas.question_refusal, self._examples)

    def _judged(
        self, items: Sequence[Item], name: str, refusal: Callable[[Any], str],
        examples: Callable[[Item], str] = lambda _: "",
    ) -> None:  # fmt: skip
        """One stage; a call that fails in its form or on its way is made once more."""
        todo = [item for item in items if item.is_open and not item.complaint]
        seed = self.settings.seed
        asked = [ideas.request(name, seed, item, examples=examples(item)) for item in todo]
        replies = self.ask(asked)
        failed = [number for number, reply in enumerate(replies) if reply.parsed is None]
        again = [dataclasses.replace(asked[n], seed=asked[n].seed + SECOND_TRY) for n in failed]
        for number, reply in zip(failed, self.ask(again), strict=True):
            todo[number].calls.append(replies[number].transcript.key)
            replies[number] = reply
        for item, reply in zip(todo, replies, strict=True):
            item.calls.append(reply.transcript.key)
            if reply.parsed is None:
                item.stop("judge", reply.failure or "", reply.transcript.detail)
            elif why := refusal(reply.parsed):
                self._refuse(item, "judge", why, reply.parsed["comment"])

    def _refuse(self, item: Item, stage: str, reason: str, detail: str) -> None:
        if item.was_revised:
            item.stop(stage, reason, detail)
        else:
            item.first_refusal = f"{stage}: {reason}"
            item.complaint = f"Refused by {stage} ({reason}): {detail}"

    def revise(self, items: Sequence[Item]) -> None:
        """The one revision of what a gate or the judge refused, then all of it again."""
        todo = [item for item in items if item.is_open and item.complaint]
        self.written(todo, "revise")
        for item in todo:
            item.was_revised, item.complaint = True, ""
            self.forms.pop(item.uid, None)
        self.examine(todo)
        self.judge(todo)

    def questions(self, items: Sequence[Item]) -> list[str]:
        """Two questions of each level of each item."""
        found = []
        for item in items:
            draws = [(level, seed) for level in item.levels for seed in (0, 1)]
            found += self.run(item, [("pose", draw) for draw in draws])
        return [one.value[1] for one in found if one.status == "ok"]

    def _examples(self, item: Item) -> str:
        """Questions of each level with their references and what is said of both ends of them."""
        draws = [(level, seed) for level in item.levels for seed in range(NUM_EXAMPLES)]
        posed = self.run(item, [("pose", draw) for draw in draws])
        golds = self.run(item, [("reference", (one.value[0],)) for one in posed])
        return "\n\n".join(
            f"Level {level}: {one.value[1]}\nAn answer that is accepted: {gold.value}"
            for (level, _), one, gold in zip(draws, posed, golds, strict=True)
        )

    def calibrate(self, items: Sequence[Item]) -> None:
        """Has a solver attempt each item; stops it where levels are none, or too few are graded.

        Every attempt is on an instance of its own, so attempts are independent draws of the level.
        """
        per_level = self.settings.calibration.attempts_per_level
        seeds = range(FIRST_SEED, FIRST_SEED + per_level)
        asked, places = [], []
        for item in items:
            draws = [(level, seed) for level in item.levels for seed in seeds]
            posed = self.run(item, [("pose", draw) for draw in draws])
            for (level, seed), found in zip(draws, posed, strict=True):
                if found.status == "ok":
                    own_seed = self.settings.seed + seed
                    asked.append(ideas.request("solve", own_seed, item, question=found.value[1]))
                    places.append((item, level, found.value[0]))
        attempts: dict[str, list[tuple[int, Any, str]]] = {item.uid: [] for item in items}
        for (item, level, state), reply in zip(places, self.ask(asked), strict=True):
            item.calls.append(reply.transcript.key)
            if reply.text is not None:
                attempts[item.uid].append((level, state, ideas.answer_of(reply.text) or ""))
        for item in items:
            self._decide(item, attempts[item.uid])

    def _decide(self, item: Item, attempts: Sequence[tuple[int, Any, str]]) -> None:
        judged = self.run(item, [("reward", (state, answer)) for _, state, answer in attempts])
        graded = [
            (level, found.value)
            for (level, _, _), found in zip(attempts, judged, strict=True)
            if found.status == "ok"
        ]
        by_level = {level: [right for of, right in graded if of == level] for level in item.levels}
        counts = [LevelCount(level, sum(found), len(found)) for level, found in by_level.items()]
        rule = self.settings.calibration
        least = self.settings.min_graded_share * rule.attempts_per_level
        if min(count.num_attempts for count in counts) < least:
            item.stop("calibration", "too few attempts", f"graded by level: {counts}")
            return
        found = measures.calibrate(counts, rule)
        item.calibration = dataclasses.asdict(found) | {
            "counts": [list(count) for count in counts],
            "p_falling": float(f"{found.p_falling:.3g}"),
            "drop": round(found.drop, 4),
            "rate": round(found.rate, 4),
        }
        if found.decision != "kept":
            item.stop("calibration", found.decision, f"solved of tried by level: {counts}")
