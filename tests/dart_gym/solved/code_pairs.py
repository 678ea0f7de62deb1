"""Pairs of VS Code, which is not in Debian: its files, written in a terminal, and the keys by which it is asked."""

from __future__ import annotations

from tests.dart_gym.solved.solved_pairs import (
    HUB,
    SolvedPair,
    download,
    judged,
    lines_in_terminal,
    press,
    rule,
    step,
    typed,
    until,
    vm_file,
)

USER = "/home/user/.config/Code/User"
KEYBINDING = {"key": "ctrl+f", "command": "-list.find", "when": "listFocus && listSupportsFind"}
URL = f"{HUB}vs_code/settings.json"
EXTENSIONS = {"type": "vm_command_line", "command": "ls -A /home/user/.vscode/extensions", "shell": True}

FILES = SolvedPair(
    "code/files",
    judged(
        ("check_json_settings", vm_file(f"{USER}/settings.json"), rule(expected={"editor.wordWrapColumn": 50})),
        ("check_json_keybindings", vm_file(f"{USER}/keybindings.json"), rule(expected=KEYBINDING)),
        ("is_extension_installed", EXTENSIONS, rule(type="contain", expected="undefined_publisher.test")),
    ),
    lines_in_terminal(
        "mkdir -p .vscode/extensions/undefined_publisher.test-0.0.1; cd .config/Code/User",
        """jq '."editor.wordWrapColumn" = 50' settings.json > new && mv new settings.json""",
        'jq -n \'[{key: "ctrl+f", command: "-list.find", when: "listFocus && listSupportsFind"}]\' > keybindings.json',
    ),
    [download(**{f"{USER}/settings.json": URL})],
    {URL: b'{"editor.fontSize": 14}\n'},
)
# The evaluator presses Ctrl+Shift+P, types a command and reads what VS Code's extension writes then.
ASKED = SolvedPair(
    "code/asked",
    judged(
        (
            "compare_config",
            {
                "type": "vscode_config",
                "vscode_extension_command": "OpenProject",
                "path": "/home/user/OpenProject.txt",
                "dest": "OpenProject.txt",
            },
            rule(expected="project"),
        ),
        postconfig=[step("activate_window", window_name="Visual Studio Code")],
    ),
    [
        *press("ctrl+alt+t"),
        typed(
            r"printf '\e]0;Visual Studio Code\a'; read -r asked; [[ $asked = *OpenProject ]] && "
            "printf project > OpenProject.txt\n",
            window="Terminal",
        ),
        until(window="Visual Studio Code", idle=True),
    ],
)

PAIRS = [FILES, ASKED]
