"""ReSyn from keywords to environment packages (arXiv:2602.20117), stage by stage over all ideas.

Replies are the only outside input, and an author keeps them on disk before anybody sees them: a
run that was killed is the same run again, without a second payment. Equal replies give equal files.
"""

import contextlib
import dataclasses
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from loong_jax.data import json_files, packages
from loong_jax.data.packages import Package
from loong_jax.environments.modules import Module
from loong_jax.synth.authors.author import Author
from loong_jax.synth.authors.store import Reply, Request
from loong_jax.synth.resyn import calibrate, diversity, questions
from loong_jax.synth.resyn import keywords as keywords_room
from loong_jax.synth.resyn.diversity import Form
from loong_jax.synth.resyn.gates import Examiner
from loong_jax.synth.resyn.items import KEPT, Item, ResynSettings, count

NUM_EXAMPLES = 2  # of each level, for the judge
SECOND_TRY = 10_000  # added to the seed of a question that is asked again
Progress = Callable[[str, int], None]


def run(
    author: Author,
    keywords: Sequence[str],
    out: Path,
    settings: ResynSettings,
    evaluation_sets: Mapping[str, Sequence[str]] | None = None,
    on_stage: Progress = lambda stage, count: None,
) -> dict[str, Any]:
    """Writes packages, items, funnel and report below `out`; returns the report.

    Questions of what is kept are compared with the texts of `evaluation_sets`.
    """
    with contextlib.closing(Examiner(out / "work")) as examiner:
        flow = _Flow(author, examiner, settings)
        on_stage("ideas", len(keywords))
        items = flow.ideas(keywords)
        on_stage("modules", _open(items))
        flow.written([item for item in items if item.is_open], "module")
        on_stage("gates", _open(items))
        flow.examine(items)
        on_stage("judge", _open(items))
        flow.judge(items)
        on_stage("revision", sum(bool(item.complaint) for item in items if item.is_open))
        flow.revise(items)
        on_stage("calibration", _open(items))
        calibrate.run(flow.ask, examiner.runner, [i for i in items if i.is_open], settings)
        on_stage("packages", _open(items))
        author.settle()
        for item in items:
            if item.is_open:
                item.stop(KEPT, KEPT)
                _write_package(author, item, out / "packages", settings)
        kept = [item for item in items if item.end == KEPT]
        _remove_others(out / "packages", kept)
        shared = keywords_room.shared_runs(flow.questions(kept), evaluation_sets or {})
    report = {
        **_report(items, author.name, flow.forms),
        "questions_like_evaluation": shared,
        "is_complete": flow.is_complete,
    }
    json_files.write_jsonl(out / "items.jsonl", map(dataclasses.asdict, items))
    json_files.write_json(out / "report.json", report)
    return report


