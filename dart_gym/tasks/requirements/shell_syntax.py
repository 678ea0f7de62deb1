"""A shell line as a tree: which commands it holds, and where. Pure; nothing is run or expanded.

It reads what `sh` and `bash` read: quotes, substitutions, arithmetic, here-documents, redirections, functions, compound
commands. An incomplete script gives what was read before it broke off: the shell itself will complain.
"""

from __future__ import annotations

from dart_gym.tasks.requirements.shell_tree import Command, Compound, Function, If, Script, Simple, Word

_OPERATORS = tuple("&& || ;;& ;; ;& |& &>> &> <<< <<- << <& <> <( >> >& >| >( (( & | ; ( ) < >".split()) + ("\n",)
"""Those that begin others come after them."""
_DEEPEST = 24  # of commands within commands
_REDIRECTIONS = frozenset({"<", ">", ">>", "<<", "<<-", "<<<", "<&", ">&", "<>", ">|", "&>", "&>>"})
_SEPARATORS = frozenset({";", "&", "\n"})
_ENDS_OF_ARM = frozenset({";;", ";&", ";;&"})
_CLOSING = frozenset("then do done fi else elif esac } )".split()) | _ENDS_OF_ARM


def parse(text: str) -> Script:
    """Return a script's commands."""
    reader = _Reader(text.replace("\\\n", ""))
    script = Script()
    try:
        while True:
            reader.script(script)
            if reader.token() is None:
                return script
            reader.take()  # a stray ")" or "done": the shell stops there
    except _EndOfScript:
        return script


class _EndOfScript(Exception):
    """The text ended too early, or no shell would accept it."""


