"""The Docker Engine of this machine: run a container, look at it, remove it; with errors that say what to do.

Invariants:
    - A container that was asked for is either returned or removed, also when the caller is cancelled in between.
    - Removing is idempotent. Containers of other people are never touched: only those with this package's label.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from dart_gym.core.errors import ConfigurationError, DesktopError, MissingDependencyError
from dart_gym.core.project_pages import page
from dart_gym.providers.containers import SERVER_LABEL, Owner, is_orphan

if TYPE_CHECKING:
    from aiodocker import Docker
    from aiodocker.containers import DockerContainer

log = logging.getLogger(__name__)

DEFAULT_HOST = "unix:///var/run/docker.sock"
_GONE = (404, 409)  # it is removed, or being removed


class Engine:
    """See the module. Open it in the event loop that uses it; "" for DOCKER_HOST, or Docker's usual socket.

    Raises:
        ConfigurationError: an Engine of another machine, which could not see this one's files.
        MissingDependencyError: the Python package is missing.
    """

    def __init__(self, host: str = "") -> None:
        self.host = host or os.environ.get("DOCKER_HOST", "") or DEFAULT_HOST
        if not self.host.startswith("unix://"):
            raise ConfigurationError(
                f"the Docker Engine at {self.host!r} is not of this machine; next step: run `dart-gym serve` there, "
                "and give its URL to the clients"
            )
        try:
            import aiodocker
        except ImportError as error:
            message = "the Docker provider needs aiodocker; next step: pip install 'dart-gui[docker]'"
            raise MissingDependencyError(message) from error
        self._errors = aiodocker.DockerError
        self._connect = aiodocker.Docker
        self._client: Docker | None = None
        self._background: set[asyncio.Task[None]] = set()

    async def open(self, image: str) -> list[str]:
        """Connect, look for the image, remove and name dead servers' containers. Raises `MissingDependencyError`."""
        self._client = self._connect(url=self.host)
        try:
            await self._docker.version()
            await self._docker.images.inspect(image)
            return await self.remove_orphans()
        except (self._errors, OSError) as error:
            await self.close()
            if getattr(error, "status", None) == 404:
                message = (
                    f"Docker has no image {image!r}; next step: build it ({page('guides/docker')}), or name another"
                )
            else:
                message = f"no Docker daemon answers at {self.host} ({error}); next step: start it, or set DOCKER_HOST"
            raise MissingDependencyError(message) from error

    @property
    def _docker(self) -> Docker:
        if self._client is None:
            raise DesktopError("the Docker provider is not open, or was closed")
        return self._client

    async def run(self, config: Mapping[str, Any], name: str) -> str:
        """Create and start a container; return its id.

        Raises:
            DesktopError: if Docker refuses.
        """
        creating = asyncio.ensure_future(self._create(config, name))
        try:
            container = await asyncio.shield(creating)
        except asyncio.CancelledError:
            self._in_background(self._remove_when_created(creating))
            raise
        try:
            await container.start()
        except (self._errors, OSError) as error:
            await self.remove(container.id)
            raise DesktopError(f"Docker could not start the container {name}: {error}") from error
        except asyncio.CancelledError:
            self._in_background(self.remove(container.id))
            raise
        return str(container.id)

    async def _create(self, config: Mapping[str, Any], name: str) -> DockerContainer:
        try:
            return await self._docker.containers.create(dict(config), name=name)
        except (self._errors, OSError) as error:
            raise DesktopError(f"Docker could not create the container {name}: {error}") from error

    async def _remove_when_created(self, creating: asyncio.Future[DockerContainer]) -> None:
        try:
            container = await creating
        except DesktopError:
            return  # no such container, and nobody waits for it
        await self.remove(container.id)

    async def inspect(self, container_id: str) -> dict[str, Any] | None:
        """Return what Docker knows of a container; None when it is gone."""
        try:
            return dict(await self._docker.containers.container(container_id).show())
        except self._errors as error:
            if error.status == 404:
                return None
            raise DesktopError(f"Docker does not tell about the container {container_id[:12]}: {error}") from error

    async def remove(self, container_id: str) -> None:
        """Kill and remove a container, if it is still there. What fails is logged: a later server tries again."""
        try:
            await self._docker.containers.container(container_id).delete(force=True, v=True)
        except self._errors as error:
            if error.status not in _GONE:
                log.warning("the container %s was not removed: %s", container_id[:12], error)
        except OSError as error:
            log.warning("the container %s was not removed: %s", container_id[:12], error)

    async def remove_orphans(self) -> list[str]:
        """Remove the containers whose server is dead, and return their names."""
        here, removed = Owner.here(), []
        for container in await self._docker.containers.list(all=True, filters=json.dumps({"label": [SERVER_LABEL]})):
            described = container._container
            if is_orphan(described.get("Labels") or {}, here):
                await self.remove(container.id)
                removed.append(f"container {(described.get('Names') or [container.id])[0].lstrip('/')}")
        return removed

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def close(self) -> None:
        """Wait until what is being removed is gone, and disconnect. Idempotent."""
        if self._background:
            await asyncio.wait(self._background)
        client, self._client = self._client, None
        if client is not None:
            await client.close()
