"""Pairs of the operating system: settings, times, and what a terminal shows."""

from __future__ import annotations

from tests.dart_gym.solved.solved_pairs import HUB, IDLE, SolvedPair, download, judged, press, rule, run, typed, until

# What `timedatectl` says without systemd, of the zone that the user's own programs are told.
ZONE = r"""cd; . ./.profile; printf 'Local time:\nUniversal time:\nRTC time:\n'; date '+Time zone: %Z (%Z, %z)'"""
SCRIPT_URL = f"{HUB}os/eval.sh"
FAVORITES = "gsettings get org.gnome.shell favorite-apps"

SETTINGS = SolvedPair(
    "os/settings",
    judged(
        (
            "check_gnome_favorite_apps",
            {
                "type": "vm_command_line",
                "command": f"export DBUS_SESSION_BUS_ADDRESS='unix:path=/run/user/1000/bus'\n{FAVORITES}",
                "shell": True,
            },
            rule(expected=["google-chrome.desktop", "thunderbird.desktop"]),
        ),
        ("is_utc_0", {"type": "vm_command_line", "command": ZONE, "shell": True}, None),
        ("check_include_exclude", {"type": "vm_terminal_output"}, rule(include=["43 132"], exclude=["bash: "])),
        (
            *("exact_match", {"type": "vm_command_line", "command": "bash /home/user/eval.sh", "shell": True}),
            rule(expected="0600\n"),
        ),
        (
            *("match_in_list", {"type": "vm_command_line", "command": "cat .zone", "shell": True}),
            rule(expected=["Etc/UTC\n", "UTC\n"]),
        ),
        postconfig=[download(**{"/home/user/eval.sh": SCRIPT_URL})],
    ),
    [
        *press("ctrl+alt+t"),
        typed(
            "gsettings set org.gnome.shell favorite-apps \"['google-chrome.desktop', 'thunderbird.desktop']\"\n"
            "echo export TZ=UTC >> .profile; echo UTC > .zone; chmod 600 secret; echo $((40 + 3)) $((130 + 2))\n",
            window="Terminal",
        ),
        until(command="test $(stat -c %a secret) = 600", **IDLE),
    ],
    [
        run(
            "cd; echo export TZ=Asia/Tokyo > .profile; echo Asia/Tokyo > .zone; touch secret; chmod 644 secret; "
            "gsettings set org.gnome.shell favorite-apps "
            "\"['google-chrome.desktop', 'thunderbird.desktop', 'vim.desktop']\""
        )
    ],
    {SCRIPT_URL: b"stat -c %04a /home/user/secret\n"},
    quick=True,
)

PAIRS = [SETTINGS]