def _open(items: Sequence[Item]) -> int:
    return sum(item.is_open for item in items)


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

    def ideas(self, keywords: Sequence[str]) -> list[Item]:
        """So many places for each keyword, filled with its ideas or stopped without one."""
        count, seed = self.settings.ideas_per_keyword, self.settings.seed
        replies = self.ask(
            [questions.request("ideas", seed, keyword=w, count=str(count)) for w in keywords]
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
                    title = item.title.lower()[: questions.MAX_TITLE_CHARS]
                    if title in titles:
                        item.stop("idea", "same title")
                    titles.add(title)
        return items

    def written(self, todo: Sequence[Item], name: str) -> None:
        """Each item with the module that the author writes, or stopped without one."""
        seed = self.settings.seed
        replies = self.ask([questions.request(name, seed, item) for item in todo])
        for item, reply in zip(todo, replies, strict=True):
            item.calls.append(reply.transcript.key)
            if reply.text is None:
                item.stop("module", reply.failure or "", reply.transcript.detail)
            else:
                item.source = questions.code_of(reply.text)

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
        draws = [("pose", (item.levels[0], seed)) for seed in range(12)]
        posed = self.examiner.runner.run(Module(item.source), draws)
        form = diversity.form_of(item.source, [one.value[1] for one in posed])
        item.form = form.digests
        for uid, other in self.forms.items():
            same = [what for what, a, b in zip(("verifier", "template"), form.digests,
                                               other.digests, strict=True) if a == b]  # fmt: skip
            if same and uid != item.uid:
                item.stop("novelty", f"same {same[0]}", f"as {uid}")
                return
        self.forms[item.uid] = form

    def judge(self, items: Sequence[Item]) -> None:
        """Runs both stages of the judge; the second sees what passed the first."""
        seed = self.settings.seed
        todo = [item for item in items if item.is_open and not item.complaint]
        asked = [questions.request("judge_module", seed, item) for item in todo]
        self._judged(todo, self._asked_twice(todo, asked), questions.module_refusal)
        todo = [item for item in todo if item.is_open and not item.complaint]
        asked = [
            questions.request("judge_question", seed, item, examples=self._examples(item))
            for item in todo
        ]
        self._judged(todo, self._asked_twice(todo, asked), questions.question_refusal)

    def _asked_twice(self, todo: Sequence[Item], asked: Sequence[Request]) -> list[Reply]:
        """Replies in order; where one fails in its form or on its way, that of a second try."""
        replies = self.ask(asked)
        failed = [number for number, reply in enumerate(replies) if reply.parsed is None]
        again = [dataclasses.replace(asked[n], seed=asked[n].seed + SECOND_TRY) for n in failed]
        for number, reply in zip(failed, self.ask(again), strict=True):
            todo[number].calls.append(replies[number].transcript.key)
            replies[number] = reply
        return replies

    def _judged(
        self, todo: Sequence[Item], replies: Sequence[Reply], refusal: Callable[[Any], str]
    ) -> None:
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
            draws = [("pose", (level, seed)) for level in item.levels for seed in (0, 1)]
            posed = self.examiner.runner.run(Module(item.source), draws)
            found += [one.value[1] for one in posed if one.status == "ok"]
        return found

    def _examples(self, item: Item) -> str:
        """Questions of each level with their references and what is said of both ends of them."""
        draws = [(level, seed) for level in item.levels for seed in range(NUM_EXAMPLES)]
        module, runner = Module(item.source), self.examiner.runner
        posed = runner.run(module, [("pose", draw) for draw in draws])
        golds = runner.run(module, [("reference", (one.value[0],)) for one in posed])
        return "\n\n".join(
            f"Level {level}: {one.value[1]}\nAn answer that is accepted: {gold.value}"
            for (level, _), one, gold in zip(draws, posed, golds, strict=True)
        )


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


def _remove_others(directory: Path, kept: Sequence[Item]) -> None:
    """Packages of an earlier start, with a smaller budget say, that this one did not keep."""
    hashes = {Module(item.source).hash for item in kept}
    for manifest in directory.glob(f"*/{packages.MANIFEST}"):
        if manifest.parent.name.rpartition("-")[2] not in hashes:
            shutil.rmtree(manifest.parent)


def _report(items: Sequence[Item], author: str, forms: dict[str, Form]) -> dict[str, Any]:
    kept = [item for item in items if item.end == KEPT]
    num_calls = len({key for item in items for key in item.calls})
    return {
        "author": author,
        "funnel": count(items),
        "diversity": diversity.measure(
            {item.uid: forms[item.uid] for item in kept}, {item.uid: item.keyword for item in kept}
        ),
        "solve_rates": [
            {
                "item": item.uid, "title": item.title, "counts": item.calibration["counts"],
                "decision": item.calibration["decision"],
            }
            for item in items
            if item.calibration
        ],
        "calls": num_calls,
        "calls_per_kept": round(num_calls / len(kept), 1) if kept else None,
    }  # fmt: skip
