"""The form of a recipe's responses before its verifiers: what is malformed reaches none of them."""

from collections.abc import Iterable, Sequence

from loong_jax.data import response
from loong_jax.data.response import ResponseForm
from loong_jax.verifiers import verdict
from loong_jax.verifiers.pool import VerdictFuture, VerifierPool, VerifierRequest
from loong_jax.verifiers.verdict import Verdict


class FormedPool:
    """A pool whose requests are responses of one form.

    One that breaks the form is wrong with reason `format`, whatever it says. Of the others the
    verifiers see the answer, in tags, so that each reads it alike in every form.
    """

    def __init__(self, pool: VerifierPool, form: ResponseForm):
        self.pool, self.form = pool, form

    def submit(self, requests: Sequence[VerifierRequest]) -> list[VerdictFuture]:
        found = [response.read(request.response_text, self.form) for request in requests]
        asked = [
            VerifierRequest(
                key=request.key,
                problem=request.problem,
                response_text=response.render(_SHOWN, "", one.answer),
                deadline_s=request.deadline_s,
            )
            for request, one in zip(requests, found, strict=True)
            if one.is_well_formed
        ]
        answers = iter(self.pool.submit(asked))
        return [next(answers) if one.is_well_formed else _resolved(_MALFORMED) for one in found]

    def cancel(self, keys: Iterable[str]) -> int:
        return self.pool.cancel(keys)

    def counts(self) -> dict[str, int]:
        """Of the pool: what is malformed is not among them."""
        return self.pool.counts()

    def pids(self) -> list[int]:
        return self.pool.pids()

    def close(self, timeout_s: float = 10.0) -> None:
        self.pool.close(timeout_s)


_SHOWN = response.FORMS["tagged"]
_MALFORMED = verdict.wrong("format", "the response is not of the recipe's form")


def _resolved(judged: Verdict) -> VerdictFuture:
    future: VerdictFuture = VerdictFuture()
    future.set_result(judged)
    return future
