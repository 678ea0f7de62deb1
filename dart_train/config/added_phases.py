"""Phases that packages add to a run: `controls.phases` names them, with their options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dart_gym.core.section import Section
from dart_gym.utils.plugins import Registry


class AddedPhase(Section):
    """A phase between the tests after the training and the report. Its fields are its options.

    `title` stands in the panel. A phase runs in a process of its own, and again after a break: what it has written it
    need not do a second time.
    """

    @property
    def title(self) -> str:
        """Return the name for people."""
        raise NotImplementedError

    def main(self, context: Any) -> None:
        """Run the phase.

        Args:
            context: the run's `ProcessContext`, with the URL of a cluster of desktops.
        """
        raise NotImplementedError


def _is_phase(found: Any) -> str | None:
    fits = isinstance(found, type) and issubclass(found, AddedPhase)
    return None if fits else "is no subclass of dart_train.config.added_phases.AddedPhase"


ADDED_PHASES: Registry[type[AddedPhase]] = Registry("phase", "dart_gui.phases", {}, (_is_phase,))


def added_phases(named: Mapping[str, Mapping[str, Any]]) -> dict[str, AddedPhase]:
    """Return the phases that `controls.phases` names.

    Raises:
        PluginError: if a phase cannot be used.
        ConfigurationError: if an option is wrong.
    """
    return {name: ADDED_PHASES.get(name).parse(options, f"controls.phases.{name}") for name, options in named.items()}
