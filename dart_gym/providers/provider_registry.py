"""Providers of a server's desktops by name: this machine, containers, running machines, or an installed package."""

import contextlib
from collections.abc import Mapping
from typing import Any

from dart_gym.core.errors import ConfigurationError, MissingDependencyError
from dart_gym.providers.provider import Provider, opened
from dart_gym.utils.plugins import Registry, called_with, has

PROVIDERS: Registry[type[Provider]] = Registry(
    "provider",
    "dart_gui.providers",
    {
        "xvfb": "dart_gym.providers.embedded_provider:EmbeddedProvider",
        "docker": "dart_gym.providers.docker_provider:DockerProvider",
        "url": "dart_gym.providers.url_provider:UrlProvider",
    },
    (has("options_type", open=(), desktop=("spec",), close=()), called_with("options")),
)


async def docker_here() -> Provider | None:
    """The provider "docker" with its own options; None without the package, a daemon that answers, and the image."""
    with contextlib.suppress(ConfigurationError, MissingDependencyError):
        async with opened(make_provider("docker")) as provider:
            return provider
    return None


def make_provider(name: str, options: Mapping[str, Any] | None = None) -> Provider:
    """A provider, not opened yet, with options as texts or values.

    Raises `ConfigurationError` (unknown provider or option, or a wrong value) and `MissingDependencyError` (a package).
    """
    kind = PROVIDERS.get(name)
    return kind(kind.options_type.parse(options or {}, "provider_options"))
