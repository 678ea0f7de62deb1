"""Stand-ins for files of OSWorld's hub, put into a download cache under the hub's addresses.

Documents are made by the libraries that OSWorld's evaluator reads them with, in its Python: python-docx, openpyxl,
python-pptx, Pillow.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

from dart_gym.tasks.evaluation import evaluator_environment
from dart_gym.tasks.setup.download_cache import DownloadCache
from tests.dart_gym.solved.solved_pairs import SolvedPair

_MAKE = """
import importlib, json, sys
for name, path in json.loads(sys.argv[1]):
    module, _, function = name.partition(":")
    getattr(importlib.import_module(module), function)(path)
"""


def provide(pair: SolvedPair, cache: DownloadCache) -> None:
    """Put the files of a pair into a cache."""
    missing = {url: content for url, content in pair.files.items() if url not in cache}
    with tempfile.TemporaryDirectory() as folder:
        paths = {
            url: Path(folder, f"{number}-{url.rpartition('/')[2]}") for number, url in enumerate(sorted(pair.files))
        }
        made = [(content, str(paths[url])) for url, content in missing.items() if isinstance(content, str)]
        if made:
            python = evaluator_environment.find().python
            done = subprocess.run(
                [python, "-c", _MAKE, json.dumps(made)],
                cwd=Path(__file__).parent, capture_output=True, text=True, timeout=120,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
        for url, content in missing.items():
            if not isinstance(content, str):
                paths[url].write_bytes(content if isinstance(content, bytes) else content())
            cache.add(url, paths[url])
