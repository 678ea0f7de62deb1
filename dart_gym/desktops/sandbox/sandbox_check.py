"""Whether this machine can make sandboxes as they are meant to be, and what to do where it cannot.

Nothing is left out quietly: where a part of the protection is missing there is no sandbox, unless the operator chose
to have none.
"""

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

from dart_gym.core.errors import ConfigurationError, DesktopError, MissingDependencyError
from dart_gym.core.os_remedies import remedy
from dart_gym.desktops.applications.browser import browser_program
from dart_gym.desktops.confinement.bubblewrap import GUEST_PYTHON, Stage, desktop_skeleton, launcher, missing_parts
from dart_gym.desktops.confinement.machine_settings import settings_copy
from dart_gym.desktops.confinement.resource_limits import DesktopLimits, group_places
from dart_gym.desktops.confinement.system_calls import system_call_filter
from dart_gym.desktops.confinement.user_ids import take_user_id
from dart_gym.desktops.sandbox.osworld_profile import chrome_texts, compiled_defaults
from dart_gym.desktops.sandbox.osworld_settings import SYSTEM_FILES

_PROGRAMS = {"Xvfb": "xvfb", "openbox": "openbox", "dbus-daemon": "dbus", "xkbcomp": "x11-xkb-utils"}


def check_sandbox() -> str | None:
    """Why sandboxes do not work on this machine, with the next step; None when they do."""
    if (missing := missing_parts()) is not None:
        return missing
    try:
        user = take_user_id()
        try:
            stage = Stage(user)
            arguments = stage.arguments(desktop_skeleton(settings_copy(SYSTEM_FILES), DesktopLimits().storage))
            program = ["--", GUEST_PYTHON, "-I", "-S", "-c", ""]
            command = [*launcher(user, (), stage.mounts), str(shutil.which("bwrap")), *arguments, *program]
            result = subprocess.run(command, capture_output=True, text=True, timeout=20)
        finally:
            if user is not None:
                user.release()
        system_call_filter(notify=True)
    except (MissingDependencyError, ConfigurationError, DesktopError) as error:
        return str(error)
    except OSError as error:
        return f"a sandbox cannot be laid out: {error}; next step: {remedy(error) or 'mend that'}"
    except subprocess.TimeoutExpired:
        return "bwrap did not start a program within 20 s; next step: run it by hand, the machine may be overloaded"
    return None if result.returncode == 0 else _explain(result.stderr.strip())


def _explain(message: str) -> str:
    """Find out which setting of the machine forbids sandboxes."""
    text = f"bwrap cannot make a sandbox: {message or 'no message'}; next step: "
    for setting, allowed in (
        ("kernel.unprivileged_userns_clone", "1"),
        ("kernel.apparmor_restrict_unprivileged_userns", "0"),
    ):
        file = Path("/proc/sys") / setting.replace(".", "/")
        if file.exists() and file.read_text().strip() != allowed:
            return text + f"sudo sysctl -w {setting}={allowed} (or choose --isolation none)"
    limit = Path("/proc/sys/user/max_user_namespaces")
    if limit.exists() and limit.read_text().strip() == "0":
        return text + "sudo sysctl -w user.max_user_namespaces=10000 (or choose --isolation none)"
    if GUEST_PYTHON in message:
        return text + "apt-get install python3 (the desktop's helper runs on the system's Python)"
    return text + (
        "in a container, start it with --security-opt seccomp=unconfined --security-opt apparmor=unconfined "
        "--security-opt systempaths=unconfined; or choose --isolation none"
    )


def prepare() -> None:
    """Find out ahead what all sandboxes of this process and its children need; what is missing the first one says."""
    with contextlib.suppress(MissingDependencyError, DesktopError, OSError):
        system_call_filter(notify=True)
        missing_parts()
        settings_copy(SYSTEM_FILES)
        group_places()
        chrome_texts()
        compiled_defaults()


def missing_programs(profile: str = "bare", *, isolated: bool = True) -> dict[str, str]:
    """The programs that a desktop needs and this machine lacks, with their Debian packages; all of them at once."""
    missing = {program: package for program, package in _PROGRAMS.items() if shutil.which(program) is None}
    if not os.path.exists(GUEST_PYTHON):
        missing[GUEST_PYTHON] = "python3"
    if missing and isolated and shutil.which("bwrap") is None:
        missing["bwrap"] = "bubblewrap libseccomp2"
    if missing and profile == "browser":
        try:
            browser_program()
        except MissingDependencyError:
            missing["Chromium"] = "chromium"
    return missing
