import errno
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from orbax.checkpoint._src.serialization import tensorstore_utils

from loong_jax import checksums, sharding
from loong_jax.errors import CheckpointError, DiskFullError
from loong_jax.rl import checkpoint
from tests import host_memory

MESH = sharding.make_mesh(fsdp=4, tensor=2)
CUT = NamedSharding(MESH, PartitionSpec("fsdp", "tensor"))
EVERYWHERE = NamedSharding(MESH, PartitionSpec())


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
    remedy = r"checkpoint 2.*No other is left: delete .* to begin anew"
    with pytest.raises(CheckpointError, match=remedy):
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
    of_true = checksums.labelled
    wrong = lambda a: of_true(a).replace(":", ":f") if a.ndim == 2 else of_true(a)  # noqa: E731
    monkeypatch.setattr(checksums, "labelled", wrong)
    save_some(tmp_path, (1,))
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="checksums differ for weights/a"):
        checkpoint.restore(tmp_path)


def test_a_step_before_a_damaged_one_is_saved_all_the_same(tmp_path):
    save_some(tmp_path, (2, 6))
    damage(tmp_path, 6)
    assert checkpoint.restore(tmp_path, fall_back=True).step == 2
    save_some(tmp_path, (4,), keep=3)
    assert checkpoint.steps(tmp_path) == [2, 4, 6]
    assert checkpoint.restore(tmp_path, fall_back=True).step == 4


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


# --- on a mesh


def cut_tree():
    return {
        "weight": jax.device_put(np.arange(32.0, dtype=np.float32).reshape(8, 4), CUT),
        "small": jnp.arange(6, dtype=jnp.bfloat16),
        "count": jnp.arange(3, dtype=jnp.int8) - 1,
        "mask": jnp.array([True, False]),
        "step": (np.int32(7), jax.device_put(np.float32(0.5), EVERYWHERE)),
    }


def like(tree, **changes):
    def template(array):
        place = array.sharding if isinstance(array, jax.Array) else EVERYWHERE
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=place)

    return jax.tree.map(template, tree) | changes


def save_tree(directory, step, tree):
    checkpoint.save(directory, step, checkpoint.by_path(tree), {"config": {"step": step}}, keep=2)


def test_trees_come_back_as_they_were_cut(tmp_path):
    tree, directory = cut_tree(), str(tmp_path / "c")
    assert checkpoint.steps(directory) == []
    for step in (1, 2, 3):
        save_tree(directory, step, tree)
    assert checkpoint.steps(directory) == [2, 3]
    stored = checkpoint.Stored(directory, 2)
    assert stored.metadata == {"config": {"step": 2}}
    found = stored.restore(like(tree))
    assert found["weight"].sharding == CUT
    jax.tree.map(np.testing.assert_array_equal, found, tree)
    other = jax.ShapeDtypeStruct((4, 4), np.float32, sharding=EVERYWHERE)
    for changes in (dict(other=other), dict(weight=other)):
        with pytest.raises(CheckpointError, match="Resume with the configuration"):
            stored.restore(like(tree, **changes))


@pytest.mark.parametrize("written", [CUT, EVERYWHERE, None], ids=["cut", "copied", "whole"])
@pytest.mark.parametrize("wanted", [CUT, EVERYWHERE, None], ids=["cut", "copied", "numpy"])
def test_arrays_go_from_any_place_to_any_other(written, wanted, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "READ_BYTES", 100)  # smaller than some and larger than others
    arrays = {f"a{rows}": np.arange(rows * 6.0).reshape(rows, 6) for rows in (4, 16, 4, 8)}
    checkpoint.save(
        tmp_path,
        1,
        {n: a if written is None else jax.device_put(a, written) for n, a in arrays.items()},
    )
    found = checkpoint.restore(tmp_path, shardings=lambda name: wanted).arrays
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        assert getattr(found[name], "sharding", None) == wanted


@pytest.mark.parametrize("file_bytes", [2**31, 300], ids=["one", "many"])
@pytest.mark.parametrize("place", [CUT, None], ids=["cut", "numpy"])
def test_parts_are_read_whatever_the_chunks(place, file_bytes, tmp_path, monkeypatch):
    """Orbax cuts what is larger than one of its files, and not always in the order of bytes."""
    monkeypatch.setattr(tensorstore_utils, "_DEFAULT_OCDBT_TARGET_DATA_FILE_SIZE", file_bytes)
    monkeypatch.setattr(checkpoint, "READ_BYTES", 100)
    shapes = [(4, 6, 5), (16, 22), (4, 2, 31), (256, 2), (4, 602), (4, 2, 3, 5, 7)]
    draw = np.random.default_rng(0).integers
    arrays = {f"a{i}": draw(0, 2**15, shape, np.int16) for i, shape in enumerate(shapes)}
    checkpoint.save(tmp_path, 1, arrays)
    chunks = [n.storage.chunk_shape for n in checkpoint.Stored(tmp_path, 1).shapes.values()]
    assert (chunks == shapes) == (file_bytes == 2**31)
    found = checkpoint.restore(tmp_path, shardings=lambda name: place).arrays
    jax.tree.map(np.testing.assert_array_equal, found, arrays)


