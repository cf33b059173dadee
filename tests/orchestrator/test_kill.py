"""Real processes, real SIGKILL: `tools/crash_points.py` at each kind of point."""

import pytest

from tests.processes import ROOT, run_python
from tests.sweeps import thinned


@pytest.mark.parametrize(
    ("options", "at_least"),  # tried and killed: a point may be passed less often in another run
    thinned([(["--once"], (18, 16)), ([], (30, 24))], 0),
)
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_kind_of_point(options, at_least):
    done = run_python(ROOT / "tools" / "crash_points.py", *options, timeout=850)
    assert done.returncode == 0, done.stdout + done.stderr
    tried, killed, wrong = map(int, done.stdout.splitlines()[-1].split()[1:4])
    assert tried >= at_least[0]
    assert killed >= at_least[1]
    assert wrong == 0
