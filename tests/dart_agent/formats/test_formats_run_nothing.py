"""No format runs anything of what a model wrote: payloads in every shape, watched by Python's audit hook."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import dart_agent.formats
from dart_agent.formats import formats, get_format, variants
from dart_agent.formats.grammar.element_actions import Ungrounded
from dart_gym.core import actions as a
from dart_gym.core.keysyms import keysym_meaning

SIZE = (1920, 1080)
NAMES = [name for base in formats() for name in (base, *(f"{base}:{variant}" for variant in variants(base)))]
CHOSEN = {name: get_format(name) for name in NAMES}  # made before anything is watched: plug-ins are looked for then
MARK = "formats_were_here"
PAYLOADS = [
    f"__import__('os').system('touch {MARK}')",
    f"''' + __import__('os').system('touch {MARK}') + '''",
    f"'''\nimport os\nos.system('touch {MARK}')\n'''",
    f"(lambda: open('{MARK}', 'w'))()",
    f"f\"{{open('{MARK}', 'w')}}\"",
    f"[open('{MARK}', 'w') for _ in (1,)]",
    f"().__class__.__bases__[0].__subclasses__()[0]('{MARK}')",
    f"open('{MARK}', 'w')",
    f"eval(\"open('{MARK}', 'w')\")",
    f"exec(\"open('{MARK}', 'w')\")",
    f"(x := open('{MARK}', 'w'))",
    f"'{{0.__class__}}'.format(open('{MARK}', 'w'))",
    f"__builtins__.open('{MARK}', 'w')",
    f"print(open('{MARK}', 'w'), file=open('{MARK}', 'w'))",
    f"`touch {MARK}`",
    f"$(touch {MARK})",
    f"'; touch {MARK}; '",
    f"@open('{MARK}', 'w')\ndef f(): pass",
    f"*open('{MARK}', 'w')",
]  # fmt: skip
SHAPES = [
    "{}",
    "Thought: {}\nAction: click(start_box='(1,2)')",
    "Thought: x\nAction: {}",
    "Thought: x\nAction: click(start_box='{}')",
    "Thought: x\nAction: click(start_box={})",
    "Thought: x\nAction: type(content='{}')",
    "Thought: x\nAction: hotkey(key='{}')",
    "```python\n{}\n```",
    "```python\npyautogui.click({}, 2)\n```",
    "```python\npyautogui.write({})\n```",
    "```python\npyautogui.write(message=f'{{}}')\n```",
    "```python\npyautogui.{}()\n```",
    "```python\nagent.click({})\n```",
    '{"action_type": "TYPING", "parameters": {"text": "{}"}}',
    '<tool_call>{"name": "computer_use", "arguments": {}}</tool_call>',
    '{"content": [{"type": "tool_use", "name": "computer", "input": {}}]}',
]


FORBIDDEN = ("exec", "import", "open", "os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "socket.connect")
watching: list[str] | None = None


def watch(event: str, arguments: tuple[object, ...]) -> None:
    """Python's audit hook: sees whatever is run, imported or opened, by whichever way.

    `ast.parse` itself looks for the line of a syntax error in a file of the name that it was given, "<unknown>".
    """
    if watching is not None and event in FORBIDDEN and (event, arguments[:1]) != ("open", ("<unknown>",)):
        watching.append(event)


sys.addaudithook(watch)  # hooks stay for good, so this one sleeps between the tests


@pytest.fixture
def watched():
    global watching
    keysym_meaning("")  # its table is read from a file, once
    watching = []
    yield watching
    watching = None


def test_the_watch_sees(watched):
    eval("1 + 1")
    assert watched == ["exec"]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_ever_run(name, tmp_path, monkeypatch, watched):
    monkeypatch.chdir(tmp_path)
    chosen = CHOSEN[name]
    found = [chosen.parse(shape.replace("{}", payload), SIZE) for payload in PAYLOADS for shape in SHAPES]
    assert watched == []
    assert list(tmp_path.iterdir()) == []
    for response in found:
        assert response.actions or response.errors
        assert all(type(x) in a.ACTION_TYPES.values() or isinstance(x, Ungrounded) for x in response.actions)


def test_no_module_can_run_a_model_s_text():
    """The sources of the formats have no call that evaluates, whatever a test may have missed."""
    for path in Path(dart_agent.formats.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            name = getattr(getattr(node, "func", None), "id", "")
            assert name not in ("eval", "exec", "compile", "__import__"), f"{path.name}:{node.lineno}"
            assert getattr(node, "attr", "") not in ("system", "popen", "literal_eval"), f"{path.name}:{node.lineno}"


def test_a_segfault_would_be_seen():
    """Depth that overflows the parser's stack would kill the process: a process of its own reads it."""
    code = (
        "from dart_agent.formats import formats, get_format\n"
        "for text in ('(' * 5000, '-' * 5900 + '1', 'a' + '.a' * 2900 + '()', 'f(' * 1900 + ')' * 1900, '[' * 5900,\n"
        "             'lambda:' * 800 + '1', 'not ' * 1400 + '1', '1' + '**1' * 1900, 'x if x else ' * 400 + '1'):\n"
        "    for name in formats():\n"
        "        assert get_format(name).parse('```python\\n' + text + '\\n```', (100, 100)).errors\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-500:]
