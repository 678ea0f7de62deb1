"""The control of a metric that has failed: the same one with states that no agent has made.

The evaluator's sandbox has this file, too: it uses the standard library only and imports nothing of this package.
"""

import inspect

MADE_FOR_SOMETHING = (TypeError, AttributeError, ZeroDivisionError)
"""What metrics raise for None that do not expect that nothing may be there; 22 of OSWorld's do so."""


def works_without_the_agent(metric, others, options):
    """Return whether a metric gives a score for a state that no agent has made: None, an empty one, the expected one.

    Then it failed by the state that the agent has left, and otherwise by itself: a missing option, a broken reference.
    A metric that takes None for a file or a list fails by that, too: where nothing is there, it is worth 0.

    Args:
        metric: a function of a state and `others`, the arguments behind it, that gives a number.
        others: the expected state, where the metric takes one.
        options: its other arguments, by name.
    """
    try:
        inspect.signature(metric).bind(None, *others, **options)
    except TypeError:
        return False  # the task does not give what it takes
    for control in (None, "", *others[:1]):
        try:
            if 0.0 <= float(metric(control, *others, **options)) <= 1.0:
                return True
        except Exception as error:  # whatever it is: this control tells nothing, except for what None does
            if control is None and isinstance(error, MADE_FOR_SOMETHING) and None not in others:
                return True
    return False
