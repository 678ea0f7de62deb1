"""The way to a cluster: of a URL, or of this process's private one, for synchronous and for asynchronous users.

Invariants:
    - Environments of one process share one private cluster; the last one to release it stops it.
"""

import asyncio
import atexit
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from dart_gym.cluster.client.cluster_client import ClusterClient
from dart_gym.cluster.client.cluster_servers import ClientSettings, check_codec
from dart_gym.cluster.client.private_cluster import LocalCluster
from dart_gym.core.errors import ConfigurationError, ForkError

T = TypeVar("T")


class BackgroundLoop:
    """An event loop in a daemon thread, for everything synchronous that needs the asynchronous core.

    It works where a loop runs already (Jupyter), and the children that it starts live as long as the process, because
    the thread that forked them does. A forked process gets a loop of its own.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="dart-gym", daemon=True)
        self._thread.start()

    def submit(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any, **kwargs: Any) -> Future[T]:
        """Run a coroutine function in the loop; the future may be waited for from any other thread."""

        async def run() -> T:
            return await function(*args, **kwargs)

        return asyncio.run_coroutine_threadsafe(run(), self._loop)

    def post(self, function: Callable[..., object], *args: Any) -> None:
        """Call a plain function in the loop soon; nobody waits for it."""
        self._loop.call_soon_threadsafe(function, *args)

    def run(
        self,
        function: Callable[..., Coroutine[Any, Any, T]],
        *args: Any,
        on_interrupt: Callable[[], object] = lambda: None,
        **kwargs: Any,
    ) -> T:
        """Run a coroutine function and wait for its result.

        An interrupt of the waiting thread (Ctrl-C, or a signal handler that raises) calls `on_interrupt`, then cancels
        the coroutine.
        """
        if threading.current_thread() is self._thread:
            raise RuntimeError("the synchronous interface was called from its own loop: await the session instead")
        future = self.submit(function, *args, **kwargs)
        try:
            return future.result()
        except BaseException:
            if not future.done():
                on_interrupt()
                future.cancel()
            raise


_loop: BackgroundLoop | None = None
_guard = threading.Lock()


def background_loop() -> BackgroundLoop:
    """The loop that this process shares."""
    global _loop
    with _guard:
        if _loop is None or _loop.pid != os.getpid():
            _loop = BackgroundLoop()
        return _loop


class SharedCluster:
    """Counts who uses the private cluster of this process. Its methods run in the background loop only."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._users = 0
        self._cluster: LocalCluster | None = None
        self._lock = asyncio.Lock()

    async def acquire(self) -> str:
        """Its URL; starts it if need be."""
        async with self._lock:
            if self._cluster is None:
                cluster = LocalCluster()
                await cluster.start()
                self._cluster = cluster
            self._users += 1
            return self._cluster.url

    async def release(self) -> None:
        """Release the cluster; the last user stops it."""
        async with self._lock:
            self._users -= 1
            if self._users == 0 and self._cluster is not None:
                cluster, self._cluster = self._cluster, None
                await cluster.stop()

    async def stop(self) -> None:
        """Stop it, even if it is still in use."""
        async with self._lock:
            if self._cluster is not None:
                await self._cluster.stop()
                self._cluster = None


_shared: SharedCluster | None = None


def _shared_cluster() -> SharedCluster:
    global _shared
    if _shared is None or _shared.pid != os.getpid():
        _shared = SharedCluster()
        atexit.register(_stop_at_exit, _shared)
    return _shared


def _stop_at_exit(shared: SharedCluster) -> None:
    if shared.pid == os.getpid():
        background_loop().run(shared.stop)


async def acquire_shared() -> str:
    """URL of this process's private cluster, started if need be. Call in the background loop; pair with release."""
    return await _shared_cluster().acquire()


async def release_shared() -> None:
    """Let go of the private cluster; the last user stops it."""
    await _shared_cluster().release()


class ClusterLink:
    """A client made when it is first needed: of the given URL, or of this process's private cluster."""

    def __init__(self, url: str | None, token_env: str | None, settings: ClientSettings | None = None) -> None:
        self._url = url
        self._token_env = token_env
        self._settings = settings
        self._client: ClusterClient | None = None
        self._private = False
        self._making = asyncio.Lock()
        self._pid: int | None = None  # of the process that uses it

    @property
    def loop(self) -> BackgroundLoop:
        """The loop in which its sessions run.

        Raises:
            ForkError: another process used the link before it forked into this one.
        """
        self.check_owner()
        self._pid = os.getpid()
        return background_loop()

    def check_owner(self) -> None:
        """Raise `ForkError` in a fork of the process that uses the link."""
        if self.is_inherited:
            raise ForkError(
                f"this environment is in use by process {self._pid}, from which process {os.getpid()} was forked: "
                "make another environment in each process"
            )

    @property
    def is_inherited(self) -> bool:
        """Return whether the link is in use by the process from which this one was forked."""
        return self._pid is not None and self._pid != os.getpid()

    async def client(self) -> ClusterClient:
        """The client."""
        async with self._making:  # many environments ask at once, and the private cluster counts who acquired it
            if self._client is None:
                token, url = self._token(), self._url
                if url is None:
                    url, self._private = await acquire_shared(), True
                self._client = ClusterClient(url, token, self._settings)
            return self._client

    def _token(self) -> str | None:
        if self._token_env is None:
            return None
        token = os.environ.get(self._token_env)
        if not token:
            raise ConfigurationError(f"the environment variable {self._token_env} (token_env) is not set")
        return token

    async def close(self) -> None:
        """Let go of the private cluster, if there is one. Idempotent."""
        self._client = None
        if self._private:
            self._private = False
            await release_shared()


@asynccontextmanager
async def connect(
    url: str | None = None, *, token_env: str | None = None, codec: str | None = None
) -> AsyncIterator[ClusterClient]:
    """A cluster to open sessions of, one coroutine per desktop.

        async with dart_gym.connect() as cluster, cluster.session() as session:
            result = await session.reset("miniwob/click-test", seed=0)

    Args:
        url: address of a server, or of several, separated by commas; without one a private cluster is started.
        token_env: name of the environment variable that holds the cluster's token.
        codec: image codec of the screenshots; see `dart_gym.envs.env_settings.EnvSettings`.

    Raises:
        ConfigurationError: a bad URL or codec, or a token that is not there.
        ClusterError: the private cluster did not start.
    """
    link = ClusterLink(url, token_env, ClientSettings(codecs=(check_codec(codec),) if codec else ()))
    try:
        yield await asyncio.wrap_future(link.loop.submit(link.client))  # its child process belongs to that loop
    finally:
        await asyncio.wrap_future(link.loop.submit(link.close))
