"""Data of the page from directories: a list of episodes, single episodes, comparisons of policies, a run's metrics.

`render_page` is the page as one file instead, with an episode in it, which loads nothing and sends nothing.

Invariants:
    - Episodes are named by numbers that are given here, screenshots by their hashes: nothing that a browser sends, and
      nothing that an episode says, becomes a path.
    - A file is read when it is new or has changed, and no other: a run that goes on can be looked at.
    - No list waits for all files of a long run: it has what was read in a moment, and says how many are left.
    - What cannot be read is shown as lost, with the reason; it hides no other episode.
"""

import asyncio
import base64
import json
import logging
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from aiohttp import web

from dart_agent.episodes.episode_files import RecordError, decoded, look_for_episodes, read_episode, read_image
from dart_agent.episodes.trajectory import Step, Trajectory
from dart_agent.episodes.trajectory_format import PARTIAL
from dart_agent.evaluation.comparison import compare
from dart_agent.evaluation.conditions import check_comparable
from dart_agent.evaluation.evaluation_directory import MANIFEST
from dart_agent.models.model_directory import Decoder, token_decoder
from dart_agent.viewer.episode_tree import MOST_BRANCHES, tree_of
from dart_gym.cluster.server.watch_page import HEADERS, render
from dart_gym.core.errors import DartGymError

_log = logging.getLogger(__name__)
SHOWN_WORDS = 300
"""Characters of a text in the list."""
POINTS = 400
"""Approximate number of points of a curve."""
FIRST_S, MORE_S = 0.25, 1.0
"""For how long files are read for a page's first list, and for the ones after it."""
RUN = "run.json"
"""The file that each directory of a run has."""
_KINDS = {"evaluation": "evaluation", "rollout": "rollout", "fork": "rollout"}
"""Purposes of episodes by source; episodes of all other sources are demonstrations."""
_EPISODE = (
    "task_id", "seed", "instruction", "terminal", "score", "status", "evaluator", "detail", "lost_by", "num_actions",
    "error", "timings", "task_hash", "app", "attempts", "ended_at", "forked_from", "fork_step",
)  # fmt: skip
_STEP = (
    "text", "thought", "actions", "error", "action_error", "actor", "timings", "tokens", "version", "engine",
    "finish_reason", "terminal", "response_ids",
)  # fmt: skip

_BRANCH = ("score", "terminal", "lost_by", "detail")


class Listed(NamedTuple):
    """An episode of the list: its file's time and size, its record without steps, and when that was read."""

    stamp: tuple[int, int]
    number: int
    source: str
    episode: Trajectory
    version: int
    """Version of the list in which the entry first appeared in this form."""


