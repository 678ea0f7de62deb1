"""Figures of the rollout service in Prometheus's text format. Pure; the input is a line of `metrics/rollout.jsonl`.

Labels come from the configuration and from closed sets (phases, states, faults). Reasons in words are values of info
metrics, with one metric per replica or task at a time.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from dart_gym.utils.prometheus_text import render

PREFIX = "dart_rollout"

_GAUGES = (
    ("running", "running", "Rollouts that are played now"),
    ("open_groups", "open_groups", "Groups with members that run or are to be dealt"),
    ("admitted", "admitted", "1 while another group may be opened"),
    ("unrecorded", "unrecorded", "Episodes that have ended and wait for the database"),
    ("env_utilisation", "env_utilisation", "Share of workers x time in which desktops work, over the last seconds"),
    ("actions_per_min", "actions_per_minute", "Actions carried out, over the last seconds"),
    ("rollouts_per_s", "rollouts_per_second", "Episodes that ended, over the last seconds"),
    ("engine_queue", "engine_queue", "Requests that wait for a replica"),
    ("target_version", "target_version", "Version of the weights that the replicas are brought to"),
)
_COUNTERS = (
    ("rollouts", "rollouts", "Scored rollouts of the run, earlier lives included"),
    ("actions", "actions", "Actions carried out"),
    ("lost", "lost", "Rollouts that broke off and were dealt again or given up"),
    ("given_up", "given_up", "Members of groups that were given up"),
    ("refused", "refused", "Episodes that the data manager refused as invalid"),
    ("reissued", "requests_reissued", "Engine requests that were sent again"),
    ("weight_updates", "weight_updates", "Updates of single replicas that succeeded"),
    ("weight_updates_failed", "weight_updates_failed", "Updates of single replicas that failed"),
    ("weight_updates_from_memory", "weight_updates_from_memory", "Updates from a trainer's memory, without files"),
    ("weight_update_s", "weight_update_seconds", "Seconds of the updates that succeeded"),
)
_MAPPED_COUNTERS = (
    ("terminals", "episodes_ended", "terminal", "Episodes by how they ended"),
    ("dealt", "dealt", "task", "Rollouts dealt by task, repeats not counted"),
    ("phase_s", "phase_seconds", "phase", "Seconds of all workers by phase"),
    ("engine_faults", "replica_faults", "kind", "Times that replicas went out of service, by what was wrong"),
    ("recoveries", "recoveries", "what", "Times that a dependency came back"),
)
_MAPPED_GAUGES = (
    ("desktops", "desktops", "phase", "Workers by what their desktop does"),
    (
        "broken_share",
        "episodes_broken_share",
        "by",
        "Share of the episodes that a program of their desktop ended, or their environment lost",
    ),
    ("success", "success", "task", "Mean reward of a task's newest rollouts"),
    ("staleness", "staleness", "of", "Versions that the newest rollouts' weights lay behind at their end"),
)
_REASONS = (
    ("left_out", "task_left_out", "task", "1 for tasks that are left out"),
    ("weights_skipped", "weights_skipped", "version", "1 for versions given up"),
)
_REPLICA_GAUGES = (
    ("version", "Version of the weights that it serves"),
    ("verified", "Version that it is known to serve"),
    ("busy_share", "Share of the time in which it computed, over the last seconds"),
    ("in_flight", "Requests that it has from here"),
    ("limit", "Requests that it gets at the same time"),
    ("waiting", "Requests that wait in it"),
    ("kv_use", "Share of its cache of keys and values that is in use"),
    ("failures", "Times that it went out of service since it last served well"),
)


def prometheus_text(figures: Mapping[str, Any]) -> bytes:
    """Render the figures of `RolloutService.figures`."""
    return render([*_totals(figures), *_replicas(figures["engines"]), *_states(figures)])


def _totals(figures: Mapping[str, Any]) -> Iterator[Metric]:
    for key, name, text in _GAUGES:
        if figures[key] is not None:
            yield GaugeMetricFamily(f"{PREFIX}_{name}", text, value=float(figures[key]))
    for key, name, text in _COUNTERS:
        yield CounterMetricFamily(f"{PREFIX}_{name}", text, value=float(figures[key]))
    for key, name, label, text in _MAPPED_COUNTERS:
        family = CounterMetricFamily(f"{PREFIX}_{name}", text, labels=[label])
        for value, count in figures[key].items():
            family.add_metric([value], float(count))
        yield family


def _replicas(engines: list[Mapping[str, Any]]) -> Iterator[Metric]:
    for key, text in _REPLICA_GAUGES:
        family = GaugeMetricFamily(f"{PREFIX}_replica_{key}", text, labels=["replica"])
        for engine in engines:
            if engine[key] is not None:
                family.add_metric([engine["name"]], float(engine[key]))
        yield family
    for key, text in (("requests", "Requests answered"), ("restarts", "Times that it was started again")):
        counter = CounterMetricFamily(f"{PREFIX}_replica_{key}", text, labels=["replica"])
        for engine in engines:
            counter.add_metric([engine["name"]], float(engine[key]))
        yield counter
    state = GaugeMetricFamily(
        f"{PREFIX}_replica_state", "1 for the present state, and why it is down", labels=["replica", "state", "why"]
    )
    for engine in engines:
        state.add_metric([engine["name"], engine["state"], engine["why_down"]], 1.0)
    yield state


def _states(figures: Mapping[str, Any]) -> Iterator[Metric]:
    for key, name, label, text in _MAPPED_GAUGES:
        family = GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=[label])
        for value, number in (figures[key] or {}).items():
            if number is not None:
                family.add_metric([value], number)
        yield family
    unavailable = GaugeMetricFamily(
        f"{PREFIX}_unavailable_seconds", "Seconds since something went away", labels=["what"]
    )
    for what, availability in figures["unavailable"].items():
        unavailable.add_metric([what], availability["seconds"])
    yield unavailable
    for key, name, label, text in _REASONS:
        family = GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=[label, "why"])
        for value, reason in figures[key].items():
            family.add_metric([str(value), reason], 1.0)
        yield family
