"""Completion for bash, zsh and fish, and the manual page, made from the operations.

    eval "$(hermes-lite completion bash)"           in ~/.bashrc
    hermes-lite completion zsh > ~/.zfunc/_hermes-lite
    hermes-lite completion fish > ~/.config/fish/completions/hermes-lite.fish
    hermes-lite man | man -l -

The scripts hold every command, option and choice of this version; nothing runs when Tab is
pressed. Make them anew after an update.
"""
from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import hermes_lite as core
from hermes_ext.command_help import EXAMPLES, groups_of, help_text
from hermes_lite import HermesLite, Operation, Param, UsageError, load_commands

__all__ = ["OPERATIONS", "SHELLS", "completion", "help_text", "manual_page"]

SHELLS = ("bash", "zsh", "fish")


@dataclass(frozen=True, slots=True)
class _Option:
    flag: str
    help: str
    takes_value: bool
    choices: tuple[str, ...] = ()
    is_file: bool = False


_SHARED = (_Option("--root", "the data root", True, is_file=True),
           _Option("--json", "print JSON", False),
           _Option("--quiet", "print data and errors alone", False),
           _Option("--help", "show the help", False))
_DESTRUCTIVE = (_Option("--dry-run", "only show what and why", False),
                _Option("--yes", "do not ask", False))


def _operations() -> dict[str, Operation]:
    """Return every operation with its parameters; this imports all systems."""
    return {name: load_commands(name)[name] for name in load_commands(None)}


def _options(operation: Operation) -> list[_Option]:
    own = [_Option(_flag(param), param.help, param.kind is not bool, param.choices,
                   param.kind is Path) for param in operation.params if not param.positional]
    added = _DESTRUCTIVE if operation.destructive else ()
    known = {option.flag for option in own}
    return [*own, *(option for option in (*added, *_SHARED) if option.flag not in known)]


def _flag(param: Param) -> str:
    return f"--{param.name.replace('_', '-')}"


def _words(operation: Operation) -> tuple[str, ...]:
    """Return the values that the first positional parameter may have."""
    return next((param.choices for param in operation.params if param.positional), ())


def _second_words(operations: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in operations:
        first, _, second = name.partition(" ")
        if second:
            found.setdefault(first, []).append(second)
    return found


def completion(memory: HermesLite, *, shell: str) -> str:
    """Return the completion script of a shell; UsageError for another than SHELLS."""
    if shell not in SHELLS:
        raise UsageError(f"there is no completion for {memory.redactor.quote(shell)}; use one of: "
                         f"{', '.join(SHELLS)}")
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](_operations())


# -- bash ---------------------------------------------------------------------

def _bash(operations: dict[str, Operation]) -> str:
    groups = _second_words(operations)
    firsts = sorted({name.split()[0] for name in operations})
    seconds = [f"        {first}) words={shlex.quote(' '.join(second))} ;;"
               for first, second in sorted(groups.items())]
    cases: list[str] = []
    values: dict[tuple[str, ...], list[str]] = {}
    files: list[str] = []
    for name, operation in sorted(operations.items()):
        options = _options(operation)
        words = [*(option.flag for option in options), *_words(operation)]
        cases.append(f"        {shlex.quote(name)}) words={shlex.quote(' '.join(words))} ;;")
        for option in options:
            if option.is_file:
                files.append(f"{name} {option.flag}")
            elif option.takes_value:
                values.setdefault(option.choices, []).append(f"{name} {option.flag}")
    chosen = [f"        {_pattern(keys)}) words={shlex.quote(' '.join(choices))}; is_value=1 ;;"
              for choices, keys in values.items()]
    return "\n".join([
        "# bash completion of hermes-lite; made by `hermes-lite completion bash`",
        "_hermes_lite() {",
        "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}",
        "    local at=1 command= first= words= is_value=",
        "    COMPREPLY=()",
        "    while [ $at -lt $COMP_CWORD ]; do",
        "        case ${COMP_WORDS[at]} in",
        "        --root) at=$((at + 1)) ;;",
        "        -*) ;;",
        "        *) first=${COMP_WORDS[at]}; break ;;",
        "        esac",
        "        at=$((at + 1))",
        "    done",
        "    if [ -z \"$first\" ]; then",
        "        if [ \"$before\" = --root ]; then",
        "            COMPREPLY=($(compgen -d -- \"$word\")); return",
        "        fi",
        f"        words={shlex.quote(' '.join([*firsts, *(o.flag for o in _SHARED)]))}",
        "        COMPREPLY=($(compgen -W \"$words\" -- \"$word\")); return",
        "    fi",
        "    command=$first",
        "    case $first in",
        f"    {'|'.join(sorted(groups))})",
        "        if [ $((at + 1)) -eq $COMP_CWORD ]; then",
        "            case $first in",
        *("    " + line for line in seconds),
        "            esac",
        "            COMPREPLY=($(compgen -W \"$words\" -- \"$word\")); return",
        "        fi",
        "        command=\"$first ${COMP_WORDS[at+1]}\" ;;",
        "    esac",
        "    case \"$command $before\" in",
        f"        {_pattern(files)}) COMPREPLY=($(compgen -f -- \"$word\")); return ;;",
        *chosen,
        "    esac",
        "    if [ -z \"$is_value\" ]; then",
        "        case \"$command\" in",
        *("    " + line for line in cases),
        "        esac",
        "    fi",
        "    COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))",
        "}",
        "complete -o default -F _hermes_lite hermes-lite", ""])


