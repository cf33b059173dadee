import dataclasses

import pytest

from tests.doubles import tiny_hf


@pytest.fixture(scope="session")
def published(tmp_path_factory):
    """A tiny LongCat-Flash as Hugging Face has it, with a tokenizer of its own."""
    directory = tmp_path_factory.mktemp("published") / "model"
    tiny_hf.write_longcat(directory)
    return directory


def with_engine(recipe, **changes):
    """The recipe with other settings of its engine."""
    return dataclasses.replace(recipe, engine=dataclasses.replace(recipe.engine, **changes))