class _Reader:
    """Recursive descent over the characters of a script."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = self._depth = 0
        self._has_patterns = "extglob" in text
        self._ahead: str | Word | None = None
        self._waiting: list[tuple[Simple, Word, bool]] = []  # here-documents that begin at the next line

    # --- tokens

    def token(self) -> str | Word | None:
        """Return the next token, an operator or a word, without taking it; None at the end."""
        if self._ahead is None:
            self._ahead = self._next_token()
        return self._ahead

    def take(self) -> str | Word | None:
        """Return the next token, and go on behind it."""
        found, self._ahead = self.token(), None
        return found

    def _next_token(self) -> str | Word | None:
        text = self._text
        while self._at < len(text) and text[self._at] in " \t\r":
            self._at += 1
        if self._at < len(text) and text[self._at] == "#":
            end = text.find("\n", self._at)
            self._at = len(text) if end < 0 else end
        if self._at >= len(text):
            return None
        operator = next((one for one in _OPERATORS if text.startswith(one, self._at)), None)
        if operator in ("<(", ">("):
            return self._word()
        if operator is None:
            return self._word()
        self._at += len(operator)
        if operator == "\n":
            self._here_documents()
        return operator

    def _word(self) -> Word:
        word, text = Word(), self._text
        while self._at < len(text):
            char = text[self._at]
            if text.startswith(("<(", ">("), self._at):
                self._at += 2
                self._substitution(word)
            elif char in " \t\r\n;&|<>()" and not self._is_pattern_group(word):
                break
            elif char == "'":
                end = self._find("'", self._at + 1)
                self._add(word, text[self._at + 1 : end], plain=False)
                self._at = end + 1
            elif char == '"':
                self._at += 1
                self._double_quoted(word, '"')
            elif char == "\\":
                self._add(word, text[self._at + 1 : self._at + 2], plain=False)
                self._at += 2
            elif char in "$`":
                self._expansion(word)
            else:
                self._add(word, char)
                self._at += 1
        return word

    def _is_pattern_group(self, word: Word) -> bool:
        """Return whether a parenthesis belongs to the word: to an array, `a=(b c)`, or to an extglob, `!(a|b)`."""
        before = word.keyword
        is_array = before.endswith("=") and before[:-1].strip("+").isidentifier()
        is_pattern = self._has_patterns and before.endswith(("?", "*", "+", "@", "!"))
        if self._text[self._at] != "(" or not (is_array or is_pattern):
            return False
        depth, start = 0, self._at
        while self._at < len(self._text):
            depth += {"(": 1, ")": -1}.get(self._text[self._at], 0)
            self._at += 1
            if depth == 0:
                self._at -= 1
                self._add(word, "", plain=False)
                word.parts.append(("unknown", ""))
                self._at += 1
                return self._at < len(self._text) and self._text[self._at] not in " \t\r\n;&|<>()"
        self._at = start
        raise _EndOfScript

    @staticmethod
    def _add(word: Word, text: str, *, plain: bool = True) -> None:
        word.plain = word.plain and plain
        if word.parts and word.parts[-1][0] == "text":
            text = word.parts.pop()[1] + text
        word.parts.append(("text", text))

    def _find(self, what: str, start: int) -> int:
        found = self._text.find(what, start)
        if found < 0:
            raise _EndOfScript
        return found

    def _double_quoted(self, word: Word, end: str) -> None:
        word.plain = False
        self._add(word, "", plain=False)
        while True:
            if self._at >= len(self._text):
                raise _EndOfScript
            char = self._text[self._at]
            if char == end:
                self._at += 1
                return
            if char == "\\":
                following = self._text[self._at + 1 : self._at + 2]
                self._add(word, following if following in ('"', "\\", "$", "`") else char + following, plain=False)
                self._at += 2
            elif char in "$`":
                self._expansion(word)
            else:
                self._add(word, char, plain=False)
                self._at += 1

    # --- expansions

    def _expansion(self, word: Word) -> None:
        text, word.plain = self._text, False
        if text[self._at] == "`":
            end = self._at + 1
            while end < len(text) and text[end] != "`":
                end += 2 if text[end] == "\\" else 1
            if end >= len(text):
                raise _EndOfScript
            word.scripts.append(parse(text[self._at + 1 : end].replace("\\`", "`")))
            word.parts.append(("unknown", ""))
            self._at = end + 1
        elif text.startswith("$((", self._at) and self._arithmetic(word, self._at + 3):
            return
        elif text.startswith("$(", self._at):
            self._at += 2
            self._substitution(word)
        elif text.startswith("$[", self._at):  # an older spelling of arithmetic
            self._at = self._find("]", self._at) + 1
            word.parts.append(("unknown", ""))
        elif text.startswith("${", self._at):
            self._braced(word)
        elif text.startswith("$'", self._at):
            end = self._at + 2
            while end < len(text) and text[end] != "'":
                end += 2 if text[end] == "\\" else 1
            self._add(word, text[self._at + 2 : end], plain=False)
            self._at = end + 1
        elif text.startswith('$"', self._at):
            self._at += 2
            self._double_quoted(word, '"')
        else:
            self._variable(word)

    def _variable(self, word: Word) -> None:
        end = self._at + 1
        while end < len(self._text) and (self._text[end].isalnum() or self._text[end] == "_"):
            end += 1
        name = self._text[self._at + 1 : end]
        if name.isidentifier():
            word.parts.append(("variable", name))
        elif self._text[end : end + 1] in tuple("?!#@*$-") and not name:
            word.parts.append(("unknown", ""))
            end += 1
        elif name:  # $1
            word.parts.append(("unknown", ""))
            end = self._at + 2
        else:
            self._add(word, "$")
        self._at = end

    def _substitution(self, word: Word) -> None:
        """Read `$(...)` behind its parenthesis."""
        ahead, self._ahead = self._ahead, None
        waiting, self._waiting = self._waiting, []
        script = self.script(Script())
        if self.take() != ")":
            raise _EndOfScript
        self._ahead, self._waiting = ahead, waiting
        word.scripts.append(script)
        word.parts.append(("unknown", ""))
        word.plain = False

    def _arithmetic(self, word: Word | None, start: int) -> bool:
        """Read `((...))` from behind its parentheses; False where it is a subshell in a substitution after all."""
        depth, at = 2, start
        text = self._text
        inner = Word()
        while at < len(text):
            if text[at] in "$`" and not text.startswith("$(", at):
                at += 1
                continue
            if text[at] == ")" and depth == 2:
                if not text.startswith("))", at):
                    return False
                self._at = at + 2
                if word is not None:
                    word.parts.append(("unknown", ""))
                    word.scripts += inner.scripts
                return True
            if text.startswith("$(", at):
                before, self._at = self._at, at
                self._expansion(inner)
                at, self._at = self._at, before
                continue
            depth += {"(": 1, ")": -1}.get(text[at], 0)
            at += 1
        raise _EndOfScript

    def _braced(self, word: Word) -> None:
        """Read `${...}`, with the substitutions in it."""
        start = self._at = self._at + 2
        inner = Word()
        while True:
            if self._at >= len(self._text):
                raise _EndOfScript
            char = self._text[self._at]
            if char == "}":
                break
            if char == "\\":
                self._at += 2
            elif char in "$`":
                self._expansion(inner)
            elif char == "'":
                self._at = self._find("'", self._at + 1) + 1
            elif char == '"':
                self._at += 1
                self._double_quoted(inner, '"')
            else:
                self._at += 1
        name = self._text[start : self._at]
        self._at += 1
        word.scripts += inner.scripts
        word.parts.append(("variable", name) if name.isidentifier() else ("unknown", ""))

    # --- here-documents

    def _here_documents(self) -> None:
        """Read the documents that were announced in the line that has just ended."""
        for command, mark, indented in self._waiting:
            end, lines = mark.text({}) or "", []
            while self._at < len(self._text):
                newline = self._text.find("\n", self._at)
                newline = len(self._text) if newline < 0 else newline
                line = self._text[self._at : newline]
                self._at = min(newline + 1, len(self._text))
                line = line.lstrip("\t") if indented else line
                if line == end:
                    break
                lines.append(line)
            command.input = "".join(f"{line}\n" for line in lines)
            if mark.plain:  # what is not quoted is expanded
                command.scripts += _substitutions(command.input)
        self._waiting = []

    # --- commands

    def script(self, script: Script) -> Script:
        """Read lists of commands up to a closing token, which is left."""
        self._depth += 1
        if self._depth > _DEEPEST:
            raise _EndOfScript
        self._lists(script)
        self._depth -= 1
        return script

    def _lists(self, script: Script) -> None:
        while True:
            while self.token() in _SEPARATORS:
                self.take()
            if self._closes():
                return
            pipelines: list[tuple[str, list[Command]]] = []
            script.lists.append(pipelines)
            operator = ""
            while True:
                commands: list[Command] = []
                pipelines.append((operator, commands))
                self._pipeline(commands)
                following = self.token()
                if following not in ("&&", "||"):
                    break
                operator = str(self.take())
                self._skip_newlines()

    def _closes(self) -> bool:
        token = self.token()
        return token is None or (token if isinstance(token, str) else token.keyword) in _CLOSING

    def _skip_newlines(self) -> None:
        while self.token() == "\n":
            self.take()

    def _pipeline(self, commands: list[Command]) -> None:
        while True:
            negated = False
            while isinstance(token := self.token(), Word) and token.keyword in ("!", "time"):
                self.take()
                negated ^= token.keyword == "!"
                if isinstance(option := self.token(), Word) and option.keyword == "-p":
                    self.take()
            self._command(commands)
            if commands and isinstance(commands[-1], Simple):
                commands[-1].negated = negated
            if self.token() not in ("|", "|&"):
                return
            self.take()
            self._skip_newlines()

    def _command(self, commands: list[Command]) -> None:
        token = self.token()
        if isinstance(token, str):
            if token in ("(", "(("):
                self.take()
                commands.append(self._parenthesis(token))
                self._redirections(commands)
            elif token in _REDIRECTIONS:
                commands.append(self._simple())
            else:
                self.take()  # a syntax error
            return
        if token is None or self._closes():
            return
        keyword = token.keyword
        if keyword in _COMPOUNDS:
            self.take()
            commands.append(_COMPOUNDS[keyword](self))
            self._redirections(commands)
        else:
            commands.append(self._simple())

    def _parenthesis(self, token: str) -> Command:
        if token == "((":
            inner = Word()
            if self._arithmetic(inner, self._at):
                return Compound(inner.scripts)
            self._at -= 1  # two subshells
        return Compound([self._closed(")")])

    def _closed(self, *ends: str) -> Script:
        """Read a script up to one of these tokens, which is taken."""
        script = self.script(Script())
        token = self.take()
        if (token.keyword if isinstance(token, Word) else token) not in ends:
            raise _EndOfScript
        return script

    def _redirections(self, commands: list[Command]) -> None:
        """Read what follows a compound command; substitutions in it stand in a command without words."""
        while self.token() in _REDIRECTIONS:
            commands.append(command := Simple([]))
            self._redirection(command)

    def _redirection(self, command: Simple) -> None:
        operator, target = self.take(), self.token()
        if not isinstance(target, Word):
            return
        self.take()
        command.scripts += target.scripts
        if operator in ("<<", "<<-"):
            self._waiting.append((command, target, operator == "<<-"))
        elif operator == "<<<":
            command.input = target.text({})

    def _simple(self) -> Command:
        command = Simple([])
        while True:
            token = self.token()
            if isinstance(token, str) and token in _REDIRECTIONS:
                if (
                    command.words
                    and command.words[-1].keyword.isdigit()
                    and self._text[self._at - len(token) - 1].isdigit()
                ):
                    command.words.pop()  # the number of what is redirected
                self._redirection(command)
            elif isinstance(token, Word):
                self.take()
                command.words.append(token)
                if token.keyword == "[[" and len(command.words) == 1:
                    self._condition(command)
            elif token == "(" and len(command.words) == 1 and command.words[0].plain:
                self.take()
                if self.take() != ")":
                    raise _EndOfScript
                return self._function(command.words[0].keyword)
            else:
                return command

    def _condition(self, command: Simple) -> None:
        """Read `[[ ... ]]`, in which operators are words."""
        while True:
            token = self.take()
            if token is None:
                raise _EndOfScript
            if isinstance(token, Word):
                command.words.append(token)
                if token.keyword == "]]":
                    return

    def _function(self, name: str) -> Command:
        self._skip_newlines()
        commands: list[Command] = []
        self._command(commands)
        return Function(name, Script([[("", commands)]]))

    def _named_function(self) -> Command:
        token = self.take()
        name = token.keyword if isinstance(token, Word) else ""
        if self.token() == "(":
            self.take()
            self.take()
        return self._function(name)

    def _if(self) -> Command:
        arms, otherwise = [], None
        end = "elif"
        while end == "elif":
            condition = self._closed("then")
            script = self.script(Script())
            arms.append((condition, script))
            token = self.take()
            end = token.keyword if isinstance(token, Word) else ""
        if end == "else":
            otherwise = self._closed("fi")
        elif end != "fi":
            raise _EndOfScript
        return If(arms, otherwise)

    def _loop(self) -> Command:
        return Compound([self._closed("do"), self._closed("done")])

    def _for(self) -> Command:
        words: list[Word] = []
        if self.token() == "((":
            self.take()
            self._parenthesis("((")
        while isinstance(token := self.token(), Word) and token.keyword != "do":
            words.append(token)
            self.take()
        self._skip_separators()
        token = self.take()
        if not isinstance(token, Word) or token.keyword not in ("do", "{"):
            raise _EndOfScript
        body = self._closed("done" if token.keyword == "do" else "}")
        return Compound([*(script for word in words for script in word.scripts), body])

    def _skip_separators(self) -> None:
        while self.token() in _SEPARATORS:
            self.take()

    def _case(self) -> Command:
        subject = self.take()
        parts = list(subject.scripts) if isinstance(subject, Word) else []
        self._skip_newlines()
        self.take()  # in
        while True:
            self._skip_separators()
            token = self.take()
            if token is None:
                raise _EndOfScript
            if isinstance(token, Word) and token.keyword == "esac":
                return Compound(parts)
            while token != ")":
                if token is None:
                    raise _EndOfScript
                token = self.take()
            parts.append(self.script(Script()))
            if self.token() in _ENDS_OF_ARM:
                self.take()

    def _group(self) -> Command:
        return Compound([self._closed("}")])

    def _coprocess(self) -> Command:
        """Read what follows `coproc`: a command, or a name and a compound command."""
        commands: list[Command] = []
        token = self.token()
        if isinstance(token, Word) and token.keyword.isidentifier() and token.keyword not in _COMPOUNDS:
            self.take()
            following = self.token()
            if not (following == "(" or isinstance(following, Word) and following.keyword in _COMPOUNDS):
                command = self._simple()
                assert isinstance(command, Simple)  # the type checker cannot see that no "()" follows
                command.words.insert(0, token)
                return Compound([Script([[("", [command])]])])
        self._command(commands)
        return Compound([Script([[("", commands)]])])


_COMPOUNDS = {
    "if": _Reader._if,
    "while": _Reader._loop,
    "until": _Reader._loop,
    "for": _Reader._for,
    "select": _Reader._for,
    "case": _Reader._case,
    "{": _Reader._group,
    "function": _Reader._named_function,
    "coproc": _Reader._coprocess,
}


def _substitutions(text: str) -> list[Script]:
    """Return the command substitutions in the text of a here-document."""
    reader, word = _Reader(text.replace('"', " ")), Word()
    try:
        reader._double_quoted(word, '"')
    except _EndOfScript:
        pass  # a here-document has no closing quote
    return word.scripts