def _pattern(words: Iterable[str]) -> str:
    return "|".join(shlex.quote(word) for word in words)


# -- zsh ----------------------------------------------------------------------

def _zsh(operations: dict[str, Operation]) -> str:
    groups = _second_words(operations)
    firsts = {name.split()[0]: operation.help for name, operation in operations.items()}
    firsts.update((first, f"{' | '.join(second)}") for first, second in groups.items())
    lines = ["#compdef hermes-lite",
             "# zsh completion of hermes-lite; made by `hermes-lite completion zsh`",
             "_hermes_lite() {", "    local -a commands", "    local command=",
             "    commands=("]
    lines += [f"        {_sq(first + ':' + text.replace(':', ' -'))}"
              for first, text in sorted(firsts.items())]
    lines += ["    )", "    local -i at=2",
              "    while (( at < CURRENT )); do",
              "        case $words[at] in",
              "        --root) (( at += 1 )) ;;", "        -*) ;;",
              "        *) command=$words[at]; break ;;", "        esac", "        (( at += 1 ))",
              "    done",
              "    if [[ -z $command ]]; then",
              "        if [[ $words[CURRENT-1] == --root ]]; then _files -/; return; fi",
              "        if [[ $PREFIX == -* ]]; then compadd -- "
              + " ".join(option.flag for option in _SHARED) + "; return; fi",
              "        _describe command commands; return", "    fi",
              "    case $command in"]
    for first, second in sorted(groups.items()):
        lines += [f"    {first})",
                  f"        if (( at + 1 == CURRENT )); then compadd -- {' '.join(second)}; "
                  "return; fi",
                  "        command=\"$command $words[at+1]\"; (( at += 1 )) ;;"]
    lines += ["    esac", "    (( at -= 1 )); shift $at words; (( CURRENT -= at ))",
              "    case $command in"]
    for name, operation in sorted(operations.items()):
        lines.append(f"    {_sq(name)})")
        specs = [_zsh_option(option) for option in _options(operation)]
        choices = _words(operation)
        specs.append(_sq("*: :(" + " ".join(choices) + ")") if choices else _sq("*:file:_files"))
        lines.append("        _arguments " + " ".join(specs) + " ;;")
    return "\n".join([*lines, "    esac", "}", 'if [[ "$funcstack[1]" == _hermes-lite ]]; then',
                      "    _hermes_lite \"$@\"", "else", "    compdef _hermes_lite hermes-lite",
                      "fi", ""])


def _zsh_option(option: _Option) -> str:
    text = option.help
    for sign in "\\[]:":
        text = text.replace(sign, f"\\{sign}")
    spec = f"{option.flag}[{text}]"
    if option.is_file:
        spec += ":file:_files"
    elif option.takes_value:
        spec += ":value:" + (f"({' '.join(option.choices)})" if option.choices else " ")
    return _sq(spec)