class RecordedEpisodes:
    """Episodes at or below some directories, and the metrics of those that are runs; `decode` gives tokens texts."""

    def __init__(self, roots: Sequence[Path], decode: Decoder | None = None) -> None:
        self._roots, self._decode = [root.absolute() for root in roots], decode
        self._decoders: dict[Path, Decoder | None] = {}  # by directory of a run
        self._paths: list[Path] = []  # by number
        self._listed: dict[str, Listed] = {}
        self._version = self._removed = 0  # of the list, and of the one that first lacked an episode of an older one
        self._lock = asyncio.Lock()
        self.views = ("episodes", *(["training"] if any(map(_metrics_of, self._roots)) else []))
        self.routes = [
            web.get("/watch/episodes", self._list),
            web.get(r"/watch/episode/{number:\d{1,9}}", self._of_episode(self._episode)),
            web.get(r"/watch/image/{number:\d{1,9}}/{image:[0-9a-f]{32}}", self._of_episode(self._image)),
            web.get("/watch/compare", self._compare),
            web.get("/watch/metrics", self._metrics),
        ]

    def look(self, seconds: float = math.inf) -> int:
        """Read what is new in the directories, for about so long, but one at least; how many are left to read."""
        until, version = time.monotonic() + seconds, self._version + 1
        found = dict[str, Listed]()
        read = 0
        unread = 0
        for root in self._roots:
            for folder, status in look_for_episodes(root):
                stamp, known = (status.st_mtime_ns, status.st_size), self._listed.get(folder)
                if known is None or known.stamp != stamp:
                    if read and time.monotonic() > until:
                        unread += 1
                    else:
                        known, read = self._read(root, Path(folder), stamp, version), read + 1
                if known is not None:
                    found[folder] = known
        removed = not self._listed.keys() <= found.keys()
        if read or removed:
            self._version = version
        self._removed = version if removed else self._removed
        self._listed = found
        return unread

    def _read(self, root: Path, path: Path, stamp: tuple[int, int], version: int) -> Listed:
        known = self._listed.get(str(path))
        if known is None:
            self._paths.append(path)
        number = known.number if known is not None else len(self._paths) - 1
        return Listed(stamp, number, self._source(root, path), _outcome(path), version)

    def _source(self, root: Path, path: Path) -> str:
        """The directory of an episode's evaluation, or of a run's data, as the page names it."""
        home = path.parents[1]
        within = home.relative_to(root).parts if home.is_relative_to(root) else ()
        return "/".join([*([] if within and len(self._roots) == 1 else [root.name]), *within])

    async def _list(self, request: web.Request) -> web.Response:
        given = request.query.get("version", "")[:9]
        since = int(given) if given.isdecimal() else 0
        async with self._lock:
            unread = await asyncio.to_thread(self.look, MORE_S if since else FIRST_S)
            whole = since < self._removed
            new = [one for one in self._listed.values() if whole or one.version > since]
            rows = [{"id": one.number, "source": one.source, **episode_row(one.episode)} for one in new]
            return _json({"version": self._version, "whole": whole, "episodes": rows, "unread": unread})

    def _of_episode(self, handler: Callable[[web.Request, Path], Any]) -> Callable[[web.Request], Any]:
        async def found(request: web.Request) -> web.Response:
            number = int(request.match_info["number"])
            response = (
                await asyncio.to_thread(handler, request, self._paths[number]) if number < len(self._paths) else None
            )
            return response or web.Response(status=404, text="that is not there\n", headers=HEADERS)

        return found

    def _episode(self, request: web.Request, path: Path) -> web.Response:
        trajectory = read_episode(path)
        decode = self.decoder_of(path)
        if decode is not None:
            trajectory = decoded(trajectory, decode)
        at = f"watch/image/{request.match_info['number']}/"
        data = page_data(trajectory, lambda image, step: {"image": image and at + image, "screen": step.screen})
        return _json({**data, **self.tree(str(path))})

    def tree(self, folder: str) -> dict[str, Any]:
        """Return the tree of forks that an episode belongs to; {} for an episode that was not forked and is no fork."""
        here = self._listed.get(folder)
        if here is None:
            return {}
        paths = {one.number: Path(path) for path, one in self._listed.items() if one.source == here.source}
        records = ((one.number, one.episode) for one in self._listed.values() if one.source == here.source)
        branches = tree_of(here.number, records)
        if len(branches) == 1:
            return {}
        shown = [
            {
                **{name: getattr(branch.episode, name) for name in _BRANCH},
                "id": branch.key,
                "parent": branch.parent,
                "step": branch.step,
                "steps": _steps_of(paths[branch.key]),
            }
            for branch in branches[:MOST_BRANCHES]
        ]
        return {"id": here.number, "tree": shown, "more": len(branches) - len(shown)}

    def decoder_of(self, path: Path) -> Decoder | None:
        """Return what was given, or the tokenizer of the run that an episode belongs to; None without either.

        A part of a run may be looked at, too: then the run is above the directories that were named.
        """
        if self._decode is not None:
            return self._decode
        outside = path.absolute() in self._roots
        for folder in path.absolute().parents:
            if outside and not (folder / RUN).is_file():
                continue
            if folder not in self._decoders:
                models = sorted(folder.glob("checkpoints/v*/tokenizer.json"))
                try:
                    self._decoders[folder] = token_decoder(models[0].parent) if models else None
                except Exception as error:  # `tokenizers` raises no narrower one for a damaged file
                    _log.warning("tokens are shown as numbers: %s cannot be read (%s)", models[0], error)
                    self._decoders[folder] = None
            if (decode := self._decoders[folder]) is not None:
                return decode
            outside = outside or folder in self._roots
        return None

    def _image(self, request: web.Request, path: Path) -> web.Response | None:
        stored = read_image(path, request.match_info["image"])
        headers = {**HEADERS, "Cache-Control": "private, max-age=3600, immutable"}
        return web.Response(body=stored.data, content_type=stored.kind, headers=headers) if stored else None

    async def _compare(self, request: web.Request) -> web.Response:
        async with self._lock:
            await asyncio.to_thread(self.look)
            listed = self._listed.items()
        sides = [[(path, one) for path, one in listed if one.source == request.query.get(side)] for side in "ab"]
        result = compare(*([one.episode for _, one in side] for side in sides))
        try:
            differs = check_comparable(*(Path(side[0][0]).parents[1] for side in sides), anyway=True)
        except DartGymError:  # rollouts of a run have no manifest that says under which conditions they were played
            differs = []
        names = ("rate_a", "rate_b", "difference", "interval", "p_value", "pairs", "unit", "verdict")
        return _json({**{name: getattr(result, name) for name in names}, "differs": differs})

    async def _metrics(self, request: web.Request) -> web.Response:
        return _json(
            await asyncio.to_thread(lambda: [{"name": root.name, **_metrics_of(root)} for root in self._roots])
        )


