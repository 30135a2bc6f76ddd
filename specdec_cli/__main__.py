"""The `specdec` command, and `python -m specdec_cli`."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line. A signal while Python still imports is no error, and neither is a closed stream."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115, PTH123  # as below
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, PTH123  # open as long as the process
        # A terminal or pipe that is not UTF-8 shows a question mark rather than costing the answer.
        getattr(sys, name).reconfigure(errors="replace")
    from specdec_cli.cli.signals import exit_codes_of_signals

    with exit_codes_of_signals():
        from specdec_cli.cli.app import app

        app()


if __name__ == "__main__":
    main()
