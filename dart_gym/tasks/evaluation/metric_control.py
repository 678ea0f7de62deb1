"""The control of a metric that has failed: the same one with states that no agent has made.

The evaluator's sandbox has this file, too: it uses the standard library only and imports nothing of this package.
"""


def works_without_the_agent(metric, others, options):
    """Return whether a metric gives a score for a state that no agent has made: None, an empty one, the expected one.

    Then it failed by the state that the agent has left, and otherwise by itself: a missing option, a broken reference.

    Args:
        metric: a function of a state and `others`, the arguments behind it, that gives a number.
        others: the expected state, where the metric takes one.
        options: its other arguments, by name.
    """
    for control in (None, "", *others[:1]):
        try:
            if 0.0 <= float(metric(control, *others, **options)) <= 1.0:
                return True
        except Exception:  # whatever it is: this control tells nothing
            continue
    return False
