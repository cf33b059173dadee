"""Sweeps of which a landing runs a part, and a release all (`make test-release`)."""

from collections.abc import Iterable

import pytest


def thinned(cases: Iterable, *places: int) -> list:
    """Parameters of a sweep: all but the cases at `places` carry the mark `release`.

    A tuple holds the arguments of one case.
    """
    cases = list(cases)
    kept = {range(len(cases))[place] for place in places}  # one that is not there is an error
    return [case if place in kept else _at_release(case) for place, case in enumerate(cases)]


def _at_release(case):
    if isinstance(case, type(pytest.param())):
        return pytest.param(*case.values, marks=[*case.marks, pytest.mark.release], id=case.id)
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.release)
