"""What exceptions say in messages."""

import httpx
import pytest

from dart_gym.core.errors import words_of


@pytest.mark.parametrize("error", [TimeoutError(), ConnectionResetError(), MemoryError(), httpx.ReadError("")])
def test_an_exception_without_words_is_named_by_its_type(error):
    assert words_of(error) == type(error).__name__


def test_words_are_repeated_as_they_are():
    assert words_of(OSError(28, "No space left on device")) == "[Errno 28] No space left on device"
