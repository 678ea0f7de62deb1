"""ServerImages: which images a vLLM server still has, so that they need not be sent to it again. No I/O.

vLLM keeps what it has made of the images that were used last (`--mm-processor-cache-gb`; of a screenshot of 1932x1092
about 50 MB) and takes one of them by name alone; a name that it no longer knows it refuses.
"""

import re
from collections import OrderedDict
from collections.abc import Collection, Sequence

MOST = 4096
_MISS = re.compile(r"Cache miss for image at index (\d+)")


class ServerImages:
    """The images that one server is known to keep: at most `most`, a limit that is learned from its answers."""

    def __init__(self) -> None:
        self.most = MOST
        self._names: OrderedDict[str, None] = OrderedDict()  # used last is last

    def __contains__(self, name: object) -> bool:
        """Return whether it should still have an image."""
        return name in self._names

    def answered(self, names: Collection[str]) -> None:
        """It answered a request with these images. It may keep more than it has shown: that is tried out slowly."""
        self.most = min(MOST, max(self.most + 1, len(names))) if self.most else 0
        for name in names:
            self._names[name] = None
            self._names.move_to_end(name)
        while len(self._names) > self.most:
            self._names.popitem(last=False)

    def missed(self, names: Sequence[str], reason: str) -> None:
        """It refused a request in which images were named only; images that were used before them are gone as well.

        Args:
            names: of the images of the request, in order.
            reason: what it said. Where that is nothing about its cache, it may know no names: all is sent from now on.
        """
        found = _MISS.search(reason)
        gone = names[int(found[1])] if found and int(found[1]) < len(names) else None
        if found and gone not in self._names:
            return  # it was found out before
        while self._names and self._names.popitem(last=False)[0] != gone:
            pass
        self.most = max(1, len(self._names)) if found else 0

    def forget(self) -> None:
        """Its caches were cleared."""
        self._names.clear()
