"""What a machine that is no Linux is told: desktops are Linux programs, and a container has them."""

import sys

from dart_gym.core.errors import MissingDependencyError
from dart_gym.core.project_pages import page

_CONTAINER = (
    "docker run --rm -e DART_GYM_TOKEN -p 127.0.0.1:8765:8765 --cap-drop ALL --security-opt no-new-privileges "
    "--security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined "
    f"dart-gym` ({page('guides/docker')}), with url='ws://127.0.0.1:8765' and token_env='DART_GYM_TOKEN' for gym.make"
)
_TOLD = {
    "darwin": f"desktops run on Linux, not on macOS; next step: have them in a container: `{_CONTAINER}",
    "win32": "dart_gym runs on Linux, not on Windows; next step: use it in WSL 2, which makes desktops as Debian does, "
    f"or has them in a container: `{_CONTAINER}",
}


def check_platform(*refused: str) -> None:
    """Raise `MissingDependencyError` on one of these values of `sys.platform`."""
    if sys.platform in refused:
        raise MissingDependencyError(_TOLD[sys.platform])
