"""Which programs a command needs. Pure: it follows functions, variables and guards of a shell line, and runs nothing.

The answer is a set of needs, each a set of programs of which one is enough: `a || b` needs a or b. Where only files or
values decide what runs (`[ -f x ] || b`, `case`), all of it counts. Not needed are
builtins, functions and aliases, files that the task brings, names that only a running shell knows, and programs whose
absence the script looks for (`command -v`, `which`, `type`, `[ -x ... ]`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from dart_gym.tasks.requirements.shell_syntax import parse
from dart_gym.tasks.requirements.shell_tree import Command, Compound, Function, If, Script, Simple

Needs: TypeAlias = frozenset[frozenset[str]]

NOTHING: Needs = frozenset()
_BUILTINS = frozenset(
    "[ [[ ! { } ( ) : . alias bg bind break builtin caller cd command compgen complete continue declare dirs disown "
    "echo enable eval exec exit export false fc fg getopts hash help history jobs let local logout mapfile popd printf "
    "pushd pwd read readarray readonly return set shift shopt source suspend test time times trap true type typeset "
    "ulimit umask unalias unset wait".split()
)
_FAILING = frozenset({"false", "exit", "return"})
_DECLARING = frozenset({"export", "declare", "local", "readonly", "typeset"})
_SHELLS = frozenset({"sh", "bash", "dash"})
"""Every desktop has them."""
_TESTING = frozenset({"grep", "pgrep", "pidof", "diff", "cmp", "test", "[", "[["})
"""Commands that fail in the ordinary course of things."""
_GUARDS = frozenset({"which", "type", "hash"})
_WRAPPERS = {
    # program: options that take a value, and how many words go before the command
    "sudo": ("ugphCrtTUDR", 0),
    "doas": ("uC", 0),
    "pkexec": ("", 0),
    "env": ("uCS", 0),
    "timeout": ("ks", 1),
    "nohup": ("", 0),
    "nice": ("n", 0),
    "ionice": ("cnp", 0),
    "chrt": ("", 1),
    "setsid": ("", 0),
    "stdbuf": ("ioe", 0),
    "xargs": ("IdELnPsa", 0),
    "xvfb-run": ("nsefpw", 0),
    "dbus-run-session": ("", 0),
    "dbus-launch": ("", 0),
    "flock": ("wE", 1),
    "chroot": ("", 1),
    "strace": ("aeEIoOpPsSuX", 0),
    "taskset": ("", 1),
    "runuser": ("ugGs", 0),
    "exec": ("a", 0),
    "command": ("", 0),
    "builtin": ("", 0),
    "time": ("fo", 0),
}
"""Commands whose argument is a command."""
_OF_ONE_TEXT = {"flock": "-c", "script": "-c", "env": "-S", "trap": ""}
"""Commands of which one argument may be a whole command line: the option before it, or "" for the first one."""
_LONG_WITH_VALUE = frozenset({"--user", "--signal", "--kill-after", "--group", "--unset", "--chdir", "--server-args"})
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[[^]]*\])?\+?=(.*)", re.S)
_NAME = re.compile(r"[A-Za-z0-9_][\w.+-]*")
_MOST_CALLS = 6  # of functions, aliases and scripts within each other


@dataclass(frozen=True, slots=True)
class Commands:
    """What a command line runs: the programs that it needs, and its commands with the arguments that are known."""

    needs: Needs = NOTHING
    calls: tuple[tuple[str, ...], ...] = ()


def of_script(text: str) -> Commands:
    """Return what a shell's script runs."""
    reading = _Reading()
    needs = reading.script(parse(text))
    return Commands(needs, tuple(reading.calls))


def of_words(words: Sequence[str]) -> Commands:
    """Return what a program with its arguments, which no shell reads, runs."""
    reading = _Reading()
    needs = reading.words(list(words))
    return Commands(needs, tuple(reading.calls))


def without(needs: Needs, names: Iterable[str]) -> Needs:
    """Return the needs that none of these programs satisfies."""
    known = frozenset(names)
    return frozenset(need for need in needs if not need & known)


def either(one: Needs, other: Needs) -> Needs:
    """Return the needs of two alternatives."""
    return frozenset(a | b for a in one for b in other)