def _sq(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


# -- fish ---------------------------------------------------------------------

def _fish(operations: dict[str, Operation]) -> str:
    groups = _second_words(operations)
    firsts = {name.split()[0]: operation.help for name, operation in operations.items()}
    firsts.update((first, " | ".join(second)) for first, second in groups.items())
    lines = ["# fish completion of hermes-lite; made by `hermes-lite completion fish`",
             "complete -c hermes-lite -f"]
    lines += [_fish_option("", option) for option in _SHARED]
    lines += [f"complete -c hermes-lite -n __fish_use_subcommand -a {first} -d {_fish_quote(text)}"
              for first, text in sorted(firsts.items())]
    for name, operation in sorted(operations.items()):
        first, _, second = name.partition(" ")
        seen = f"__fish_seen_subcommand_from {first}"
        if second:
            others = " ".join(groups[first])
            lines.append(f"complete -c hermes-lite -n '{seen}; and not __fish_seen_subcommand_from"
                         f" {others}' -a {second} -d {_fish_quote(operation.help)}")
            seen += f"; and __fish_seen_subcommand_from {second}"
        shared = {option.flag for option in _SHARED}
        lines += [_fish_option(seen, option) for option in _options(operation)
                  if option.flag not in shared]
        if _words(operation):
            lines.append(f"complete -c hermes-lite -n '{seen}' -a {_sq(' '.join(_words(operation)))}")
    return "\n".join([*lines, ""])


def _fish_option(seen: str, option: _Option) -> str:
    words = ["complete -c hermes-lite"]
    if seen:
        words.append(f"-n '{seen}'")
    words.append(f"-l {option.flag[2:]} -d {_fish_quote(option.help)}")
    if option.is_file:
        words.append("-r -F")
    elif option.choices:
        words.append(f"-x -a {_fish_quote(' '.join(option.choices))}")
    elif option.takes_value:
        words.append("-x")
    return " ".join(words)


def _fish_quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


# -- manual page --------------------------------------------------------------

def manual_page(memory: HermesLite) -> str:
    """Return the manual page hermes-lite(1) in roff."""
    return "\n".join([*_manual_lines(_operations()), ""])


def _manual_lines(operations: dict[str, Operation]) -> Iterator[str]:
    yield f'.TH HERMES\\-LITE 1 "" "hermes\\-lite {core.__version__}" "User Commands"'
    yield from (".SH NAME", "hermes\\-lite \\- the memory of your agents, in files of your own")
    yield from (".SH SYNOPSIS", ".B hermes\\-lite",
                "[\\fB\\-\\-root\\fR \\fIDIR\\fR] [\\fB\\-\\-json\\fR] [\\fB\\-\\-quiet\\fR] "
                "\\fICOMMAND\\fR ...")
    yield from (".SH OPTIONS", *(line for option in _SHARED for line in _manual_option(option)))
    shared = {option.flag for option in _SHARED}
    for title, group in groups_of(operations).items():
        yield f'.SH "{_roff(title.upper())}"'
        for operation in group:
            places = " ".join(f"[\\fI{_roff(param.name.upper())}\\fR]" for param in
                              operation.params if param.positional)
            yield from (f'.SS "{_roff(operation.name)}"',
                        f"\\fBhermes\\-lite {_roff(operation.name)}\\fR {places}".rstrip(),
                        ".br", _roff(operation.help[:1].upper() + operation.help[1:]) + ".")
            for option in _options(operation):
                if option.flag not in shared:
                    yield from _manual_option(option)
            if operation.name in EXAMPLES:
                yield from (".PP", "Examples:", ".nf")
                yield from ("  " + _roff(line) for line in EXAMPLES[operation.name])
                yield ".fi"
    yield from (".SH EXIT STATUS", "0 ok, 1 failure, 2 usage, 3 configuration, 10 not found, "
                "11 refused, 12 locked, 13 damaged data, 130 interrupted")
    yield from (".SH ENVIRONMENT",)
    for name, text in (("HERMES_LITE_ROOT", "the data root"), ("NO_COLOR", "no colour"),
                       ("HERMES_PAGER, PAGER", "the pager of long lists; empty is none")):
        yield from (".TP", f".B {_roff(name)}", _roff(text))


def _manual_option(option: _Option) -> Iterator[str]:
    value = " \\fIVALUE\\fR" if option.takes_value else ""
    choices = f": {', '.join(option.choices)}" if option.choices else ""
    yield from (".TP", f"\\fB{_roff(option.flag)}\\fR{value}", _roff(option.help + choices))


def _roff(text: str) -> str:
    """Escape a text for roff; a leading dot or quote would be a request."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text[:1] in ".'" else text


OPERATIONS = (
    Operation("completion", "print the completion of a shell: bash, zsh or fish", completion,
              (Param("shell", str, "the shell", positional=True, required=True, choices=SHELLS),),
              lambda script: script.splitlines(), scope="local"),
    Operation("man", "print the manual page", manual_page, (),
              lambda page: page.splitlines(), scope="local"),
)
