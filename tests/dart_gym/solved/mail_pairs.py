"""Pairs of Thunderbird, with a profile like the one in OSWorld's tasks: an account, and folders of this machine."""

from __future__ import annotations

import io
import json
import tarfile
from typing import Any

from tests.dart_gym.solved.solved_pairs import (
    HUB,
    IDLE,
    SolvedPair,
    click,
    download,
    judged,
    press,
    rule,
    step,
    typed,
    until,
    vm_file,
)

URL = f"{HUB}thunderbird/thunderbird-profile.tar.gz"
NAME = "t5q2a5hp.default-release"
FOLDER = f"/home/user/.thunderbird/{NAME}"
STORE = "@mozilla.org/msgstore/berkeleystore;1"
PREFERENCES: dict[str, Any] = {
    "mail.accountmanager.accounts": "account1,account2",
    "mail.accountmanager.defaultaccount": "account2",
    "mail.accountmanager.localfoldersserver": "server1",
    "mail.account.account1.server": "server1",
    "mail.account.account2.server": "server2",
    "mail.account.account2.identities": "id1",
    "mail.server.server1.type": "none",
    "mail.server.server1.hostname": "Local Folders",
    "mail.server.server1.userName": "nobody",
    "mail.server.server1.name": "Local Folders",
    "mail.server.server1.directory-rel": "[ProfD]Mail/Local Folders",
    "mail.server.server1.storeContractID": STORE,
    "mail.server.server2.type": "pop3",
    "mail.server.server2.hostname": "outlook.office365.com",
    "mail.server.server2.userName": "anonym",
    "mail.server.server2.name": "anonym",
    "mail.server.server2.directory-rel": "[ProfD]Mail/outlook.office365.com",
    "mail.server.server2.storeContractID": STORE,
    "mail.server.server2.login_at_startup": False,
    "mail.server.server2.check_new_mail": False,
    "mail.identity.id1.fullName": "Anonym",
    "mail.identity.id1.useremail": "anonym@outlook.example",
    "mail.identity.id1.valid": True,
}
PROFILES = f"""[InstallFDC34C9F024745EB]
Default={NAME}
Locked=1

[Profile0]
Name=default-release
IsRelative=1
Path={NAME}
Default=1

[General]
StartWithLastProfile=1
Version=2
"""


def profile() -> bytes:
    """The archive with the profile."""
    preferences = "".join(f"user_pref({json.dumps(key)}, {json.dumps(value)});\n" for key, value in PREFERENCES.items())
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, text in {"profiles.ini": PROFILES, f"{NAME}/prefs.js": preferences}.items():
            member = tarfile.TarInfo(f".thunderbird/{name}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return buffer.getvalue()


STARTED = [
    download(**{"/home/user/thunderbird-profile.tar.gz": URL}),
    step(
        "execute",
        command=[*"tar -xzv --recursive-unlink -f /home/user/thunderbird-profile.tar.gz -C /home/user/".split()],
    ),
    step("launch", command=["/usr/bin/thunderbird"]),
]
CLOSED = [
    step("close_window", window_name="Message Filters", strict=True),
    step("sleep", seconds=0.5),
    step("close_window", window_name="Mail.thunderbird", strict=True, by_class=True),
    step("sleep", seconds=0.5),
]

SETTINGS = SolvedPair(
    "mail/settings",
    judged(
        (
            *("check_thunderbird_filter", vm_file(f"{FOLDER}/Mail/outlook.office365.com/msgFilterRules.dat")),
            rule(
                expect=[
                    {
                        "enabled": "yes",
                        "action": "Move to folder",
                        "actionValue": "mailbox://nobody@Local%20Folders/Trash",
                        "condition": ["AND (subject,contains,discount)"],
                    }
                ]
            ),
        ),
        (
            *("check_json", vm_file(f"{FOLDER}/xulstore.json")),
            rule(
                expect=[
                    {
                        "key": ["chrome://messenger/content/messenger.xhtml", "folderTree", "mode"],
                        "method": "re",
                        "ref": r"\bsmart\b",
                    }
                ]
            ),
        ),
        (
            *("check_thunderbird_prefs", vm_file(f"{FOLDER}/prefs.js")),
            rule(expect={"mail.pane_config.dynamic": {"method": "eq", "ref": 1}}),
        ),
        postconfig=CLOSED,
    ),
    [
        *press("alt+v", "f", "u"),  # View, Folders, Unified Folders
        *press("esc", "esc", "esc", "alt+v", "l", "w"),  # View, Layout, Wide View
        click(945, 143),  # Manage message filters
        click(1272, 401, window="Message Filters"),  # New
        typed("Promotions", window="Filter Rules"),
        click(1169, 519),
        typed("discount"),
        click(1006, 673),  # Choose Folder, Local Folders, Trash
        *press("down", "down", "right", "enter"),
        click(1358, 832),
        until(gone="Filter Rules", idle=True),
    ],
    STARTED,
    {URL: profile},
    fresh=True,
)
TABS = 'application[name=Thunderbird] page-tab-list[attr|id="tabmail-tabs"]>page-tab'
PAGE = SolvedPair(
    "mail/page",
    judged(
        (
            *("check_accessibility_tree", {"type": "accessibility_tree"}),
            rule(),
        ),
    ),
    [*press("alt+h", "t"), until(**IDLE)],
    STARTED,
    {URL: profile},
)
PAGE.evaluator["expected"][0]["rules"] = [{"selectors": [f'{TABS}[name="Troubleshooting Information"]']}]

PAIRS = [SETTINGS, PAGE]
