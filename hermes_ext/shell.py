"""Shell: type commands one after the other; the memory stays open between them, so it is quick.

    hermes_lite.py shell
    hermes> remember 客户张三的合同编号是CT2024-0876 --category config
    hermes> recall 合同
    hermes> exit

    hermes_lite.py shell < commands.txt

Every command of the command line works as it does there, with its options, `--json` and
`--help`; `--root` does not, for the root is open already, and `-` has no standard input to read.
`help` lists the commands; `exit`, `quit` or Ctrl-D ends; Ctrl-C gives a line or a command up.

On a terminal, Tab completes commands, options, ids, rooms and categories. The history is redacted
before it is kept: in .state_shell.json, 0600, sealed where the store is encrypted, the last 500
lines. Lines of `remember` and `digest` are kept for the session only: what they say belongs into
the store, where `forget` reaches it.

Where standard input is no terminal it is a script: a command a line, blank lines and lines that
start with # are passed over, an error does not stop it, and the exit code is the highest of all.
"""
from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from hermes_lite import (HermesError, HermesLite, Operation, Record, UsageError, build_parser,
                         check_installed,
                         explain_usage, help_of_group, is_group, join_command_words,
                         load_commands, perform, print_message, result_warnings)

__all__ = ["OPERATIONS", "Session", "complete", "execute", "shell"]

_PROMPT = "hermes> "
_KEPT = 500
_MOST = 200
_OWN = ("exit", "quit", "help")
_TEXTS = ("remember", "digest")                    # their words are no history


@dataclass(frozen=True, slots=True)
class Session(Record):
    """What a session did: commands run, how many failed, the highest exit code of a script."""
    commands: int
    failed: int
    exit_code: int = 0


# -- one command --------------------------------------------------------------

def execute(memory: HermesLite, line: str) -> int | None:
    """Run one line and return its exit code; None says that the session should end.

    Errors are one sentence on standard error, as on the command line.
    """
    try:
        words = _words(line)
        if words[:1] in (["exit"], ["quit"]):
            return None
        return _run(memory, words) if words else 0
    except HermesError as problem:
        print_message(str(problem))
        return problem.exit_code
    except SystemExit as end:                      # argparse, after --help
        return int(end.code or 0)
    except OSError as problem:
        if isinstance(problem, BrokenPipeError):
            raise
        print_message(f"{problem.filename or 'the system'}: {problem.strerror or problem}")
        return 1


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=False)
    except ValueError:
        raise UsageError("a quote is not closed, or the line ends with a backslash; put a text "
                         "of several words between two \" or two '") from None


def _run(memory: HermesLite, words: list[str]) -> int:
    if words[0] == "help":
        words = [*words[1:], "--help"]
    name, *rest = join_command_words(words)
    known = load_commands(name)
    if name.startswith("-"):
        build_parser(known).parse_args([name, *rest])
    if is_group(name, known):
        print(help_of_group(name, known, is_asked="--help" in rest))
        return 0
    check_installed(name, known)
    if name not in known:
        raise UsageError(explain_usage(f"invalid choice: {name!r}", (*known, *_OWN)))
    operation = known[name]
    _check(operation, rest)
    arguments = vars(build_parser({name: operation}).parse_args([name, *rest]))
    del arguments["command"]
    return _performed(memory, operation, arguments)


def _check(operation: Operation, rest: list[str]) -> None:
    if operation.name == "shell":
        raise UsageError("this is the shell already")
    if operation.name == "mcp":
        raise UsageError("mcp takes standard input and output for itself; leave the shell first")
    if any(word == "--root" or word.startswith("--root=") for word in rest):
        raise UsageError("the shell has its root open; give --root before `shell`")
    if "-" in rest and operation.name != "export":
        raise UsageError("in the shell - has nothing to read; put the text in quotes")


def _performed(memory: HermesLite, operation: Operation, arguments: dict[str, object]) -> int:
    opened = operation.open(memory.root) if operation.open else contextlib.nullcontext(memory)
    is_quiet = arguments.get("quiet", False)
    with opened as used:
        result = perform(used, operation, arguments, surface="shell")
    if is_quiet:
        return getattr(result, "exit_code", 0)
    for sentence in (*result_warnings(result), *used.take_notices()):
        print_message(sentence)
    return getattr(result, "exit_code", 0)


# -- a session ----------------------------------------------------------------

