import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from loong_jax import checksums
from loong_jax.rollout.versions import Leaf, VersionError, VersionStore


def weights(value: float = 0.0, **changes):
    return {"layers": {0: {"w": jnp.full((2, 3), float(value))}}, "bias": jnp.zeros(4)} | changes


def test_manifest_names_every_array_and_another_model_is_refused():
    store = VersionStore(2)
    assert store.manifest is None
    store.put(0, weights())
    assert store.manifest == (Leaf("bias", (4,), "float32"), Leaf("layers/0/w", (2, 3), "float32"))
    with pytest.raises(VersionError, match=r"bias \(5,\) float32 \(expected bias \(4,\) float32\)"):
        store.put(1, weights(bias=jnp.zeros(5)))
    with pytest.raises(VersionError, match="int32"):
        store.put(1, weights(bias=jnp.zeros(4, jnp.int32)))
    with pytest.raises(VersionError, match="number of arrays"):
        store.put(1, weights(more=jnp.zeros(1)))
    assert store.numbers() == (0,)


@pytest.mark.parametrize("max_staleness", [0, 2])
def test_at_most_the_serving_versions_and_a_staged_one(max_staleness):
    store = VersionStore(max_staleness)
    for version in range(max_staleness + 2):
        store.put(version, weights(version))
    store.acquire(0, "replica-0")
    with pytest.raises(VersionError, match="'replica-0': 1"):
        store.put(9, weights())
    assert not store.retire(0)
    with pytest.raises(VersionError, match="at most"):
        store.put(9, weights(), timeout_s=0.01)
    store.release(0, "replica-0")
    store.put(9, weights())


def test_a_full_store_waits_for_a_retired_version_to_be_released():
    store = VersionStore(0)
    store.put(0, weights())
    store.put(1, weights())
    store.acquire(0, "replica-0")
    store.retire(0)
    late = threading.Timer(0.1, store.release, (0, "replica-0"))
    late.start()
    store.put(2, weights(), timeout_s=20.0)
    late.join(20)
    assert store.numbers() == (1, 2)


def test_a_retired_version_goes_with_its_last_holder():
    store = VersionStore(2)
    given = weights(1.0)
    store.put(4, given)
    assert store.acquire(4, "a") is given
    store.acquire(4, "a")
    store.acquire(4, "b")
    assert not store.retire(4)
    assert store.numbers() == ()
    assert store.get(4) is given
    store.release(4, "a")
    store.release(4, "b")
    assert store.get(4) is given
    store.release(4, "a")
    with pytest.raises(VersionError, match="not in the store"):
        store.get(4)
    assert store.retire(4)  # again, and of what is not there: nothing to do
    assert store.retire(77)


def test_misuse_is_refused():
    store = VersionStore(1)
    store.put(0, weights())
    with pytest.raises(VersionError, match="there already"):
        store.put(0, weights())
    with pytest.raises(VersionError, match="never put"):
        store.acquire(1, "a")


def test_checksums_tell_weights_apart():
    store = VersionStore(2)
    for version, value in enumerate((0.0, 0.0, 1.0)):
        store.put(version, weights(value))
    assert store.checksum(0) == store.checksum(1) != store.checksum(2)


def test_holders_in_many_threads_add_up():
    store = VersionStore(0)
    store.put(0, weights())
    store.acquire(0, "first")
    store.retire(0)

    def hold(name):
        for _ in range(300):
            store.acquire(0, name)
            store.release(0, name)

    threads = [threading.Thread(target=hold, args=(f"t{i % 2}",)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert store.holders() == {0: {"first": 1}}
    store.release(0, "first")
    assert store.holders() == {}


def test_versions_that_nobody_holds_rest_in_host_memory():
    """And come back with their values, checksums and shardings, once for all holders."""
    mesh = jax.make_mesh((8,), ("data",))
    cut = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    places = {"w": cut, "b": jax.devices()[0]}
    store = VersionStore(2, offload=True, load=lambda weights: jax.device_put(weights, places))

    def on_host(version):
        return [isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(store.get(version))]

    for version in range(2):
        value = jax.device_put(jnp.full((16, 2), float(version)), cut)
        store.put(version, {"w": value, "b": jnp.zeros(3)})
    assert (on_host(0), on_host(1)) == ([True, True], [False, False])
    taken = store.acquire(0, "a")
    assert taken["w"].sharding == cut
    assert store.acquire(0, "b") is taken
    store.release(0, "a")
    assert not any(on_host(0))
    store.release(0, "b")
    assert all(on_host(0))
    assert checksums.of_all(jax.tree.leaves(store.get(0))) == store.leaf_checksums(0)
    store.acquire(1, "a")
    store.release(1, "a")
    assert not any(on_host(1)), "the newest stays"
    assert store.num_offloads == 2
    store.put(2, {"w": np.ones((16, 2), np.float32), "b": np.zeros(3, np.float32)})
    assert all(on_host(2)), "a host's copy comes as NumPy arrays"
    assert store.acquire(2, "a")["w"].sharding == cut