def page_data(trajectory: Trajectory, image_of: Callable[[str, Step], dict[str, Any]]) -> dict[str, Any]:
    """Return what the page shows, as JSON values; `image_of` a hash and its step gives `image`, a URL, and `screen`."""
    shown = {name: getattr(trajectory, name) for name in _EPISODE}
    steps = [
        {
            **{name: getattr(step, name) for name in _STEP},
            "prompt_tokens": len(step.prompt_ids),
            "prompt_images": len(step.image_hashes),
            "logprobs": [value if math.isfinite(value) else None for value in step.logprobs],
            **image_of(step.screenshot, step),
        }
        for step in trajectory.steps
    ]
    last = trajectory.steps[-1] if trajectory.steps else Step()
    final = image_of(last.screenshot_after, last) if last.screenshot_after else None
    return {"episode": {**shown, "policy": trajectory.policy or trajectory.source}, "steps": steps, "final": final}


def render_page(trajectory: Trajectory, directory: str | Path) -> str:
    """Return the HTML of an episode with its screenshots.

    Raises:
        RecordError: if a screenshot is damaged.
    """

    def embedded(image_id: str, step: Step) -> dict[str, Any]:
        stored = read_image(directory, image_id)
        if stored is None:
            return {"image": "", "screen": step.screen}
        height, width = stored.pixels.shape[:2]
        url = f"data:{stored.kind};base64,{base64.b64encode(stored.data).decode()}"
        return {"image": url, "screen": step.screen if step.screen[0] else (width, height)}

    return render(page_data(trajectory, embedded))


def may_hold_episodes(root: Path) -> bool:
    """Return whether a directory holds an episode, or a run or an evaluation, which may get one at any moment."""
    begun = any(any(root.glob(pattern)) for name in (RUN, MANIFEST) for pattern in (name, f"*/{name}"))
    return begun or next(look_for_episodes(root), None) is not None


def _metrics_of(root: Path) -> dict[str, Any]:
    """Return about `POINTS` evenly spaced lines of the metrics of each process of a run, with the last complete one."""
    found = {}
    for path in sorted(root.glob("metrics/*.jsonl")):
        lines = path.read_text(errors="replace").split("\n")[-2::-1]
        found[path.stem] = lines[:: max(1, len(lines) // POINTS)][::-1]
    return {"modules": found} if found else {}


def _outcome(path: Path) -> Trajectory:
    try:
        episode = read_episode(path, steps=False)
        if not isinstance(episode.score, int | float | None):
            raise RecordError(f"{path} has a score that is no number")
        if not (isinstance(episode.trajectory_id, str) and isinstance(episode.forked_from, str)):
            raise RecordError(f"{path} has a name that is no text")
        if not isinstance(episode.fork_step, int) or episode.fork_step < 0:
            raise RecordError(f"{path} has a fork_step that is no number of steps")
        return episode
    except RecordError as error:
        return Trajectory(path.name.removesuffix(PARTIAL), 0, str(error), lost_by="record")


def _steps_of(path: Path) -> int:
    """Return the number of steps that an episode has; 0 for one that cannot be read."""
    try:
        return len(read_episode(path).steps)
    except RecordError:
        return 0


def episode_row(episode: Trajectory) -> dict[str, Any]:
    """Return what the list says of an episode of any origin."""
    names = ("task_id", "seed", "instruction", "terminal", "lost_by", "num_actions")
    texts = {name: str(getattr(episode, name))[:SHOWN_WORDS] for name in names}
    ended = episode.ended_at if isinstance(episode.ended_at, int | float) and math.isfinite(episode.ended_at) else 0.0
    kind = _KINDS.get(str(episode.source), "demonstration")
    more = {"policy": str(episode.policy or episode.source)[:SHOWN_WORDS], "score": episode.score}
    fork = {"fork_step": episode.fork_step} if episode.forked_from else {}
    return {**texts, **more, **fork, "kind": kind, "ended_at": ended}


def _json(value: Any) -> web.Response:
    """A JSON response in which numbers that JSON has not are null; lone surrogates, which a model may write, stay."""
    text = json.dumps(value, default=str)
    if "NaN" in text or "Infinity" in text:
        text = json.dumps(json.loads(text, parse_constant=lambda name: None))
    return web.Response(text=text, content_type="application/json", headers=HEADERS)
