"""Exports that are killed, files that no export of ours wrote, and loading what is half-written."""

import fcntl
import functools
import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from flax import nnx

from loong_jax.errors import CheckpointError
from loong_jax.models import moe
from loong_jax.models.hf import HfCheckpoint, files, unfinished, writing
from tests.doubles import crash_point
from tests.models.moe.published import PUBLISHED, published
from tests.sweeps import thinned

SHARD_BYTES = 40_000  # three files and an index
NUM_MOVED = 5  # with the index and config.json


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Name -> content of an export that was not killed."""
    directory = tmp_path_factory.mktemp("whole")
    save(directory)
    return contents(directory)


def save(directory):
    moe.save_hf(published(), directory, max_shard_bytes=SHARD_BYTES)


def save_of(source, directory, **changes: Any):
    """As `save` where the weights can be told from others: how many files were whole before."""
    model = published()
    _, state = nnx.split(model, graph=False)
    return writing.save_weights_hf(
        model.config,
        nnx.to_pure_dict(state),
        directory,
        config_text=model.imported_config,
        stored_dtype=model.imported_dtype,
        source=source,
        **{"max_shard_bytes": SHARD_BYTES, **changes},
    )


def contents(directory):
    """Name -> content of every file, those of subdirectories too."""
    return {
        str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()
    }


def killed(directory, point, save=save):
    with crash_point.stopped_at(*point), pytest.raises(KeyboardInterrupt):
        save(directory)


POINTS = [("ExportBegun", 1), ("ShardWritten", 1), ("ShardWritten", 2), ("ShardWritten", 3)]
POINTS += [("ExportWhole", 1), *(("FileMoved", n) for n in range(1, NUM_MOVED + 1))]


@pytest.mark.parametrize("point", thinned(map(pytest.param, POINTS), 0, 2, 4, 6), ids=str)
def test_a_killed_export_is_started_over(tmp_path, whole, point):
    """The same files in the end; until then nobody loads half of them."""
    assert len(whole) == NUM_MOVED
    killed(tmp_path, point)
    with pytest.raises(CheckpointError, match=r"export that was not finished.*[Rr]epeat"):
        moe.load_hf(tmp_path)
    save(tmp_path)
    assert contents(tmp_path) == whole
    moe.load_hf(tmp_path)
    with pytest.raises(CheckpointError, match="already holds"):
        save(tmp_path)


@pytest.mark.parametrize("point", thinned(map(pytest.param, POINTS), 1, 3, 5, 9), ids=str)
def test_an_export_of_the_same_weights_goes_on_after_its_whole_files(
    tmp_path, monkeypatch, whole, point
):
    name, number = point
    num_whole = {"ExportBegun": 0, "ShardWritten": number}.get(name, 3)
    killed(tmp_path, point, functools.partial(save_of, "ours"))
    killed(tmp_path, ("ExportBegun", 1), functools.partial(save_of, "ours"))
    fetch, fetched = writing._fetch, []
    monkeypatch.setattr(writing, "_fetch", lambda *a: fetched.append(a[1].name) or fetch(*a))
    assert save_of("ours", tmp_path) == num_whole
    assert contents(tmp_path) == whole
    index = json.loads(whole[files.INDEX])["weight_map"]
    assert {index[name] for name in fetched} == set(sorted(set(index.values()))[num_whole:])


def test_an_export_to_the_files_of_an_import_goes_on_after_its_whole_files(tmp_path):
    ours = functools.partial(
        save_of, "ours", max_shard_bytes=None, stored_layout=HfCheckpoint(PUBLISHED).layout
    )
    killed(tmp_path, ("ShardWritten", 2), ours)
    assert ours(tmp_path) == 2
    found = contents(tmp_path)
    assert found == {name: (PUBLISHED / name).read_bytes() for name in found}
    assert len(found) == NUM_MOVED


@pytest.mark.parametrize("source", ["others", None])
def test_an_export_of_other_weights_keeps_nothing(tmp_path, whole, source):
    for point in (("ShardWritten", 2), ("FileMoved", 2)):
        killed(tmp_path / point[0], point, functools.partial(save_of, "ours"))
        assert save_of(source, tmp_path / point[0]) == 0
        assert contents(tmp_path / point[0]) == whole


def test_files_of_another_size_or_damaged_ones_are_not_kept(tmp_path, whole):
    ours = functools.partial(save_of, "ours")
    killed(tmp_path / "cut", ("ShardWritten", 3), ours)
    cut, touched, _ = sorted((tmp_path / "cut" / unfinished.ASIDE).glob("*.safetensors"))
    cut.write_bytes(cut.read_bytes()[:-1])
    touched.write_bytes(touched.read_bytes().replace(b"BF16", b"FP16").replace(b"F32", b"F16"))
    assert ours(tmp_path / "cut") == 1
    assert contents(tmp_path / "cut") == whole
    killed(tmp_path / "size", ("ShardWritten", 3), ours)
    assert ours(tmp_path / "size", max_shard_bytes=10**9) == 0
    assert sorted(contents(tmp_path / "size")) == ["config.json", "model.safetensors"]


def test_an_export_is_killed_again_and_again(tmp_path, whole):
    for point in [*reversed(POINTS), ("FileMoved", 3), ("ShardWritten", 2)]:
        killed(tmp_path, point)
    moe.save_hf(published(), tmp_path, max_shard_bytes=10**9)  # as one file
    assert sorted(contents(tmp_path)) == ["config.json", "model.safetensors"]


def test_an_export_killed_within_a_file_is_started_over(tmp_path, monkeypatch, whole):
    fetch, fetched = writing._fetch, []

    def dies(leaves, place):
        fetched.append(place)
        if len(fetched) == 100:
            raise KeyboardInterrupt
        return fetch(leaves, place)

    with monkeypatch.context() as patched:
        patched.setattr(writing, "_fetch", dies)
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path)
    save(tmp_path)
    assert contents(tmp_path) == whole


FOREIGN = itertools.product(
    ["other.safetensors", "config.json", "model-of.safetensors"],
    [("ShardWritten", 2), ("FileMoved", 2), ("FileMoved", 5)],
)


@pytest.mark.parametrize(("name", "point"), thinned(FOREIGN, 0, 4, 8), ids=str)
def test_what_others_put_beside_an_unfinished_export_is_refused(tmp_path, point, name):
    killed(tmp_path, point)
    foreign = tmp_path / name
    foreign.write_text("{}")
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match=rf"already holds {name}.*[Dd]elete"):
        save(tmp_path)
    assert contents(tmp_path) == before
    foreign.unlink()
    save(tmp_path)
    moe.load_hf(tmp_path)


def test_a_file_of_an_unfinished_export_that_was_replaced_is_refused(tmp_path):
    killed(tmp_path, ("FileMoved", 2))
    moved = min(tmp_path.glob("*.safetensors"))
    moved.write_bytes(b"of another model")
    with pytest.raises(CheckpointError, match=f"already holds {moved.name}"):
        save(tmp_path)
    assert moved.read_bytes() == b"of another model"


OTHER_LINE_ENDS = (PUBLISHED / "config.json").read_bytes().replace(b"\n", b"\r\n")


@pytest.mark.parametrize(
    "content", [b"{}", b'{"model_type": "llama"}', b"", b"not JSON", OTHER_LINE_ENDS]
)
def test_a_config_of_others_is_refused(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"already holds config\.json.*Name another"):
        save(tmp_path)
    assert contents(tmp_path) == {"config.json": content}


def test_the_config_that_would_be_written_is_no_obstacle(tmp_path, whole):
    shutil.copy(PUBLISHED / "config.json", tmp_path)
    save(tmp_path)
    assert contents(tmp_path) == whole


def test_an_index_of_files_that_are_there_is_refused(tmp_path):
    """They lie in a directory of their own."""
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "a.safetensors").touch()
    index = json.dumps({"weight_map": {"a": "s/a.safetensors"}})
    (tmp_path / files.INDEX).write_text(index)
    with pytest.raises(CheckpointError, match=f"already holds {files.INDEX}"):
        save(tmp_path)
    assert (tmp_path / files.INDEX).read_text() == index


def test_two_exports_at_once_are_refused(tmp_path, whole):
    killed(tmp_path, ("ShardWritten", 1))
    before = contents(tmp_path)
    with (tmp_path / unfinished.MARK).open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(CheckpointError, match="another process"):
            save(tmp_path)
    assert contents(tmp_path) == before
    save(tmp_path)
    assert contents(tmp_path) == whole


def test_what_others_finish_while_an_export_waits_for_the_lock_is_refused(tmp_path, monkeypatch):
    """The first look at the directory was before that, and saw nothing."""
    lock = unfinished._lock

    def overtaken(mark, directory):
        monkeypatch.setattr(unfinished, "_lock", lock)
        (directory / "model.safetensors").write_text("of another export")
        lock(mark, directory)

    monkeypatch.setattr(unfinished, "_lock", overtaken)
    with pytest.raises(CheckpointError, match=r"already holds model\.safetensors"):
        save(tmp_path)
    assert contents(tmp_path) == {"model.safetensors": b"of another export"}


@pytest.mark.parametrize("name", ["config.json", "model-00001-of-00003.safetensors"])
def test_what_others_put_there_during_an_export_is_not_replaced(tmp_path, monkeypatch, whole, name):
    write = writing._write

    def disturbed(*arguments):
        (tmp_path / name).write_text("mine")
        return write(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(writing, "_write", disturbed)
        with pytest.raises(CheckpointError, match=f"already holds {name}"):
            save_of("ours", tmp_path)
    assert (tmp_path / name).read_text() == "mine"
    (tmp_path / name).unlink()
    assert save_of("ours", tmp_path) == 3
    assert contents(tmp_path) == whole


def test_a_file_that_is_deleted_during_an_export_is_named_and_written_again(
    tmp_path, monkeypatch, whole
):
    write = writing._write

    def robbed(directory, *arguments):
        num_kept = write(directory, *arguments)
        min(directory.glob("*.safetensors")).unlink()
        return num_kept

    with monkeypatch.context() as patched:
        patched.setattr(writing, "_write", robbed)
        with pytest.raises(CheckpointError, match=r"model-00001.* was deleted .*Repeat"):
            save_of("ours", tmp_path)
    # as a version before this one noted it
    (tmp_path / unfinished.MARK).write_text('{"model-00001-of-00003.safetensors": null}')
    assert save_of("ours", tmp_path) == 2
    assert contents(tmp_path) == whole


def test_a_partial_file_of_others_stays(tmp_path):
    partial = tmp_path / "model-00007-of-00099.safetensors.partial"
    partial.write_text("downloading")
    save(tmp_path)
    assert partial.read_text() == "downloading"


@pytest.mark.parametrize(
    ("name", "make"),
    [
        (unfinished.MARK, Path.mkdir),
        (unfinished.ASIDE, Path.touch),
        (unfinished.ASIDE, lambda path: path.symlink_to(path.parent)),
    ],
)
def test_what_stands_where_an_export_keeps_its_own_is_an_error_in_words(tmp_path, name, make):
    make(tmp_path / name)
    with pytest.raises(
        CheckpointError, match=rf"export to .* stopped.*delete .*{unfinished.ASIDE}"
    ):
        save(tmp_path)


def test_a_full_disk_stops_an_export_in_words_and_it_goes_on(tmp_path, monkeypatch, whole):
    write, written = files.write_file, []

    def full(file, *arguments):
        written.append(file)
        if len(written) == 3:
            raise OSError(28, "No space left on device")
        write(file, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(files, "write_file", full)
        with pytest.raises(CheckpointError, match=r"No space left on device.*repeat it"):
            save_of("ours", tmp_path)
    assert save_of("ours", tmp_path) == 2
    assert contents(tmp_path) == whole
