"""The step `site`, which gives an episode its state of a mock site. Not OSWorld's."""

from typing import Any

from dart_gym.core.errors import ConfigurationError
from dart_gym.desktops.base.desktop import Desktop, SiteHost
from dart_gym.sites.site_catalog import find_site
from dart_gym.sites.site_state import merged
from dart_gym.tasks.catalog.parameters import draw, fill
from dart_gym.tasks.setup.setup_step import StepError, Surroundings, required_text

PARAMETERS = "$parameters"


def site_host(desktop: Desktop) -> SiteHost:
    """Return the desktop as one with sites.

    Raises:
        StepError: if this kind of desktop has no sites.
    """
    if not isinstance(desktop, SiteHost):
        raise StepError("this kind of desktop has no sites; next step: serve the task with the provider xvfb")
    return desktop


async def set_site(where: Surroundings, parameters: dict[str, Any]) -> None:
    """Begin an episode of a site: its own state as `seed` draws it, with `state` laid over it."""
    name, seed = required_text(parameters, "site"), parameters.get("seed", 0)
    try:
        state = seeded(find_site(name).template, name, int(seed))
    except (ConfigurationError, ValueError) as error:
        raise StepError(str(error)) from error
    await site_host(where.desktop).set_site(name, merged(state, parameters.get("state") or {}))


def seeded(template: Any, name: str, seed: int) -> Any:
    """A site's state for a seed: that of `state.json`, filled with its "$parameters" as a task is. Pure."""
    if not isinstance(template, dict) or PARAMETERS not in template:
        return template
    state = {key: value for key, value in template.items() if key != PARAMETERS}
    return fill(state, draw(template[PARAMETERS], name, seed), typed=True)
