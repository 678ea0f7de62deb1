"""A check that compares two files of a desktop, and what it means to have failed it."""

from dart_gym.core.outcomes import EvaluationStatus

FILE = {"type": "vm_file", "path": "/home/user/result", "dest": "result"}
SAME = {"func": "compare_text_file", "result": FILE, "expected": {**FILE, "path": "/home/user/right", "dest": "right"}}


def is_worth_0(evaluation) -> bool:
    return (evaluation.status, evaluation.score) == (EvaluationStatus.OK, 0.0)
