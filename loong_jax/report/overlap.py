"""Does generation really overlap training? Pure functions over the events of a stage.

An event is a mapping with `kind`, `start_s` and `end_s` (seconds since the stage began); decode
events also carry `replica` and `version`. The time of a stage is the span from its first event to
its last, so compilation inside it counts as idle time.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

Event = Mapping[str, Any]
Interval = tuple[float, float]

TRAINER_KINDS = ("score", "train", "publish")


class Share(NamedTuple):
    """A part of a whole, in seconds; kept apart so that stages can be added up."""

    part_s: float
    whole_s: float

    @property
    def value(self) -> float:
        return self.part_s / self.whole_s if self.whole_s else float("nan")


def total(shares: Iterable[Share]) -> Share:
    shares = list(shares)
    return Share(sum(s.part_s for s in shares), sum(s.whole_s for s in shares))


def intervals(events: Iterable[Event], *kinds: str) -> list[Interval]:
    """Start and end of the events of the given kinds, or of all that last."""
    return [
        _interval(event)
        for event in events
        if (event["kind"] in kinds if kinds else "start_s" in event)
    ]


def _interval(event: Event) -> Interval:
    return float(event["start_s"]), float(event["end_s"])


def union(spans: Iterable[Interval]) -> list[Interval]:
    """The same points as disjoint intervals in order."""
    merged: list[Interval] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        elif end > start:
            merged.append((start, end))
    return merged


def length(spans: Iterable[Interval]) -> float:
    """Seconds that at least one of the intervals covers."""
    return float(sum(end - start for start, end in union(spans)))


def span(events: Sequence[Event]) -> Interval:
    """The interval from the first event to the end of the last."""
    every = intervals(events)
    if not every:
        return (0.0, 0.0)
    return min(start for start, _ in every), max(end for _, end in every)


def two_versions_decoding(events: Sequence[Event]) -> Share:
    """Time at which blocks of two or more policy versions are being decoded at once."""
    spans_of: dict[int, list[Interval]] = {}
    for event in events:
        if event["kind"] == "decode":
            spans_of.setdefault(event["version"], []).append(_interval(event))
    spans = [one for of_version in spans_of.values() for one in union(of_version)]
    edges = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    decoding = itertools.accumulate(change for _, change in edges)  # versions, from each edge on
    both = [
        (start, end)
        for ((start, _), (end, _)), count in zip(itertools.pairwise(edges), decoding, strict=False)
        if count > 1
    ]
    start, end = span(events)
    return Share(length(both), end - start)


def two_versions_within(events: Sequence[Event], interval_s: float) -> Share:
    """Time in those intervals of `interval_s` in which blocks of two or more versions end.

    The stage is cut into intervals from its first event on; the last one may be shorter.
    """
    start, end = span(events)
    versions: dict[int, set[int]] = {}
    for event in events:
        if event["kind"] == "decode":
            place = min(event["end_s"], end - 1e-9) - start
            versions.setdefault(int(place // interval_s), set()).add(event["version"])
    part = sum(
        min(interval_s, end - start - place * interval_s)
        for place, found in versions.items()
        if len(found) >= 2
    )
    return Share(float(part), end - start)


def training_covered_by_decoding(events: Sequence[Event]) -> Share:
    """Training time covered by decode blocks that end inside the same training step.

    Stricter than asking whether any block ends there: a block that began before the step counts
    from the step's start on, and one that ends after it does not count at all.
    """
    steps = intervals(events, "train")
    blocks = intervals(events, "decode")
    part = sum(
        length((max(begin, start), done) for begin, done in blocks if start <= done <= end)
        for start, end in steps
    )
    return Share(float(part), float(sum(end - start for start, end in steps)))


def training_steps_with_decoding(events: Sequence[Event]) -> Share:
    """Training time in steps during which at least one decode block ends."""
    steps = intervals(events, "train")
    ends = [end for _, end in intervals(events, "decode")]
    part = sum(end - start for start, end in steps if any(start <= e <= end for e in ends))
    return Share(float(part), float(sum(end - start for start, end in steps)))


def stale_share(histogram: Mapping[str, int]) -> float:
    """Share of trained samples at staleness >= 1; NaN without samples."""
    whole = sum(histogram.values())
    return 1 - histogram.get("0", 0) / whole if whole else float("nan")


def idle(events: Sequence[Event]) -> dict[str, Share]:
    """Idle time of the trainer, of each replica and of the verifiers, over the stage's time.

    The trainer is busy while it scores, trains or publishes; the verifiers while any answer is
    with them.
    """
    start, end = span(events)
    lanes = {"trainer": intervals(events, *TRAINER_KINDS), "verifiers": intervals(events, "verify")}
    for event in events:
        if event["kind"] == "decode":
            lanes.setdefault(f"replica {event['replica']}", []).append(_interval(event))
    whole = end - start
    return {name: Share(whole - length(spans), whole) for name, spans in sorted(lanes.items())}


def describe(
    events_of: Mapping[str, Sequence[Event]], staleness: Mapping[str, int]
) -> dict[str, Any]:
    """All overlap figures of the RL stages of a run, as shares; seconds are added over stages."""

    def over(measure) -> float:
        return total(measure(events) for events in events_of.values()).value

    idle_of: dict[str, list[Share]] = {}
    for events in events_of.values():
        for lane, share in idle(events).items():
            idle_of.setdefault(lane, []).append(share)
    return {
        "two_versions_decoding": over(two_versions_decoding),
        "two_versions_within_1s": over(lambda events: two_versions_within(events, 1.0)),
        "training_covered_by_decoding": over(training_covered_by_decoding),
        "training_steps_with_decoding": over(training_steps_with_decoding),
        "trained_at_staleness_1_or_more": stale_share(staleness),
        "idle": {lane: total(shares).value for lane, shares in idle_of.items()},
        "rl_s": sum(span(events)[1] - span(events)[0] for events in events_of.values()),
    }
