"""Which environments are trained on, in which order, so that arms nest and count what differs."""

import hashlib
from collections.abc import Mapping, Sequence

from loong_jax.data.packages import Package
from loong_jax.errors import ConfigError
from loong_jax.synth.resyn import diversity


def distinct(found: Sequence[Package], questions: Mapping[str, Sequence[str]]) -> list[Package]:
    """Those that differ from all chosen before in verifier code *and* in question template.

    `questions` has some of one level of each package, by its name. Both are normalised: see
    `synth.resyn.diversity`.
    """
    verifiers: set[str] = set()
    templates: set[str] = set()
    chosen = []
    for package in found:
        form = diversity.form_of(package.module.source, questions[package.name])
        verifier, template = form.digests
        if verifier not in verifiers and template not in templates:
            chosen.append(package)
            verifiers.add(verifier)
            templates.add(template)
    return chosen


def shuffled(found: Sequence[Package]) -> list[Package]:
    """An order that says nothing: by a hash of the name."""
    return sorted(found, key=lambda p: hashlib.blake2b(p.name.encode()).hexdigest())


def fits(package: Package, num_levels: int, max_chars: int) -> bool:
    """Whether levels 1 to `num_levels` are there, with questions of at most `max_chars`."""
    longest = package.about.get("prompt_chars")
    known = dict(zip(package.levels, longest or [0] * len(package.levels), strict=True))
    wanted = range(1, num_levels + 1)
    return all(known.get(level, max_chars + 1) <= max_chars for level in wanted)


def require(chosen: Sequence[Package], count: int, where: str) -> list[Package]:
    """The first `count`; ConfigError where there are fewer."""
    if len(chosen) < count:
        raise ConfigError(
            f"{where} holds {len(chosen)} environments that are short enough and differ from each "
            f"other in verifier and question, and {count} were asked for. Lower "
            "environments or unseen of the part, or name another --packages."
        )
    return list(chosen[:count])