class _Reading:
    """One pass over a script, in the order in which it runs."""

    def __init__(self) -> None:
        self._variables: dict[str, str] = {}
        self._functions: dict[str, Script] = {}
        self._aliases: dict[str, str] = {}
        self._guarded: set[str] = set()
        self._depth = 0
        self.calls: list[tuple[str, ...]] = []

    def script(self, script: Script) -> Needs:
        """Return the needs of a script, guards left out."""
        return without(self._script(script), self._guarded)

    def words(self, words: list[str | None]) -> Needs:
        """Return the needs of a command's words, guards left out."""
        return without(self._words(words, None), self._guarded)

    def _script(self, script: Script) -> Needs:
        found = NOTHING
        for pipelines in script.lists:
            # of the list so far
            needs = NOTHING
            known = set(self._guarded)
            done = list[list[Command]]()
            for operator, commands in pipelines:
                own = frozenset().union(*(self._command(command) for command in commands))
                if operator == "||" and _fails(commands):  # `command -v a || exit 1`
                    wanted = self._guarded - known
                    self._guarded -= wanted
                    needs = needs.union(*(_need(name) for name in wanted))
                elif operator == "||" and _is_alternative(done, bool(needs or self._guarded - known)):
                    needs = either(needs, own)
                else:
                    needs |= own
                done.append(commands)
            found |= needs
        return found

    def _command(self, command: Command) -> Needs:
        if isinstance(command, Simple):
            return self._simple(command)
        if isinstance(command, Compound):
            return frozenset().union(*(self._script(part) for part in command.parts))
        if isinstance(command, Function):
            self._functions[command.name] = command.body
            return NOTHING
        return self._if(command)

    def _if(self, command: If) -> Needs:
        found, alternatives = NOTHING, []
        guarded = len(self._guarded)
        for condition, script in command.arms:
            known = set(self._guarded)
            found |= self._script(condition)
            alternatives.append(self._script(script))
            if _is_negated(condition) and script.lists and _fails(script.lists[-1][-1][1]):  # `if ! which a; then exit`
                wanted = self._guarded - known
                self._guarded -= wanted
                found = found.union(*(_need(name) for name in wanted))
        last = self._script(command.otherwise) if command.otherwise else NOTHING
        if len(self._guarded) == guarded:
            return found.union(last, *alternatives)
        for needs in alternatives:  # one arm is for machines that have something, another for those that do not
            last = either(needs, last)
        return found | last

    def _simple(self, command: Simple) -> Needs:
        scripts = [script for word in command.words for script in word.scripts] + command.scripts
        found: Needs = frozenset().union(*(self._script(script) for script in scripts))
        words = [word.text(self._variables) for word in command.words]
        while words and words[0] is not None and (assigned := _ASSIGNMENT.fullmatch(words[0])):
            self._variables[assigned[1]] = assigned[2]
            words = words[1:]
        for word, text in zip(command.words, words, strict=False):  # A=$(x), whose value only the shell knows
            if text is None and word.parts[0][0] == "text" and (assigned := _ASSIGNMENT.match(word.parts[0][1])):
                self._variables.pop(assigned[1], None)
                words = words[1:]
            else:
                break
        return found | self._words(words, command.input)

    def _words(self, words: list[str | None], stdin: str | None) -> Needs:
        """Return what the words of one command need; None stands for one that only the shell knows."""
        if not words or not words[0]:
            return NOTHING
        first, rest = words[0], words[1:]
        name = os.path.basename(first)
        self.calls.append((name, *(word or "" for word in rest)))
        if first in self._functions:
            return self._called(self._functions[first])
        if first in self._aliases:
            return self._nested(" ".join([self._aliases[first], *(word or '""' for word in rest)]))
        if self._is_guard(first, rest):
            return NOTHING
        if first == "eval":
            return NOTHING if None in rest else self._nested(" ".join(word or "" for word in rest))
        if first == "alias":
            self._aliases |= dict(word.split("=", 1) for word in rest if word and "=" in word)
        elif first in _DECLARING:
            for word in rest:
                if word and (assigned := _ASSIGNMENT.fullmatch(word)):
                    self._variables[assigned[1]] = assigned[2]
        is_builtin = "/" not in first and name in _BUILTINS
        own = NOTHING if is_builtin or name in _SHELLS or _is_brought(first) else _need(name)
        return own if _is_brought(first) else own | self._of_arguments(name, rest, stdin)

    def _of_arguments(self, name: str, words: list[str | None], stdin: str | None) -> Needs:
        """Return what the command needs that a command's arguments hold, if any."""
        if name in _SHELLS:
            return self._of_shell(words, stdin)
        if name == "su":
            return self._of_shell([word for word in words if word != "-"], None)
        if name == "find":
            return self._of_find(words)
        if (text := _line_among(name, words)) is not None:
            return self._nested(text)
        return self._words(_wrapped(name, words), stdin) if name in _WRAPPERS else NOTHING

    def _nested(self, text: str) -> Needs:
        return self._called(parse(text))

    def _called(self, script: Script) -> Needs:
        if self._depth >= _MOST_CALLS:
            return NOTHING  # it calls itself
        self._depth += 1
        try:
            return self._script(script)
        finally:
            self._depth -= 1

    def _is_guard(self, first: str, rest: list[str | None]) -> bool:
        """Return whether a command only asks for a program; notes which one."""
        names: list[str | None] = []
        if first == "command" and rest[:1] and rest[0] in ("-v", "-V"):
            names = rest[1:]
        elif first in _GUARDS:
            names = [word for word in rest if word and not word.startswith("-")]
        elif first in ("[", "[[", "test") and "-x" in rest[:-1]:
            names = rest[rest.index("-x") + 1 :][:1]
        self._guarded |= {os.path.basename(name) for name in names if name}
        return bool(names) or first in ("hash", "type")

    def _of_shell(self, words: list[str | None], stdin: str | None) -> Needs:
        """Return the needs of what `sh` is to run: after -c, or what it reads."""
        for number, word in enumerate(words):
            if word is not None and re.fullmatch(r"-\w*c|--command", word):
                script = words[number + 1] if number + 1 < len(words) else None
                return self._nested(script) if script else NOTHING
        reads = stdin is not None and all(word is not None and word.startswith("-") for word in words)
        return self._nested(stdin) if reads and stdin else NOTHING

    def _of_find(self, words: list[str | None]) -> Needs:
        found = NOTHING
        for number, word in enumerate(words):
            if word in ("-exec", "-execdir", "-ok"):
                found |= self._words(words[number + 1 :], None)
        return found


