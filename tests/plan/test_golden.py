"""Plans of small programs against those kept beside this file.

A difference is a change of what a pod would run: look at it, then write the files anew with
LOONG_WRITE_GOLDEN=1. They are keyed by versions, since each compiler schedules in its own way.
"""

import json
import os
from pathlib import Path

import pytest

from loong_jax.plan import compiled, figures, plan
from tests.plan.asking import asked, skip_without_pair
from tests.sweeps import thinned

GOLDEN = Path(__file__).parent / "golden"
PLANS = {
    "tiny-train-v5e": "tiny --topology v5e:2x2 --mesh fsdp=2,expert=2 --length 128",
    "tiny-prefill-v6e": "tiny --topology v6e:2x2 --mode prefill --mesh expert=4 --length 256",
    "tiny-decode-tpu7x": "tiny --topology tpu7x:2x2x1 --mode decode --mesh expert=8 --length 256",
    "tiny-drafting-v6e": "tiny --topology v6e:2x2 --mode decode --mesh expert=2,tensor=2 "
    "--length 256 --exchange ragged --num-drafts 1 --num-steps 2",
    "dense-train-v5e": "tiny-dense --topology v5e:2x2 --mesh fsdp=2,tensor=2 --length 128",
    "dense-decode-v6e": "tiny-dense --topology v6e:2x2 --mode decode --mesh fsdp=2,tensor=2 "
    "--tensor-cuts heads --length 256",
}


def summary(made: plan.Plan) -> dict:
    """What a reviewer would want to see change: where arrays lie, what moves, what it takes."""
    value = figures.to_json(made)
    moved: dict[str, float] = {}
    for row in value["collectives"]:
        when = "asynchronous" if row["is_asynchronous"] else "synchronous"
        name = f"{row['kind']} over {'+'.join(row['axes'])}, {when}"
        moved[name] = moved.get(name, 0.0) + row["sent_mb"] * row["trips"]
    return {
        "hbm_per_device_gb": value["hbm_per_device_gb"],
        "sent_mb": {name: round(size, 6) for name, size in sorted(moved.items()) if size},
        "shardings": value["shardings"],
    }


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("name", thinned(PLANS, 2, 4))
def test_plan_is_the_one_on_record(name):
    skip_without_pair()
    found = summary(plan.make(asked(PLANS[name]), timeout_s=1400))
    versions = compiled.versions()
    pair = f"jax {versions['jax']}, libtpu {versions['libtpu']}"
    path = GOLDEN / f"{name}.json"
    record = json.loads(path.read_text()) if path.exists() else {}
    if os.environ.get("LOONG_WRITE_GOLDEN"):
        path.write_text(json.dumps(record | {pair: found}, indent=1, sort_keys=True) + "\n")
        return
    if pair not in record:
        pytest.skip(f"{path.name} has {', '.join(record) or 'nothing'} and not {pair}")
    expected = record[pair]
    assert found["shardings"] == expected["shardings"]
    assert found["sent_mb"] == pytest.approx(expected["sent_mb"])
    memory = expected["hbm_per_device_gb"]
    assert found["hbm_per_device_gb"] == pytest.approx(memory, rel=0.02)
