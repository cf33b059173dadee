import json

import pytest

from loong_jax.errors import ConfigError, LoongError
from loong_jax.synth.authors import CallStore


def test_records_are_kept_and_a_torn_line_is_not(tmp_path):
    path = tmp_path / "a" / "calls.jsonl"
    with CallStore(path) as store:
        for n in range(3):
            store.put(f"k{n}", {"reply": "ä" * n})
        store.put("k0", {"reply": "another"})
        assert store.get("k0") == {"reply": "", "key": "k0"}, "the first stays"
        assert store.get("none") is None
        with pytest.raises(ConfigError, match="in use"):
            CallStore(path)
    whole = path.read_bytes()
    for cut in range(1, 12):
        path.write_bytes(whole[:-cut])
        with CallStore(path) as store:
            assert len(store) == 2
            store.put("k2", {"reply": "x"})
        with CallStore(path) as store:
            assert [r["reply"] for r in store.records()] == ["", "ä", "x"]


def test_damage_that_no_kill_explains_is_an_error(tmp_path):
    path = tmp_path / "calls.jsonl"
    path.write_text("{}\n" + json.dumps({"key": "a"}) + "\n")
    with pytest.raises(LoongError, match="line 1"):
        CallStore(path)