def shell(memory: HermesLite) -> Session:
    """Run commands from standard input until it ends; ask for them where it is a terminal."""
    if not sys.stdin.isatty():
        return _script(memory, _lines())
    with _history(memory) as keep:
        print("exit or Ctrl-D ends, help lists the commands", file=sys.stderr)
        return _dialogue(memory, keep)


def _lines() -> Iterator[str]:
    raw = getattr(sys.stdin, "buffer", None)
    for line in raw if raw is not None else sys.stdin:
        yield line.decode("utf-8-sig", "replace") if isinstance(line, bytes) else line


def _script(memory: HermesLite, lines: Iterator[str]) -> Session:
    codes = []
    for line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        code = execute(memory, line.strip())
        if code is None:
            break
        codes.append(code)
    return Session(len(codes), sum(map(bool, codes)), max(codes, default=0))


def _dialogue(memory: HermesLite, keep) -> Session:
    codes = []
    while True:
        try:
            line = input(_PROMPT).strip()
            keep(line)
            code = execute(memory, line) if line else 0
            if code is None:
                break
            codes += [code] if line else []
        except KeyboardInterrupt:
            print(file=sys.stderr)
        except EOFError:
            print(file=sys.stderr)
            break
    return Session(len(codes), sum(map(bool, codes)))


@contextlib.contextmanager
def _history(memory: HermesLite) -> Iterator[object]:
    """Bring back the history and completion of a terminal; keep the new lines at the end."""
    fresh: list[str] = []
    try:
        import readline
    except ImportError:                            # Windows: no history, no completion
        yield fresh.append
        return
    readline.set_auto_history(False)
    readline.set_completer(_completer(memory, readline))
    readline.set_completer_delims(" \t\n")
    readline.parse_and_bind("bind ^I rl_complete" if "libedit" in (readline.__doc__ or "")
                            else "tab: complete")
    readline.clear_history()
    for line in _kept(memory):
        readline.add_history(line)

    def keep(line: str) -> None:
        clean = memory.redact(line)[0]
        if line:
            readline.add_history(clean)
        if line and line.split()[0] not in _TEXTS:
            fresh.append(clean)

    try:
        yield keep
    finally:
        readline.set_completer(None)
        readline.set_auto_history(True)
        if fresh:                                  # another shell may have added some meanwhile
            memory.save_state("shell", {"history": [*_kept(memory), *fresh][-_KEPT:]})


def _kept(memory: HermesLite) -> list[str]:
    lines = memory.state("shell").get("history")
    return [line for line in lines if isinstance(line, str)] if isinstance(lines, list) else []


# -- completion ---------------------------------------------------------------

def _completer(memory: HermesLite, readline):
    found: list[str] = []

    def at(text: str, state: int) -> str | None:
        if state == 0:
            try:
                found[:] = complete(memory, readline.get_line_buffer()[:readline.get_endidx()])
            except HermesError:                    # a key press must not end in a traceback
                found.clear()
        return found[state] if state < len(found) else None
    return at


def complete(memory: HermesLite, line: str) -> list[str]:
    """Return what the last word of *line* may become: commands, options, values, ids."""
    words = line.split()
    last = words.pop() if words and not line[-1].isspace() else ""
    if not words:
        names = sorted({*load_commands(None), *_OWN})
        return [f"{name} " for name in names if name.startswith(last)]
    words = join_command_words(words)
    operation = load_commands(words[0]).get(words[0])
    if operation is None:
        return []
    before = next((p for p in operation.params if words[-1] == f"--{_flag(p.name)}"
                   and p.kind is not bool), None)
    if before is None and last.startswith("-"):
        names = [_flag(p.name) for p in operation.params if not p.positional] + ["json"] + (
            ["dry-run", "yes"] if operation.destructive else [])
        return sorted(f"--{name} " for name in names if f"--{name}".startswith(last))
    wanted = before or next((p for p in operation.params if p.positional), None)
    return [f"{value} " for value in _values(memory, wanted.name if wanted else "", last)]


def _flag(name: str) -> str:
    return name.replace("_", "-")


def _values(memory: HermesLite, name: str, start: str) -> list[str]:
    """Return the values of a parameter that begin with *start*, at most 200."""
    fixed: Mapping[str, object] = {"room": memory.config.rooms,
                                   "category": memory.config["category_mapping"]}
    if name == "id":
        memory.store.refresh()
        return list(islice((m.id for m in memory.store if m.id.startswith(start)), _MOST))
    return [value for value in fixed.get(name, ()) if value.startswith(start)]


OPERATIONS = (Operation("shell", "type commands one after the other", shell, scope="local"),)
