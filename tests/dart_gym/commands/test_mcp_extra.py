"""`dart-gym mcp` where the SDK is not installed."""

from __future__ import annotations

import sys

import pytest

from dart_gym.commands.gym_cli import app


def test_without_the_sdk_one_line_says_which_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "mcp_types", None)
    monkeypatch.delitem(sys.modules, "dart_gym.commands.mcp_server", raising=False)
    with pytest.raises(SystemExit):
        app(["mcp"])
    assert capsys.readouterr().err == "dart-gym: MCP needs its SDK; next step: pip install 'dart-gui[mcp]'\n"
