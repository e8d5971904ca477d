"""``child.py PARENT COMMAND …``: becomes COMMAND, which the kernel ends should PARENT die (Linux).

A program of its own because a ``preexec_fn`` is unsafe in a parent that has threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before the line above
        sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
