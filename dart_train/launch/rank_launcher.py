"""`python -m dart_train.launch.rank_launcher ...`: torchrun, with the exit status of the rank that failed first.

torchrun always ends with status 1 and a report of its own. A supervisor needs the rank's status, which says whether a
retry can help, and the rank's last lines, which say what is wrong.
"""

from __future__ import annotations

import logging
import os
import socket
import sys

import psutil
from torch.distributed import run
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError


def main(arguments: list[str] | None = None) -> None:
    """Start the ranks and wait for them; torchrun's command line.

    Raises:
        SystemExit: with the status of the rank that failed first.
    """
    logging.disable(logging.CRITICAL)  # silences torchrun: ranks log in processes of their own
    for word in sys.argv[1:] if arguments is None else arguments:
        if word.startswith("--master-addr="):  # gloo would use the address of this machine's host name, often loopback
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface_towards(word.partition("=")[2]))
    try:
        run.main(arguments)
    except ChildFailedError as error:
        _, failure = error.get_first_failure()
        sys.exit(failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode)


def interface_towards(host: str) -> str:
    """Return the name of the network interface through which this machine reaches a host, which may be itself."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # sends nothing
        own = probe.getsockname()[0]
    found = psutil.net_if_addrs().items()
    return next(name for name, addresses in found if own in (address.address for address in addresses))


if __name__ == "__main__":
    main()
