"""Every policy on a real engine and a real trainer, two processes on a core each; minutes a regime.

Example: python -m experiments.real_engine --json real.json --timeline timeline.png
"""

import dataclasses
import json
import sys
from pathlib import Path

import tyro

from experiments.real_engine import real, real_process, regimes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    json: Path | None = None  # all figures
    timeline: Path | None = None  # who decoded which version when, as a PNG
    regimes: tuple[str, ...] = ("generation_bound", "narrow_shapes")  # trainer_bound too


def main(chosen: Options) -> int:
    made = real_process.measure(
        {
            name: dataclasses.replace(regimes.REGIMES[name], cores=real.two_cores())
            for name in chosen.regimes
        },
        say=lambda text: print(text, flush=True),
    )
    print(real_process.table(made.result))
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(made.result, indent=1))
    if chosen.timeline is not None:
        chosen.timeline.write_bytes(made.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options, prog="python -m experiments.real_engine")))