@pytest.mark.parametrize("written", [CUT, None], ids=["cut", "whole"])
@pytest.mark.parametrize("place", [CUT, None], ids=["cut", "numpy"])
def test_no_damaged_byte_is_taken_for_a_value(written, place, tmp_path, monkeypatch):
    """Bytes of the files in turn: the checkpoint is refused, or comes back as it was."""
    monkeypatch.setattr(checkpoint, "READ_BYTES", 4000)
    values = np.random.default_rng(0).standard_normal
    arrays = {"large": values((64, 64), np.float32), "small": values((8, 4), np.float32)}
    metadata = {"cursor": 12345, "names": ["a", "b"]}
    checkpoint.save(tmp_path, 1, jax.device_put(arrays, written) if written else arrays, metadata)
    files = [file for file in (tmp_path / "1").rglob("*") if file.is_file()]
    num_refused = 0
    for file in files:
        content = file.read_bytes()
        for at in {0, len(content) - 1, *range(0, len(content), len(content) // 6 + 1)}:
            file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
            try:
                found = checkpoint.restore(tmp_path, shardings=lambda name: place)
            except CheckpointError:
                num_refused += 1
            else:
                jax.tree.map(np.testing.assert_array_equal, found.arrays, arrays)
                assert found.metadata == metadata
        file.write_bytes(content)
    assert num_refused > len(files)


@pytest.mark.parametrize("place", [CUT, None], ids=["cut", "numpy"])
def test_large_arrays_that_were_compressed_are_read(place, tmp_path, monkeypatch):
    """Those of the first versions are."""
    handler = ocp.PyTreeCheckpointHandler
    monkeypatch.setattr(ocp, "PyTreeCheckpointHandler", lambda **_: handler(use_compression=True))
    monkeypatch.setattr(checkpoint, "READ_BYTES", 100)
    array = np.arange(256.0, dtype=np.float32).reshape(16, 16)
    checkpoint.save(tmp_path, 1, {"a": array})
    monkeypatch.setattr(ocp, "PyTreeCheckpointHandler", handler)
    assert not checkpoint.Stored(tmp_path, 1)._parts.is_plain("a")
    found = checkpoint.restore(tmp_path, shardings=lambda name: place).arrays
    np.testing.assert_array_equal(found["a"], array)


def test_sums_of_bits_do_not_depend_on_where_arrays_lie():
    tree = checkpoint.by_path(cut_tree())
    for name, array in tree.items():
        host = np.asarray(array)
        kinds = {1: np.uint8, 2: np.uint16, 4: np.uint32}
        words = np.atleast_1d(host).view(kinds[host.dtype.itemsize])
        expected = int(words.astype(np.uint64).sum() % 2**32)
        assert checksums.of_array(array) == checksums.of_array(host) == expected, name
        mesh = MESH if getattr(array, "sharding", None) in (CUT, EVERYWHERE) else None
        assert int(sharding.launch(mesh, checksums.sum_of_bits, array)) == expected, name


def rewrite_record(directory, **changes):
    """As an earlier version wrote it: without a checksum of the record itself."""
    path = directory / "1" / "record" / "metadata"
    record = json.loads(path.read_text()) | changes
    record.pop("checksum", None)
    path.write_text(json.dumps(record))


def test_checkpoints_of_pods_from_before_are_read(tmp_path):
    """Their sums had no label, and those of the first pods were not there."""
    tree = cut_tree()
    arrays = checkpoint.by_path(tree)
    save_tree(tmp_path, 1, tree)
    sums = {name: checksums.of_array(array) for name, array in arrays.items()}
    for there in (sums, {}):
        rewrite_record(tmp_path, checksums=there)
        found = checkpoint.Stored(tmp_path, 1).restore(like(tree))
        jax.tree.map(np.testing.assert_array_equal, found, tree)
    rewrite_record(tmp_path, checksums=sums | {"small": sums["small"] + 1})
    with pytest.raises(CheckpointError, match=r"1 is damaged: .* for small.*Delete that"):
        checkpoint.Stored(tmp_path, 1).restore(like(tree))


@pytest.mark.parametrize("damaged", ["arrays/d", "arrays", "record"])
def test_checkpoints_without_their_files_are_named(tmp_path, damaged):
    tree = {"a": jax.device_put(np.arange(4096.0).reshape(64, 64), CUT)}
    save_tree(tmp_path, 1, tree)
    for file in (tmp_path / "1" / damaged).iterdir():
        if file.is_file():
            file.write_bytes(file.read_bytes()[:7])
    with pytest.raises(CheckpointError, match=r"1 is damaged: .*Delete that checkpoint"):
        checkpoint.Stored(tmp_path, 1).restore(like(tree))


LOAD = """
from jax.sharding import NamedSharding, PartitionSpec
from loong_jax.rl import checkpoint
from loong_jax.sharding import make_mesh

def load(directory):
    cut = NamedSharding(make_mesh(fsdp=4, tensor=2), PartitionSpec("fsdp", "tensor"))
    return checkpoint.restore(directory, shardings=lambda name: {place}).arrays
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("written", [CUT, None], ids=["cut", "whole"])
@pytest.mark.parametrize("place", ["cut", "None"])
def test_a_load_holds_its_arrays_and_a_part_of_one(written, place, tmp_path):
    for name, rows in (("small", 1024), ("large", 8192)):
        draw = np.random.default_rng(0).standard_normal
        arrays = {f"a{i}": draw((rows, 4096), np.float32) for i in range(2)}
        arrays |= {f"b{i}": draw((64, 64), np.float32) for i in range(40)}
        checkpoint.save(tmp_path / name, 1, jax.device_put(arrays, written) if written else arrays)
    load = LOAD.format(place=place)
    taken, sizes = host_memory.of_load(load, str(tmp_path / "small"), str(tmp_path / "large"))
    assert sum(sizes) > 260e6
    beyond = taken - sum(sizes)
    assert beyond < max(sizes) / 8 + host_memory.SLACK, f"{beyond / 1e6:.0f} MB beyond the arrays"
