"""`python -m dart_train.launch.rank_launcher ...`: torchrun, which ends as the first of its ranks that failed.

torchrun ends with status 1 and a report of its own, whatever a rank said. A supervisor needs the rank's: its status
says whether another try is any use, and the last lines of the log what is wrong.
"""

from __future__ import annotations

import logging
import sys

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError


def main(arguments: list[str] | None = None) -> None:
    """Start the ranks and wait for them; torchrun's command line.

    Raises:
        SystemExit: with the status of the rank that failed first.
    """
    logging.disable(logging.CRITICAL)  # of torchrun: ranks log in processes of their own
    try:
        run.main(arguments)
    except ChildFailedError as error:
        _, failure = error.get_first_failure()
        sys.exit(failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode)


if __name__ == "__main__":
    main()
