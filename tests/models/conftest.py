"""Fixtures that several tests of the model share."""

import json
import shutil

import pytest
import safetensors.numpy

from tests.models.moe.published import PUBLISHED, tensors_of


@pytest.fixture
def copy(tmp_path):
    """A copy of the fixture as one file without an index, its tensors and its config.json."""
    tensors, record = tensors_of(PUBLISHED), json.loads((PUBLISHED / "config.json").read_text())

    def write(tensors=tensors, **changes):
        directory = tmp_path / "copy"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        safetensors.numpy.save_file(tensors, directory / "model.safetensors")
        merged = {key: value for key, value in (record | changes).items() if value != "absent"}
        (directory / "config.json").write_text(json.dumps(merged))
        return directory

    return tensors, write
