"""A system that disturbs standard input and output wherever it is called; for test_mcp."""
import logging
import os
import subprocess
import sys
import warnings

from hermes_lite import Operation, Param


def disturb() -> None:
    """Print in every way there is, and read what belongs to the protocol."""
    print("noise: print")
    print("noise: the stream of the start", file=sys.__stdout__)
    os.write(1, b"noise: file descriptor 1\n")
    subprocess.run([sys.executable, "-S", "-c", "print('noise: a program')"], check=True)
    warnings.warn("noise: a warning", stacklevel=1)
    logging.getLogger("loud").error("noise: a log line")
    sys.stdin.readline()


class Loud:
    name = "loud"

    def before_store(self, draft):
        disturb()
        return draft


def fail(memory, text):
    disturb()
    raise RuntimeError(f"an unexpected error about {text}")


OPERATIONS = (Operation("loud", "print, then fail", fail, (Param("text", str, "any"),)),)


def system(memory):
    print("noise: while the memory is opened")
    return Loud()
