"""When Python looks for reference cycles, in processes that keep a great many objects for as long as they live."""

import gc

ALLOCATIONS = 50_000
"""New containers between two looks at the youngest objects; Python's own number is 700."""


def collect_rarely() -> None:
    """Leave what lives now out of all later looks, and look less often.

    With a thousand desktops a rollout service keeps some millions of objects, nearly none of them in a cycle: each look
    at all of them stops its event loop for 0.3 s.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(ALLOCATIONS, 20, 50)
