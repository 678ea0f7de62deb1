"""Pairs of VLC: a film that is played over the whole screen, and settings."""

from __future__ import annotations

from functools import partial

from tests.dart_gym.solved import media
from tests.dart_gym.solved.solved_pairs import (
    DESKTOP,
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
)

FILM = "Rick Astley - Never Gonna Give You Up (Official Music Video).mp4"
URL = f"{HUB}vlc/film.mp4"
START = step("launch", command="VLC_VERBOSE=-1 vlc --no-audio --no-video-title-show", shell=True)
STATUS = "curl -s -u :password http://localhost:8080/requests/status.xml"

PLAYED = SolvedPair(
    "vlc/played",
    judged(
        (
            *("is_vlc_playing", {"type": "vlc_playing_info", "dest": "status.xml"}),
            rule(type="file_name", file_name=FILM),
        ),
        ("is_vlc_fullscreen", {"type": "vm_screen_size"}, {"type": "vm_window_size", "app_class_name": "vlc"}),
    ),
    [
        *press("ctrl+o"),
        typed(f"{DESKTOP}/{FILM}\n", window="Select"),
        until(command=f"{STATUS} | grep -q '<state>playing'"),
        {"kind": "press", "keys": ["f"]},
        until(command="wmctrl -lGx | grep -Eq ' 1920 +1080 +vlc.vlc'"),
    ],
    [download(**{f"{DESKTOP}/{FILM}": URL}), START],
    {URL: partial(media.film, seconds=300)},
)

VLCRC = {"type": "vlc_config", "dest": "vlcrc"}
SETTINGS = SolvedPair(
    "vlc/settings",
    judged(
        ("check_global_key_play_pause", VLCRC, rule(expected_global_key_play_pause=1)),
        ("check_one_instance_when_started_from_file", VLCRC, rule(expected_one_instance_when_started_from_file=0)),
        ("check_qt_max_volume", VLCRC, rule(expected_qt_max_volume=200)),
        ("check_qt_minimal_view", VLCRC, rule(expected_qt_minimal_view=1)),
        ("is_vlc_recordings_folder", VLCRC, rule(recording_file_path=DESKTOP)),
        postconfig=[step("launch", command=["pkill", "vlc"]), START],
    ),
    lines_in_terminal(
        r"printf '[core]\nglobal-key-play-pause=Ctrl+p\none-instance-when-started-from-file=0\n' >> .config/vlc/vlcrc",
        rf"printf 'input-record-path={DESKTOP}\n[qt]\nqt-max-volume=200\nqt-minimal-view=1\n' >> .config/vlc/vlcrc",
    ),
    [START],
)

PAIRS = [PLAYED, SETTINGS]
