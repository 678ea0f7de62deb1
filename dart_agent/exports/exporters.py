"""Exporters of recorded episodes, by name: `dart-agent export --as NAME`."""

from pathlib import Path
from typing import Protocol

from dart_gym.utils.plugins import Registry, called_with


class Exporter(Protocol):
    """A function that writes episodes in a layout of others."""

    def __call__(self, episodes: list[Path], out: Path) -> str:
        """Write them, and say in a few words what was written.

        Args:
            episodes: directories that `dart_agent.episodes.episode_files.read_episode` reads; at least one.
            out: directory to write to, which need not exist.

        Raises:
            RecordError: an episode is damaged, or nothing can be written there.
        """


EXPORTERS: Registry[Exporter] = Registry(
    "exporter",
    "dart_gui.exporters",
    {
        "osworld": "dart_agent.exports.osworld_results:export_results",
        "chat": "dart_agent.exports.chat_rows:export_chat",
        "chat-inline": "dart_agent.exports.chat_rows:export_chat_inline",
    },
    (called_with("episodes", "out"),),
)
