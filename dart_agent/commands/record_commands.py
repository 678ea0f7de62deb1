"""Commands of `dart-agent` on recorded episodes: compare two evaluations, look at a trajectory, export."""

import asyncio
import contextlib
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dart_agent.episodes.episode_files import RecordError, decoded, find_episodes, read_episode
from dart_agent.episodes.trajectory_format import PARTIAL
from dart_agent.evaluation.comparison import compare
from dart_agent.evaluation.conditions import check_comparable, published_page
from dart_agent.evaluation.evaluation_directory import read_outcomes
from dart_agent.evaluation.score_tables import comparison_lines
from dart_agent.exports.episode_selection import select_episodes
from dart_agent.exports.exporters import EXPORTERS
from dart_agent.imports.importers import import_episodes
from dart_agent.models.model_directory import token_decoder
from dart_gym.cluster.server.server_settings import ANSWER_TIMEOUT_S, token_of
from dart_gym.commands.json_output import JsonOption, write_json
from dart_gym.core.errors import ConfigurationError
from dart_gym.utils.waits import waiting_for

console = Console()


def compare_command(
    a: Annotated[Path, typer.Argument(help="Directory of an evaluation (dart-agent eval --out), or of an import.")],
    b: Annotated[
        Path | None, typer.Argument(help="Of another one, of the same tasks and seeds; not with --published.")
    ] = None,
    published: Annotated[
        bool, typer.Option("--published", help="Make a page of A's score beside the published ones of its preset.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="With --published: the page; published.html in A.")
    ] = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Also where pacing, steps, screens or evaluators differ.")
    ] = False,
    json_file: JsonOption = None,
) -> None:
    """Say whether policy B is better than policy A: a paired test over the tasks that both played.

    With --published, A's score is compared with those that its preset's model was published with, on an HTML page.
    """
    if published:
        if b is not None or json_file is not None:
            raise ConfigurationError("--published makes a page of A alone: leave B and --json out")
        with waiting_for(f"the episodes of {a}, which are read"):
            content = published_page(a)
        write_page((output or a / "published.html").absolute(), content)
        return
    if b is None or output is not None:
        raise ConfigurationError("name two evaluations, or A with --published, which writes a page (--output)")
    with waiting_for(f"the episodes of {a} and {b}, which are read"):
        differ = check_comparable(a, b, anyway=anyway)
        outcomes = read_outcomes(a), read_outcomes(b)
        comparison = compare(*outcomes)
    write_json(json_file, {**asdict(comparison), "verdict": comparison.verdict, "differs": differ})
    names = [of[0].policy or path.name for path, of in zip((a, b), outcomes, strict=True)]
    if names[0] == names[1]:
        names = [a.name, b.name] if a.name != b.name else ["A", "B"]
    for line in [*comparison_lines(comparison, *names), *(f"differs: {line}" for line in differ)]:
        console.print(line, markup=False, highlight=False)


def view(
    targets: Annotated[
        list[str], typer.Argument(help="Directories of runs, evaluations or episodes; a cluster's ws:// address.")
    ],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write one episode as a file instead.")] = None,
    model: Annotated[Path | None, typer.Option(help="Its tokenizer shows tokens that were recorded as ids.")] = None,
    token_env: Annotated[str | None, typer.Option(help="Environment variable with the cluster's token.")] = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds to wait for an answer of the cluster.")
    ] = ANSWER_TIMEOUT_S,
    port: Annotated[int, typer.Option(help="Of the page, on this machine; 0 takes a free one.")] = 0,
    browser: Annotated[bool, typer.Option("--open", help="Open the page in this machine's browser.")] = False,
) -> None:
    """Watch, replay, filter and compare: one page, whose address is printed, of runs, episodes and a cluster."""
    # A server of pages takes half a second to import, for which no other command is to wait.
    from dart_agent.viewer.recorded_episodes import RecordedEpisodes, may_hold_episodes, render_page
    from dart_gym.cluster.server.page_server import PageServer, serve_page
    from dart_gym.cluster.server.watch_proxy import cluster_routes

    decode = token_decoder(model) if model is not None else None
    if output is not None:
        directory = _one_episode(targets)
        trajectory = read_episode(directory)
        known = RecordedEpisodes([Path(one) for one in targets], decode).decoder_of(directory)
        write_page(output.absolute(), render_page(decoded(trajectory, known) if known else trajectory, directory))
        return
    roots, urls = [Path(one) for one in targets if "://" not in one], [one for one in targets if "://" in one]
    for root in roots:
        if not root.is_dir():
            raise RecordError(f"{root} is no directory, and holds no recorded episode")
        if not may_hold_episodes(root):
            raise RecordError(f"{root} holds no recorded episode, and is no run and no evaluation that may get some")
    if len(urls) > 1:
        raise RecordError("name directories of runs, evaluations (eval --out) or episodes, and at most one cluster")

    async def serve() -> None:
        views = []
        routes = []
        records = RecordedEpisodes(roots, decode)
        async with contextlib.AsyncExitStack() as stack:
            if urls:
                views = ["live"]
                routes = await stack.enter_async_context(cluster_routes(urls[0], token_of(token_env), timeout))
            if roots:
                views, routes = [*views, *records.views], [*routes, *records.routes]
            await serve_page(await stack.enter_async_context(PageServer(views, routes, port)), browser)

    asyncio.run(serve())


