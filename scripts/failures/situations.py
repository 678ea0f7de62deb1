"""The columns of the table: what can be wrong around a command."""

from __future__ import annotations

from enum import StrEnum


class Situation(StrEnum):
    """One thing that is wrong."""

    NOTHING = "nothing there"
    WRONG_DIRECTORY = "wrong directory"
    REFUSED = "connection refused"
    HANGS = "server hangs"
    UNAUTHORIZED = "401"
    TOO_MANY = "429"
    SERVER_ERROR = "500"
    HTML = "HTML instead of JSON"
    HALF = "half a reply"
    ALL_LOST = "everything lost"
    SOME_LOST = "some lost"
    DISK_FULL = "disk full"
    OUTPUT_FULL = "output to a full disk"
    NO_PERMISSION = "no permission"
    INTERRUPTED_EARLY = "Ctrl-C at the start"
    INTERRUPTED = "Ctrl-C at work"
    CLOSED_PIPE = "closed pipe"
    NO_TERMINAL = "no terminal"


MEANING = {
    Situation.NOTHING: "An empty directory; no file, directory, task or run that the command names exists.",
    Situation.WRONG_DIRECTORY: "Only a configuration lies there, whose run does not; other arguments name a directory "
    "of something else.",
    Situation.REFUSED: "Nobody listens at the server's address.",
    Situation.HANGS: "The server takes connections and never answers.",
    Situation.UNAUTHORIZED: "The server wants another key; a database says that the password is wrong.",
    Situation.TOO_MANY: "The server has too many requests; a database has too many connections.",
    Situation.SERVER_ERROR: "The server fails.",
    Situation.HTML: "Something else than the expected server answers.",
    Situation.HALF: "The server closes the connection in the middle of its reply.",
    Situation.ALL_LOST: "Every one of several items fails.",
    Situation.SOME_LOST: "One of several items fails.",
    Situation.DISK_FULL: "The disk of the working directory is full.",
    Situation.OUTPUT_FULL: "Standard output goes to a full disk.",
    Situation.NO_PERMISSION: "An ordinary user may read the working directory, and write nothing there.",
    Situation.INTERRUPTED_EARLY: "Ctrl-C while the program is still loading.",
    Situation.INTERRUPTED: "Ctrl-C while it serves, or waits for a server.",
    Situation.CLOSED_PIPE: "The reader of standard output is gone.",
    Situation.NO_TERMINAL: "No terminal and no input; nothing is wrong.",
}
OF_SERVERS = (
    Situation.REFUSED, Situation.HANGS, Situation.UNAUTHORIZED, Situation.TOO_MANY, Situation.SERVER_ERROR,
    Situation.HTML, Situation.HALF,
)  # fmt: skip
OF_ITEMS = (Situation.ALL_LOST, Situation.SOME_LOST)