def _fails(commands: list[Command]) -> bool:
    """Return whether a pipeline only says that something has failed: no alternative to it."""
    return all(
        isinstance(one, Simple)
        and bool(one.words)
        and one.words[0].keyword in _FAILING
        or isinstance(one, Compound)
        and any(_fails(list_[-1][1]) for part in one.parts for list_ in part.lists[-1:])
        for one in commands
    )


def _is_negated(condition: Script) -> bool:
    """Return whether a condition is one command behind a `!`, or a test for the empty output of one."""
    commands = [command for pipelines in condition.lists for _, pipeline in pipelines for command in pipeline]
    if len(commands) != 1 or not isinstance(commands[0], Simple):
        return False
    words = [word.keyword for word in commands[0].words]
    return commands[0].negated != (words[:1] in (["["], ["[["], ["test"]) and words[1:2] == ["-z"])


def _is_alternative(done: list[list[Command]], has_needs: bool) -> bool:
    """Return whether what stands behind `||` only runs where a program is missing, or never."""
    firsts = {one.words[0].keyword for commands in done for one in commands if isinstance(one, Simple) and one.words}
    return (has_needs and firsts.isdisjoint(_TESTING)) or all(map(_succeeds, done))


def _succeeds(commands: list[Command]) -> bool:
    """Return whether a pipeline never fails, so that what stands behind `||` never runs."""
    last = commands[-1] if commands else None
    return isinstance(last, Simple) and bool(last.words) and last.words[0].keyword in ("true", ":", "echo", "printf")


def _line_among(name: str, words: list[str | None]) -> str | None:
    """Return the command line that is an argument of a command; None where there is none."""
    option = _OF_ONE_TEXT.get(name)
    if option == "":
        return words[0] if words and words[0] and words[0] != "-" and not words[0].startswith("-") else None
    for number, word in enumerate(words):
        if option is not None and word is not None and re.fullmatch(rf"-\w*{option[1]}", word):
            return " ".join(word or '""' for word in words[number + 1 :][: None if name == "env" else 1])
    return None


def _need(name: str) -> Needs:
    return frozenset({frozenset({name})}) if _NAME.fullmatch(name) else NOTHING


def _is_brought(first: str) -> bool:
    """Return whether a command is a file that the task itself brought."""
    return "/" in first and not first.startswith(("/usr/", "/bin/", "/sbin/", "/opt/", "/snap/"))


def _wrapped(name: str, words: list[str | None]) -> list[str | None]:
    """Return the command among the arguments of a wrapper."""
    with_value, skipped = _WRAPPERS[name]
    while words and (word := words[0]) is not None:
        if word == "--":
            words = words[1:]
            break
        if word.startswith("-") and word != "-":
            takes = word in _LONG_WITH_VALUE or (
                not word.startswith("--") and word[-1] in with_value and len(word) == 2
            )
            words = words[2:] if takes else words[1:]
        elif name in ("env", "sudo", "doas") and _ASSIGNMENT.fullmatch(word):
            words = words[1:]
        elif skipped:
            words, skipped = words[1:], skipped - 1
        else:
            break
    return words
