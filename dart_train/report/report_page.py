"""The report as one HTML file that opens from disk: no scripts, no network, plots and pictures inside."""

from html import escape
from importlib.resources import files

from dart_train.report import report_plots
from dart_train.report.report_data import Rate, ReportData, TaskFigures


def render(data: ReportData) -> str:
    """Return the whole page."""
    sections = [
        _hero(data),
        _section("Before and after, on seeds never trained on", report_plots.before_after(data.tasks) + _table(data)),
    ]
    if data.curves:
        curves = report_plots.learning_curves(data.curves, data.tasks)
        caption = (
            "<p><small>Mean reward of the rollouts at temperature 1 while training. Dots: held-out seeds with 95 % "
            "intervals. Dashed: the best click that ignores both screen and instruction.</small></p>"
        )
        sections.append(_section("Learning curves", curves + caption))
    if data.turns:
        sections.append(_section("Where rollouts went", report_plots.turns(data)))
    if data.utilisation is not None:
        stale = report_plots.staleness(data.staleness) if data.staleness else ""
        body = f'<div class="two"><div>{report_plots.utilisation(data)}</div><div>{stale}</div></div>'
        sections.append(_section("Utilisation and staleness", body))
    if data.notes:
        items = "".join(f"<li>{escape(note)}</li>" for note in data.notes)
        sections.append(_section("How to read this", f'<ul class="notes">{items}</ul>'))
    sections.append(_section("The run", _run(data)))
    title = f"DART · {escape(data.name)}"
    style = files(__package__).joinpath("style.css").read_text()
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><style>{style}</style></head>'
        f"<body><main><h1>{title}</h1><p class='lead'>{escape(data.description)}</p>"
        f"{''.join(sections)}</main></body></html>"
    )


def _section(title: str, body: str) -> str:
    return f'<h2>{escape(title)}</h2><section class="card">{body}</section>'


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"


def _rate(rate: Rate | None) -> str:
    if rate is None:
        return "–"
    return f"{100 * rate.rate:.0f} % <small>{100 * rate.low:.0f}–{100 * rate.high:.0f}</small>"


def _number(value: object, digits: int = 0) -> str:
    return f"{value:,.{digits}f}" if isinstance(value, (int, float)) else "–"


def _hero(data: ReportData) -> str:
    f = data.figures
    before, after = f.get("success_before"), f.get("success_after")
    arrow = f"{_percent(_float(before))} → {_percent(_float(after))}"
    minutes = _number((_float(f.get("wall_s")) or 0) / 60, 1)
    stats = [
        (_number((_float(f.get("rl_wall_s")) or 0) / 60, 1) + " min", f"of RL, {minutes} min in all"),
        (_number(f.get("rollouts")), "rollouts on real desktops"),
        (_number(f.get("weight_updates")), "weight updates, rolling"),
        (_percent(_float(f.get("env_utilisation"))), "of the desktops' time in use"),
        (_number(f.get("actions_per_min")), "actions a minute"),
    ]
    cards = "".join(f'<div class="stat"><b>{value}</b><small>{label}</small></div>' for value, label in stats)
    bounds = [
        _percent(_float(f.get(f"success_{when}_ci_{end}"))) for when in ("before", "after") for end in ("low", "high")
    ]
    interval = "95 % intervals {}–{} and {}–{}".format(*bounds)
    big = (
        f'<div class="stat big"><b>{arrow}</b><small>success on held-out seeds, mean over the trained tasks; '
        f"{interval}</small></div>"
    )
    return f'<div class="hero">{big}{cards}</div>'


def _float(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _table(data: ReportData) -> str:
    columns: list[tuple[str, str]] = [("before", "before RL"), ("after", "after RL")]
    optional = (
        ("base", "shipped weights"),
        ("greedy_before", "greedy before"),
        ("greedy_after", "greedy after"),
        ("supervised", "supervised only"),
        ("shuffled", "shuffled rewards"),
    )
    columns += [(key, title) for key, title in optional if any(getattr(task, key) for task in data.tasks)]
    head = "".join(f"<th>{title}</th>" for _, title in columns)
    constant = any(task.constant_click is not None for task in data.tasks)
    head += "<th>best constant click</th>" if constant else ""
    rows = "".join(_row(task, [key for key, _ in columns], constant) for task in data.tasks)
    return f"<table><tr><th>task</th>{head}</tr>{rows}{_mean_row(data, [key for key, _ in columns], constant)}</table>"


def _row(task: TaskFigures, keys: list[str], constant: bool) -> str:
    name = escape(task.task_id) + ("" if task.trained else " <small>not trained</small>")
    cells = "".join(f"<td>{_rate(getattr(task, key))}</td>" for key in keys)
    return f"<tr><td>{name}</td>{cells}{f'<td>{_percent(task.constant_click)}</td>' if constant else ''}</tr>"


def _mean_row(data: ReportData, keys: list[str], constant: bool) -> str:
    trained = [task for task in data.tasks if task.trained]

    def mean(values: list[float | None]) -> str:
        known = [value for value in values if value is not None]
        return _percent(sum(known) / len(known)) if known and len(known) == len(values) else "–"

    cells = "".join(f"<td>{_percent(_float(data.figures.get(f'success_{key}')))}</td>" for key in keys)
    cells += f"<td>{mean([task.constant_click for task in trained])}</td>" if constant else ""
    return f'<tr class="mean"><td>mean of the trained tasks</td>{cells}</tr>'


def _run(data: ReportData) -> str:
    phases = "".join(
        f"<tr><td>{escape(name)}</td><td>{_number(seconds, 0)} s</td></tr>" for name, seconds in data.phases
    )
    figures = "".join(
        f"<tr><td>{escape(key)}</td><td>{escape(f'{value:.4g}' if isinstance(value, float) else str(value))}</td></tr>"
        for key, value in data.figures.items()
    )
    return (
        f"<p>{escape(data.machine)}</p><table>{phases}</table>"
        f"<p>Every episode: <code>dart-agent view runs/{escape(data.name)} --open</code></p>"
        f"<details><summary>All figures (report.json)</summary><table>{figures}</table></details>"
        f"<details><summary>Configuration</summary><pre>{escape(data.config_yaml)}</pre></details>"
    )
