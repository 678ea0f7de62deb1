"""Who makes the desktops of a server: this machine, containers, virtual machines, or somebody else's cluster."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence

from dart_gym.core.errors import ConfigurationError
from dart_gym.providers.provider import Provider


def _xvfb(options: Mapping[str, str]) -> Provider:
    from dart_gym.providers.embedded_provider import EmbeddedOptions, EmbeddedProvider

    return EmbeddedProvider(EmbeddedOptions.parse(options))


def _docker(options: Mapping[str, str]) -> Provider:
    from dart_gym.providers.docker_provider import DockerOptions, DockerProvider

    return DockerProvider(DockerOptions.parse(options))


def _osworld_vm(options: Mapping[str, str]) -> Provider:
    from dart_gym.providers.osworld_vm_provider import OSWorldVmOptions, OSWorldVmProvider

    return OSWorldVmProvider(OSWorldVmOptions.parse(options))


def _gui_docker_env(options: Mapping[str, str]) -> Provider:
    from dart_gym.providers.gui_docker_env import GuiDockerEnvOptions, GuiDockerEnvProvider

    return GuiDockerEnvProvider(GuiDockerEnvOptions.parse(options))


def _url(options: Mapping[str, str]) -> Provider:
    from dart_gym.providers.url_provider import UrlOptions, UrlProvider

    return UrlProvider(UrlOptions.parse(options))


PROVIDERS: Mapping[str, Callable[[Mapping[str, str]], Provider]] = {
    "xvfb": _xvfb,
    "docker": _docker,
    "osworld-vm": _osworld_vm,
    "gui-docker-env": _gui_docker_env,
    "url": _url,
}


def make_provider(name: str, options: Sequence[str] = ()) -> Provider:
    """A provider, not opened yet.

    Args:
        name: one of `PROVIDERS`.
        options: "key=value" each, as on the command line.

    Raises:
        ConfigurationError: unknown provider, unknown option, or a value that is none.
        MissingDependencyError: it needs a Python package that is not installed.
    """
    make = PROVIDERS.get(name)
    if make is None:
        near = difflib.get_close_matches(name, PROVIDERS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(PROVIDERS)}"
        raise ConfigurationError(f"unknown provider {name!r}; {hint}")
    return make(_parsed(options))


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
