"""Commands of `dart-agent` on recorded episodes: compare two evaluations, look at a trajectory, export."""

import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dart_agent.episodes.episode_files import RecordError, decoded, find_episodes, read_episode
from dart_agent.evaluation.comparison import compare
from dart_agent.evaluation.conditions import check_comparable, published_page
from dart_agent.evaluation.evaluation_directory import read_manifest, read_outcomes
from dart_agent.evaluation.score_tables import comparison_lines
from dart_agent.exports.exporters import EXPORTERS
from dart_agent.models.model_directory import token_decoder
from dart_agent.viewer.trajectory_page import find_one, render_page

console = Console()


def compare_command(
    a: Annotated[Path, typer.Argument(help="Directory of an evaluation (dart-agent eval --out).")],
    b: Annotated[Path, typer.Argument(help="Directory of another one, of the same tasks and seeds.")],
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Also where pacing, steps, screens or evaluators differ.")
    ] = False,
) -> None:
    """Say whether policy B is better than policy A: a paired test over the tasks that both played."""
    differ = check_comparable(a, b, anyway=anyway)
    comparison = compare(read_outcomes(a), read_outcomes(b))
    names = [str(read_manifest(path).get("policy", path.name)) for path in (a, b)]
    if names[0] == names[1]:
        names = [a.name, b.name] if a.name != b.name else ["A", "B"]
    for line in [*comparison_lines(comparison, *names), *(f"differs: {line}" for line in differ)]:
        console.print(line, markup=False, highlight=False)


def published(
    directory: Annotated[Path, typer.Argument(help="Of an evaluation with a preset (dart-agent eval --out).")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The page; published.html there.")] = None,
) -> None:
    """Make an HTML page with the score beside those that were published, and what differs between them."""
    page = (output or directory / "published.html").absolute()
    write_page(page, published_page(directory))


def view(
    directory: Annotated[Path, typer.Argument(help="Of an episode (run --out, eval --out) or a trainer's trajectory.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The page; view.html in the directory.")] = None,
    model: Annotated[Path | None, typer.Option(help="Its tokenizer shows tokens that were recorded as ids.")] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """Make one HTML page of a trajectory, with everything in it."""
    episode = find_one(directory)
    trajectory = read_episode(episode)
    if model is not None:
        trajectory = decoded(trajectory, token_decoder(model))
    page = (output or directory / "view.html").absolute()
    html = render_page(trajectory, episode)
    write_page(page, html)
    if open_page:
        webbrowser.open(page.as_uri())


def write_page(page: Path, content: str) -> None:
    """Write a page and say where it is. Raises `RecordError`: it cannot be written."""
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
        typer.Option("--as", help='"dataset" (Parquet with images), "osworld" (its layout of results) or your own.'),
    ] = "dataset",
) -> None:
    """Write recorded episodes as a Hugging Face data set, in OSWorld's layout of results, or as you like."""
    write = EXPORTERS.get(kind)
    episodes = list(find_episodes(directory))
    if not episodes:
        raise RecordError(f"{directory} holds no complete episode: play some with dart-agent eval --out")
    console.print(f"{out}: {write(episodes, out)}", markup=False, highlight=False)


def mount(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("compare")(compare_command)
    app.command("view")(view)
    app.command("published")(published)
    app.command("export")(export)
