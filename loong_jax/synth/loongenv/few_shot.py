"""Strategy few-shot: three seeds with program and answer, asked for one more such triple.

The answer that comes with it is thrown away; executing the program gives it.
"""

import dataclasses
import json
from collections.abc import Sequence

from loong_jax.synth.authors import structured
from loong_jax.synth.loongenv.candidates import Candidate
from loong_jax.synth.loongenv.workshop import Workshop

TRIPLE = structured.fields(question=str, code=str, answer=str)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FewShot:
    name: str = "few_shot"

    def propose(self, workshop: Workshop, ids: Sequence[str]) -> list[Candidate]:
        shown = {name: workshop.shown(workshop.rng(name)) for name in ids}
        asked = {
            name: {
                "domain": workshop.domain,
                "packages": workshop.packages_text,
                "examples": json.dumps(
                    [{"question": s.question, "code": s.code, "answer": s.gold} for s in seeds],
                    indent=1, ensure_ascii=False,
                ),
            }
            for name, seeds in shown.items()
        }  # fmt: skip
        answers = workshop.asker.ask("question", asked, TRIPLE, prompt=self.name)
        found = []
        for name in ids:
            answer = answers[name]
            candidate = Candidate(
                id=name, domain=workshop.domain, strategy=self.name, calls=answer.calls,
                seeds=tuple(seed.id for seed in shown[name]),
            )  # fmt: skip
            if answer.failure:
                found.append(candidate.ended("author_failed", answer.failure))
                continue
            said = answer.parsed
            found.append(
                dataclasses.replace(
                    candidate, question=said["question"].strip(), code=said["code"],
                    stated=said["answer"],
                )
            )  # fmt: skip
        return found
