"""Writes `report.html` and `report.json` from what a run has left behind."""

from dart_gym.utils.waits import waiting_for
from dart_train.processes.process_context import ProcessContext
from dart_train.report.gather import gather
from dart_train.report.report_page import render
from dart_train.run.run_directory import write_json, write_text


def main(context: ProcessContext) -> None:
    """Write the report again; may be called at any time, also during the run."""
    with context.open_data() as data, waiting_for("what the run left behind, which is read"):
        report = gather(context.config, context.run, data)
    with waiting_for("the pictures of the report"):
        page = render(report)
    write_json(context.run.figures, report.figures)
    write_text(context.run.report, page)
