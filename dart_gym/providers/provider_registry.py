"""Who makes the desktops of a server: this machine, containers, virtual machines, or somebody else's cluster."""

from __future__ import annotations

from collections.abc import Sequence

from dart_gym.core.errors import ConfigurationError
from dart_gym.providers.provider import Provider
from dart_gym.utils.plugins import Registry, called_with, has

PROVIDERS: Registry[type[Provider]] = Registry(
    "provider",
    "dart_gui.providers",
    {
        "xvfb": "dart_gym.providers.embedded_provider:EmbeddedProvider",
        "docker": "dart_gym.providers.docker_provider:DockerProvider",
        "osworld-vm": "dart_gym.providers.osworld_vm_provider:OSWorldVmProvider",
        "gui-docker-env": "dart_gym.providers.gui_docker_env:GuiDockerEnvProvider",
        "url": "dart_gym.providers.url_provider:UrlProvider",
    },
    (has("options_type", open=(), desktop=("spec",), close=()), called_with("options")),
)


def make_provider(name: str, options: Sequence[str] = ()) -> Provider:
    """A provider, not opened yet.

    Args:
        name: built in, of an installed package, or "module:Class".
        options: "key=value" each, as on the command line.

    Raises:
        ConfigurationError: unknown provider, unknown option, or a value that is none.
        MissingDependencyError: it needs a Python package that is not installed.
    """
    kind = PROVIDERS.get(name)
    return kind(kind.options_type.parse(_parsed(options)))


def _parsed(options: Sequence[str]) -> dict[str, str]:
    values: dict[str, str] = {}
    for option in options:
        key, equals, value = option.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not key:
            raise ConfigurationError(f"an option of a provider is KEY=VALUE, got {option!r}")
        if key in values:
            raise ConfigurationError(f"the option {key!r} of the provider is given twice")
        values[key] = value
    return values
