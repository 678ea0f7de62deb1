"""Runs in the evaluator's environment: OSWorld's unmodified controllers and `DesktopEnv` on a machine given by address.

Reads one JSON request from standard input and writes one JSON answer. Only what this environment leaves out (OCR,
Google Drive) is replaced, by modules that raise when they are used.
"""

import json
import os
import sys
import tempfile
import traceback

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "dart_gym", "tasks", "evaluation"))
import evaluator_worker_main as worker_main  # noqa: E402

sys.meta_path.append(worker_main.AbsentModules())
_HOME = tempfile.TemporaryDirectory()  # it writes where it is
os.chdir(_HOME.name)

from desktop_env.controllers.python import PythonController  # noqa: E402
from desktop_env.controllers.setup import SetupController  # noqa: E402
from desktop_env.desktop_env import DesktopEnv  # noqa: E402

WIDTH, HEIGHT = 1920, 1080


class Adapter:
    """A `DesktopEnv` whose machine is there already: its own methods, its own controllers, no provider."""

    enable_proxy = current_use_proxy = is_environment_used = False
    vm_platform = DesktopEnv.vm_platform
    vm_screen_size = DesktopEnv.vm_screen_size
    evaluate = DesktopEnv.evaluate
    _set_task_info, _set_evaluator_info = DesktopEnv._set_task_info, DesktopEnv._set_evaluator_info

    def __init__(self, api, folder):
        self.vm_ip, self.server_port = "127.0.0.1", api["server_port"]
        self.chromium_port, self.vlc_port = api["chromium_port"], api["vlc_port"]
        self.cache_dir_base = folder
        self.action_history = []
        self.controller = PythonController(self.vm_ip, self.server_port)
        self.controller.retry_interval = 0.2
        self.setup_controller = SetupController(
            vm_ip=self.vm_ip,
            server_port=self.server_port,
            chromium_port=self.chromium_port,
            vlc_port=self.vlc_port,
            cache_dir=folder,
            client_password="password",
            screen_width=WIDTH,
            screen_height=HEIGHT,
        )


def score(request, folder):
    """Run the set-up where asked, and OSWorld's evaluation."""
    env = Adapter(request["api"], folder)
    env._set_task_info(request["task"])
    env.setup_controller.reset_cache_dir(env.cache_dir)
    if request["set_up"] and not env.setup_controller.setup(env.config, False):
        raise RuntimeError("OSWorld's set-up found no server")
    if request["last_action"] is None:
        return {"score": None}
    env.action_history.append(request["last_action"])
    return {"score": float(env.evaluate())}


def calls(request, folder):
    """Call methods of the controllers, in order, and return what each gave."""
    env = Adapter(request["api"], folder)
    results = []
    for part, method, arguments in request["calls"]:
        target = env.controller if part == "python" else env.setup_controller
        value = getattr(target, method)(**arguments)
        results.append({"bytes": len(value), "head": list(value[:8])} if isinstance(value, bytes) else value)
    return {"results": results}


def main():
    """Answer the request."""
    request = json.load(sys.stdin)
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            answer = calls(request, folder) if "calls" in request else score(request, folder)
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
    json.dump(answer, output)
    output.flush()
    os._exit(0)


main()
