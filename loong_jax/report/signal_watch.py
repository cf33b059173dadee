"""Groups without a signal: said in plain words while a run still waits for one that teaches."""

import collections
import time
from collections.abc import Callable, Sequence

from loong_jax.rollout.records import Group

FIRST_S, RARER = 45.0, 4  # of silence before the first warning; how much longer until the next one
LEAST_GROUPS, MANY_GROUPS, MANY_S = 4, 64, 10.0  # so many groups say enough after fewer seconds
_SHOWN = 160  # characters of a text


def has_signal(rewards: Sequence[float | None]) -> bool:
    """True where valid rewards differ: advantages are 0 otherwise."""
    return len({reward for reward in rewards if reward is not None}) > 1


class SignalWatch:
    """Gives a warning where one group after the other has equal rewards.

    The first comes within a minute, the next ones ever more rarely. A group that teaches begins the
    count anew.
    """

    def __init__(self, warn: Callable[[str], None], clock: Callable[[], float] = time.monotonic):
        self._warn, self._clock = warn, clock
        self._wait_s = FIRST_S
        self._silent: list[Group] = []
        self._since_s = 0.0

    def judged(self, group: Group) -> None:
        """Call it with every group that has its rewards."""
        now = self._clock()
        if has_signal([rollout.reward for rollout in group.rollouts]):
            self._silent = []
            return
        if not self._silent:
            self._since_s = now
        self._silent.append(group)
        count, waited_s = len(self._silent), now - self._since_s
        is_first = self._wait_s == FIRST_S
        if (waited_s >= self._wait_s and count >= LEAST_GROUPS) or (
            is_first and waited_s >= MANY_S and count >= MANY_GROUPS
        ):
            self._wait_s = RARER * max(waited_s, self._wait_s)
            self._warn(describe(self._silent))


def describe(groups: Sequence[Group]) -> str:
    """A summary of the answers in groups without a signal, and a remedy."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    verdicts = [r.verdict for r in rollouts if r.verdict and r.finish_reason != "length"]
    outcomes = collections.Counter(verdict.outcome for verdict in verdicts)
    graded = outcomes["correct"] + outcomes["wrong"]
    reasons = collections.Counter(verdict.reason for verdict in verdicts)
    reasons.pop("", None)
    cut = sum(r.finish_reason == "length" for r in rollouts)
    said = (
        f"none of {len(groups)} groups in a row can teach: all rewarded answers to a problem got "
        f"the same reward. {outcomes['correct']} of {graded} answers that ended were right"
    )
    if outcomes["ungradable"]:
        said += f", {outcomes['ungradable']} more could not be graded"
    if reasons:
        reason, count = reasons.most_common(1)[0]
        said += f"; the most frequent reason is {reason!r} ({count})"
    said += f"; {cut} of all {len(rollouts)} were cut off at the limit of tokens, which no verdict "
    said += "makes up for. "
    if graded and outcomes["correct"] >= 0.9 * graded:
        return said + "Pose harder problems; the run ends by itself where all are solved."
    if cut >= 0.5 * len(rollouts):
        limit = rollouts[-1].sampling.max_new_tokens
        said += f"Raise sampling.max_new_tokens={limit}, or ask for shorter answers."
    elif outcomes["ungradable"] > graded:
        said += "See what the verifier misses: `loong verify` judges a file of answers."
    else:
        said += (
            "Pose easier problems, draw larger groups (group_size), show the form of an answer in "
            "the prompt, or fine-tune before (`loong train sft`)."
        )
    last = groups[-1]
    return (
        f"{said} For example, {_short(last.ticket.problem.prompt)} was answered with "
        f"{_short(last.rollouts[-1].text)}."
    )


def _short(text: str) -> str:
    """In quotes, the end of it where it is long: a question and an answer stand there."""
    return repr(text if len(text) <= _SHOWN else "…" + text[-_SHOWN:])