def _one_episode(targets: list[str]) -> Path:
    """Return the directory of the only episode of some directories.

    Raises:
        RecordError: if they hold none, or several.
    """
    seen = [episode for target in targets for episode in find_episodes(Path(target), partial=True)]
    found = [episode for episode in seen if not episode.name.endswith(PARTIAL)] or seen
    if not found:
        raise RecordError(f"there is no recorded episode at {', '.join(targets)}")
    if len(found) > 1:
        raise RecordError(
            f"--output writes one episode, and there are {len(found)}: name one, such as {found[0]}; without --output "
            "all of them are shown"
        )
    return found[0]


def write_page(page: Path, content: str) -> None:
    """Write a page and print its path.

    Raises:
        RecordError: if it cannot be written.
    """
    try:
        page.write_text(content, encoding="utf-8")
    except OSError as error:
        raise RecordError(f"cannot write {page} ({error}): choose another place with --output") from error
    console.print(page.as_uri(), markup=False, highlight=False, soft_wrap=True)


def export(
    directory: Annotated[Path, typer.Argument(help="Of an evaluation (dart-agent eval --out), or of one episode.")],
    out: Annotated[Path, typer.Argument(help="Where to write.")],
    kind: Annotated[
        str,
        typer.Option(
            "--as",
            help='"osworld" (its layout of results), "chat" (JSONL for fine-tuning, images beside it), "chat-inline" '
            '(images in it), "dataset" (Parquet, of a package) or your own.',
        ),
    ] = "osworld",
    min_score: Annotated[float | None, typer.Option(help="Only episodes with at least this score.")] = None,
    source: Annotated[
        list[str] | None,
        typer.Option(help="Only episodes of this source: rollout, evaluation, oracle or human; may be repeated."),
    ] = None,
    task: Annotated[
        list[str] | None, typer.Option(help='Only of these tasks, a name or a pattern "miniwob/*"; may be repeated.')
    ] = None,
) -> None:
    """Write recorded episodes in OSWorld's layout of results, as chat JSONL, as a data set, or as you like."""
    write = EXPORTERS.get(kind)
    if not directory.is_dir():
        raise RecordError(f"{directory} is no directory: name the one of an evaluation (dart-agent eval --out)")
    episodes = list(find_episodes(directory))
    if not episodes:
        raise RecordError(f"{directory} holds no complete episode: play some with dart-agent eval --out")
    chosen, left_out = select_episodes(episodes, min_score=min_score, sources=source or (), tasks=task or ())
    said = "".join(f"; {count} episodes {why} left out" for why, count in sorted(left_out.items()))
    if not chosen:
        raise RecordError(f"nothing to export from {directory}{said}")
    with waiting_for(f"the export of {len(chosen)} episodes to {out}"):
        written = write(chosen, out)
    console.print(f"{out}: {written}{said}", markup=False, highlight=False, soft_wrap=True)


def import_command(
    source: Annotated[
        Path,
        typer.Argument(help="OSWorld's results, a data set like AgentNet, an export of ours, or an archive of one."),
    ],
    out: Annotated[Path, typer.Argument(help="Directory to record in; what it holds already stays.")],
    examples: Annotated[
        Path | None, typer.Option(help="OSWorld's evaluation_examples, which say what each task asks.")
    ] = None,
    max_lost: Annotated[
        int | None,
        typer.Option(min=0, help="Exit status 1 where more episodes are refused; without it, where all of them are."),
    ] = None,
) -> None:
    """Record episodes of others: they can then be viewed, compared, exported and put into a run's experience pool."""
    with waiting_for(f"the import of {source}"):
        report = import_episodes(source, out, examples=examples)
    for problem in report.problems:
        console.print(problem, style="yellow", markup=False, highlight=False, soft_wrap=True)
    if report.refused > len(report.problems):
        console.print(f"... and {report.refused - len(report.problems)} more")
    for place, count in sorted(report.places.items()):
        console.print(f"{place}: {count} episodes", markup=False, highlight=False, soft_wrap=True)
    told = f"{report.imported} imported; {report.known} there already; {report.refused} refused"
    if report.unseen:
        told += f"; {report.unseen} decisions without a screenshot, which cannot be learnt from"
    console.print(told, markup=False, highlight=False, soft_wrap=True)
    nothing = not report.imported and not report.known
    if nothing or (max_lost is not None and report.refused > max_lost):
        raise typer.Exit(1)


def mount(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("compare")(compare_command)
    app.command("view")(view)
    app.command("export")(export)
    app.command("import")(import_command)
