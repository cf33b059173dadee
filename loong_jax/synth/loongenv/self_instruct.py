"""Strategy self-instruct: three seeds and one earlier question of ours, asked for a new one.

The program is written apart from it, by another role that sees the question alone.
"""

import dataclasses
import json
from collections.abc import Sequence

from loong_jax.synth.loongenv.candidates import Candidate
from loong_jax.synth.loongenv.workshop import QUESTION, Workshop


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelfInstruct:
    name: str = "self_instruct"

    def propose(self, workshop: Workshop, ids: Sequence[str]) -> list[Candidate]:
        asked, shown = {}, {}
        for name in ids:
            rng = workshop.rng(name)
            seeds = workshop.shown(rng)
            questions = [seed.question for seed in seeds]
            if workshop.earlier:
                questions.append(rng.choice(workshop.earlier))
            shown[name] = tuple(seed.id for seed in seeds)
            asked[name] = {
                "domain": workshop.domain,
                "packages": workshop.packages_text,
                "examples": json.dumps(questions, indent=1, ensure_ascii=False),
            }
        answers = workshop.asker.ask("question", asked, QUESTION, prompt=self.name)
        found = []
        for name in ids:
            answer = answers[name]
            candidate = Candidate(
                id=name, domain=workshop.domain, strategy=self.name, calls=answer.calls,
                seeds=shown[name],
            )  # fmt: skip
            if answer.failure:
                found.append(candidate.ended("author_failed", answer.failure))
            else:
                question = answer.parsed["question"].strip()
                found.append(dataclasses.replace(candidate, question=question))
        return found
