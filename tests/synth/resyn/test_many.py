"""ReSyn at the size of a set to train on: forty environments and more, from planted trouble."""

import pytest

from loong_jax.data import json_files, packages
from loong_jax.synth.resyn import command
from loong_jax.synth.resyn.command import ResynOptions
from loong_jax.synth.resyn.ideas import ResynSettings
from loong_jax.synth.resyn.measures import CalibrationRule
from tests.synth.scripted import played, resyn_caught, resyn_defects, resyn_roles

pytestmark = [pytest.mark.bubblewrap, pytest.mark.release, pytest.mark.timeout(900)]
KEYWORDS = """
arithmetic order string sequence modular bits stack number navigation merge graph filter conversion
automaton alphabet time symmetry subset statistics set search repetition permutation equation parity
"""


def test_forty_environments_and_no_loophole(tmp_path):
    assert set(KEYWORDS.split()) <= set(resyn_roles.KEYWORDS)
    words = tmp_path / "words.txt"
    words.write_text("\n".join(KEYWORDS.split()))
    options = ResynOptions(
        out=tmp_path / "run", keywords=words, endpoint=played.URL, model="scripted",
        settings=ResynSettings(calibration=CalibrationRule(attempts_per_level=20)),
    )  # fmt: skip
    with played.played():
        assert command.main(options) == 0
    report = json_files.read_json(options.out / "report.json")
    kept = packages.read_all(options.out / "packages")
    assert len(kept) == report["funnel"]["kept"] >= 40
    assert report["diversity"]["distinct_both"] == len(kept)
    caught = resyn_caught.table(options.out)
    assert resyn_caught.admitted_loopholes(caught) == []
    planted = {name for name in caught if name.startswith(resyn_defects.IN_MODULE)}
    assert len(planted) >= 15
    assert all(caught[name]["caught"] == caught[name]["planted"] for name in planted), caught
