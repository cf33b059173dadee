"""Which host serves which policy version, as the driver sees to it."""

from collections.abc import Sequence

from loong_jax.rollout import host_messages as messages
from loong_jax.rollout import publishing
from loong_jax.rollout.host_link import HostLink
from loong_jax.rollout.publisher import Parcel, Publisher
from loong_jax.rollout.versions import VersionStore


class HostVersions:
    """Sends versions of the driver's store to hosts, and has them forgotten there."""

    def __init__(self, store: VersionStore, publisher: Publisher):
        self._store, self._publisher = store, publisher

    def publish(self, version: int, links: Sequence[HostLink]) -> None:
        """To all of them in two phases; returns once each has it or is lost."""
        for link in self._publisher.publish(self._parcel(version), links):
            assert isinstance(link, HostLink)
            link.versions.add(version)

    def bring(self, version: int, link: HostLink) -> None:
        """To one that lacks it: it was mended, or started late."""
        with link.versions_lock:
            if version not in link.versions and not link.is_lost:
                self.publish(version, [link])

    def retire(self, version: int, link: HostLink) -> None:
        link.versions.discard(version)
        link.send(messages.Retire(version))

    def _parcel(self, version: int) -> Parcel:
        manifest = self._store.manifest
        assert manifest is not None
        weights = self._store.get(version)
        checksums = publishing.checksums_of(weights)
        return Parcel(version, weights, manifest, checksums, self._store.leaf_checksums(version))
