"""The command line of the pinned vLLM as data: what its own parser takes, and a strict parser of the same options.

`python tests/helpers/vllm_options.py FILE` in vLLM's environment writes them, and
`--parse LINES` has its parser read command lines; a test marked `vllm` holds the file in
`tests/data` against the installed vLLM.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "data" / "vllm_serve_options.json"


def options_of(parser: argparse.ArgumentParser) -> list[dict[str, Any]]:
    """Every option of a parser: its names, how many values it takes, and which."""
    found = []
    for action in parser._actions:
        if action.option_strings and not isinstance(action, argparse._HelpAction):
            kind = action.type if action.type in (int, float) else None
            found.append(
                {
                    "names": sorted(action.option_strings),
                    "values": action.nargs if action.nargs is not None else 1,
                    "choices": None if action.choices is None else sorted(map(str, action.choices)),
                    "type": kind.__name__ if kind else "str",
                }
            )
    return sorted(found, key=lambda option: str(option["names"]))


def text_of(options: list[dict[str, Any]]) -> str:
    """JSON with a line for each option."""
    return "[\n" + ",\n".join(map(json.dumps, options)) + "\n]\n"


def strict_parser() -> argparse.ArgumentParser:
    """A parser of `vllm serve MODEL ...` that refuses what the pinned vLLM does not know."""
    parser = argparse.ArgumentParser(prog="vllm serve", allow_abbrev=False)
    parser.add_argument("model")
    for option in json.loads(FILE.read_text()):
        names = [name for name in option["names"] if name.startswith("--")] or option["names"]
        where = {"dest": names[0].lstrip("-").replace("-", "_")}
        if option["values"] == 0:
            parser.add_argument(*names, **where, action="store_true", default=None)
            continue
        kind = {"int": int, "float": float}.get(option["type"], str)
        values = {} if option["values"] == 1 else {"nargs": option["values"]}
        choices = option["choices"] and [kind(choice) for choice in option["choices"]]
        parser.add_argument(*names, **where, **values, type=kind, choices=choices)
    return parser


def vllm_parser() -> argparse.ArgumentParser:
    """The parser of the installed vLLM; only in its environment."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    return make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))


def refusals(lines: Sequence[Sequence[str]]) -> list[str]:
    """What the installed vLLM says of command lines; "" for one that it takes."""
    from vllm.entrypoints.launchers.cli_args import validate_parsed_serve_args

    found = []
    for line in lines:
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said):
                parsed = vllm_parser().parse_args(list(line))
                parsed.model_tag = line[0]
                validate_parsed_serve_args(parsed)
            found.append("")
        except (SystemExit, TypeError, ValueError) as error:
            found.append(said.getvalue() or str(error))
    return found


if __name__ == "__main__":
    if sys.argv[1] == "--parse":
        print(json.dumps(refusals(json.loads(Path(sys.argv[2]).read_text()))))
    else:
        Path(sys.argv[1]).write_text(text_of(options_of(vllm_parser())))
