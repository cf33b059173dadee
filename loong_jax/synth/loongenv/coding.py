"""The code agent: a program for every question that has none."""

import dataclasses
from collections.abc import Sequence

from loong_jax.synth.authors import structured
from loong_jax.synth.loongenv.candidates import Candidate
from loong_jax.synth.loongenv.workshop import Workshop

CODE = structured.fields(code=str)


def coded(candidates: Sequence[Candidate], workshop: Workshop) -> list[Candidate]:
    """Open candidates with a program, which the coder wrote from the question alone."""
    asked = {
        one.id: {
            "question": one.question, "domain": one.domain, "packages": workshop.packages_text
        }
        for one in candidates
        if not one.code
    }  # fmt: skip
    answers = workshop.asker.ask("code", asked, CODE)
    found = []
    for candidate in candidates:
        if candidate.id not in answers:
            found.append(candidate)
            continue
        answer = answers[candidate.id]
        written = candidate.after(answer.calls)
        if answer.failure:
            found.append(written.ended("author_failed", answer.failure))
        else:
            found.append(dataclasses.replace(written, code=answer.parsed["code"]))
    return found
