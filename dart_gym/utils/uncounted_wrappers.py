"""Additional wrappers of a Gymnasium specification that the native vector environment may go without.

Written against gymnasium 1.4; `tests/dart_gym/envs/test_step_limit.py` shows what it relies on.
"""

from gymnasium.envs.registration import WrapperSpec


class UncountedWrappers(tuple[WrapperSpec, ...]):
    """Wrappers that `make` applies, and of which `make_vec` sees none.

    `make_vec` refuses a specification with additional wrappers in its native mode, because it applies none there.
    """

    __slots__ = ()

    def __len__(self) -> int:
        return 0
