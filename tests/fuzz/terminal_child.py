"""In a child: a command on a pseudo-terminal, all that it writes there going to the child's own output."""

import os
import pty
import sys
import threading


def on_terminal(args: list[str]) -> None:
    from fuzzing_child import command

    main, side = pty.openpty()
    out = os.dup(1)

    def copy() -> None:
        try:
            while data := os.read(main, 65536):
                os.write(out, data)
        except OSError:  # nobody has it open any more
            pass

    thread = threading.Thread(target=copy)
    thread.start()
    for number in range(3):
        os.dup2(side, number)
    os.close(side)
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(n, "r" if n == 0 else "w", encoding="utf-8", errors="replace", closefd=False) for n in range(3)
    )
    try:
        command(args)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number in range(3):  # `enter` flushes what stands there
            os.dup2(out, number)
        thread.join(5)
