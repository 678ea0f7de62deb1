"""Which images a server still has, as its answers tell."""

from dart_agent.engines.vllm.server_images import ServerImages


def test_what_a_server_still_has():
    images = ServerImages()
    images.answered("abcd")
    images.answered("a")
    assert [name in images for name in "abcde"] == [True] * 4 + [False]
    images.missed("xc", "Cache miss for image at index 1 but data is not provided.")
    assert [name in images for name in "abcd"] == [True, False, False, True] and images.most == 2
    images.missed("b", "Cache miss for image at index 0 but data is not provided.")  # of a request sent before
    assert "a" in images and images.most == 2
    images.answered("bcd")
    assert [name in images for name in "abcd"] == [False, True, True, True] and images.most == 3
    images.forget()
    assert "b" not in images
    images.missed("b", "unknown field uuid")
    images.answered("b")
    assert "b" not in images and images.most == 0
