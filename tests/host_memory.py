"""What loading takes of a host's memory, measured in a process of its own.

Devices of a mesh are made of the CPU, so their memory is the host's: what a load takes at its peak
is the arrays and whatever else it holds beside them.
"""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

SLACK = 24e6  # bytes, of what is compiled and read on the way
ENV = {
    "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
    "MALLOC_MMAP_THRESHOLD_": "262144",  # what is freed goes back at once, so it does not count
}
_CHILD = """
import json, sys
import jax

{load}

for directory in sys.argv[1:]:  # a small one first, so that all is imported
    print("begins", flush=True)
    sys.stdin.readline()
    arrays = jax.block_until_ready(jax.tree.leaves(load(directory)))
print(json.dumps([a.nbytes for a in arrays]), flush=True)
"""


def resident_bytes(pid: int) -> int:
    """Without the pages of mapped files, which the kernel takes back as it likes."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return 1024 * int(found[1]) if found else 0


def of_load(load: str, small: str, large: str) -> tuple[int, list[int]]:
    """The bytes that a process of eight devices takes at most for loading `large` after `small`,
    and those of each array there. `load` is the source of a function of that name.
    """
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD.format(load=load), small, large],
        env=os.environ | ENV,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    before = peak = 0
    for _ in range(2):
        assert child.stdout.readline() == "begins\n"
        before = peak = resident_bytes(child.pid)
        child.stdin.write("\n")
        child.stdin.flush()
    while child.poll() is None:
        peak = max(peak, resident_bytes(child.pid))
        time.sleep(0.001)
    return peak - before, json.loads(child.stdout.readline())
