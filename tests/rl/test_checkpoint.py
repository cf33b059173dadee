import errno

import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest

from loong_jax.errors import CheckpointError, DiskFullError
from loong_jax.rl import checkpoint


def arrays(step):
    return {
        "weights": {
            "a": np.full((3, 4), step, np.float32),
            0: {"b": np.arange(step, dtype=np.int8)},
        },
        "step": np.int32(step),
    }


def save_some(directory, steps=(1, 2, 3), keep=2):
    for step in steps:
        checkpoint.save(directory, step, arrays(step), {"seed": step}, keep=keep)


def damage(directory, step):
    """Flips bytes in the middle of every data file of a checkpoint."""
    for file in (directory / str(step) / "arrays" / "d").iterdir():
        content = bytearray(file.read_bytes())
        for place in range(len(content) // 4, len(content), 7):
            content[place] ^= 0xFF
        file.write_bytes(content)


def test_round_trip_and_how_many_are_kept(tmp_path):
    save_some(tmp_path)
    assert checkpoint.steps(tmp_path) == [2, 3]
    found = checkpoint.restore(tmp_path)
    assert (found.step, found.metadata, found.skipped) == (3, {"seed": 3}, ())
    assert list(found.arrays["weights"]) == [0, "a"] or set(found.arrays["weights"]) == {0, "a"}
    np.testing.assert_array_equal(found.arrays["weights"]["a"], arrays(3)["weights"]["a"])
    np.testing.assert_array_equal(found.arrays["weights"][0]["b"], [0, 1, 2])
    assert found.arrays["step"].dtype == np.int32
    assert checkpoint.restore(tmp_path, 2).step == 2


def test_saving_a_step_again_replaces_it(tmp_path):
    save_some(tmp_path, (5,))
    checkpoint.save(tmp_path, 5, arrays(6))
    np.testing.assert_array_equal(checkpoint.restore(tmp_path).arrays["step"], 6)


def test_a_damaged_checkpoint_is_named_and_passed_over_only_when_asked(tmp_path):
    save_some(tmp_path)
    damage(tmp_path, 3)
    with pytest.raises(CheckpointError, match=r"damaged.*checkpoint 3.*Delete"):
        checkpoint.restore(tmp_path)
    found = checkpoint.restore(tmp_path, fall_back=True)
    assert found.step == 2
    assert "checkpoint 3" in found.skipped[0]
    damage(tmp_path, 2)
    with pytest.raises(CheckpointError, match="checkpoint 2"):
        checkpoint.restore(tmp_path, fall_back=True)


def test_a_checkpoint_of_another_format_is_not_called_damaged(tmp_path, monkeypatch):
    save_some(tmp_path, (1,))
    monkeypatch.setattr(checkpoint, "FORMAT_VERSION", 2)
    save_some(tmp_path, (2,))
    monkeypatch.undo()
    for fall_back in (False, True):
        with pytest.raises(CheckpointError, match=r"2 has format_version=2, not 1\. Use the") as e:
            checkpoint.restore(tmp_path, fall_back=fall_back)
        assert "elete" not in str(e.value)


def test_damage_that_decodes_is_found_by_its_checksum(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "_checksum", lambda array: "wrong")
    save_some(tmp_path, (1,))
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="checksums"):
        checkpoint.restore(tmp_path)


def test_missing_checkpoints_are_named(tmp_path):
    with pytest.raises(CheckpointError, match="none"):
        checkpoint.restore(tmp_path / "nowhere")
    save_some(tmp_path)
    with pytest.raises(CheckpointError, match=r"checkpoint 9; finished there: \[2, 3\]"):
        checkpoint.restore(tmp_path, 9)


def test_an_unfinished_checkpoint_does_not_count(tmp_path):
    save_some(tmp_path, (1,))
    (tmp_path / "2.orbax-checkpoint-tmp-7").mkdir()
    assert checkpoint.restore(tmp_path).step == 1


def test_a_full_disk_costs_no_earlier_checkpoint(tmp_path, monkeypatch):
    save_some(tmp_path, (1, 2))

    def no_room(manager, step, **_):
        (tmp_path / f"{step}.orbax-checkpoint-tmp").mkdir()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ocp.CheckpointManager, "save", no_room)
    with pytest.raises(DiskFullError, match=r"no room to write \S+/3: \d+ bytes are free"):
        save_some(tmp_path, (3,))
    monkeypatch.undo()
    assert checkpoint.steps(tmp_path) == [1, 2]
    assert not list(tmp_path.glob("*tmp*"))
    save_some(tmp_path, (3,))
    assert checkpoint.restore(tmp_path).step == 3


def test_where_all_are_damaged_the_remedy_is_to_begin_anew(tmp_path):
    save_some(tmp_path)
    for step in (2, 3):
        damage(tmp_path, step)
    with pytest.raises(CheckpointError, match=r"No other is left: delete .* to begin anew"):
        checkpoint.restore(tmp_path, fall_back=True)


def test_keys_that_would_not_come_back_are_refused(tmp_path):
    for key in ("a/b", "#1", "", 1.5):
        with pytest.raises(ValueError, match="Rename"):
            checkpoint.save(tmp_path, 1, {key: np.zeros(1)})


def test_optimizer_states_become_plain_and_come_back():
    weights = {"a": np.ones((2, 2), np.float32), "b": {"bias": np.ones(2, np.float32)}}
    state = optax.adamw(1e-3).init(weights)
    plain = checkpoint.to_plain(state)
    assert all(isinstance(name, str) and isinstance(a, np.ndarray) for name, a in plain.items())
    again = checkpoint.from_plain(state, plain)
    assert type(again) is type(state)
    with pytest.raises(CheckpointError, match="disagree"):
        checkpoint.from_plain(state, dict(list(plain.items())[1:]))
    name = next(n for n in plain if plain[n].ndim == 2)
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        checkpoint.from_plain(state, plain | {name: np.zeros(5, np.float32)})
