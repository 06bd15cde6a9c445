"""`emberq completion`: the script with which bash, zsh or fish completes commands, flags and their values.

The script is made from the table of all commands (`catalog`) and runs no program: a Tab costs nothing. It knows which
words lead to a command, the flags of each, and of some flags which values they take. Names of topics are not completed,
because that would mean asking a cluster at every Tab.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from shlex import quote

from emberq.cli.catalog import CommandEntry, FlagEntry, catalog
from emberq.cli.terminal import DONE, CommandParser, Terminal, command_parser, run_command

EXAMPLES = """\
examples:
  source <(emberq completion bash)                                        in ~/.bashrc
  emberq completion zsh > "${fpath[1]}/_emberq"                           once
  emberq completion fish > ~/.config/fish/completions/emberq.fish         once
"""


def main(argv: Sequence[str]) -> int:
    """Write the script; the exit status."""
    return run_command(make_parser(), argv, _write)


def make_parser() -> CommandParser:
    """Its flags and arguments."""
    parser = command_parser(
        "emberq completion", "Write the script with which a shell completes emberq's commands.", epilog=EXAMPLES
    )
    parser.add_argument("shell", choices=tuple(SHELLS), metavar="SHELL", help="bash, zsh or fish")
    return parser


async def _write(arguments: argparse.Namespace, terminal: Terminal) -> int:
    script = SHELLS[arguments.shell](catalog())
    terminal.report({"shell": arguments.shell, "script": script}, script.rstrip("\n"))
    return DONE


def _programs(root: CommandEntry) -> list[str]:
    """The names that are completed: emberq, and the programs that are called by their own."""
    return [root.name, *(entry.words[-1] for entry in root if entry.is_program)]


def _words(entry: CommandEntry) -> list[str]:
    """What can follow a command."""
    choices = [choice for argument in entry.arguments for choice in argument.choices]
    return [
        *(below.words[-1] for below in entry.commands),
        *choices,
        *(name for flag in entry.flags for name in flag.names),
    ]


def _steps(root: CommandEntry) -> list[str]:
    return [entry.name for entry in root if entry is not root]


# bash

_BASH = """\
# Completion of emberq for bash; made by `emberq completion bash`.
_emberq() {
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} at=${COMP_WORDS[0]##*/} i words=
    if [[ $current == "=" ]]; then current=; elif [[ $previous == "=" ]]; then previous=${COMP_WORDS[COMP_CWORD-2]}; fi
    [[ $at == emberq ]] || at="emberq $at"
    for (( i = 1; i < COMP_CWORD; i++ )); do
        case "$at ${COMP_WORDS[i]}" in
            @STEPS@) at="$at ${COMP_WORDS[i]}" ;;
        esac
    done
    case "$at $previous" in
@VALUES@
    esac
    case "$at" in
@WORDS@
    esac
    COMPREPLY=( $(compgen -W "$words" -- "$current") )
}
complete -o default -F _emberq @PROGRAMS@
"""


def bash_script(root: CommandEntry) -> str:
    """The script for bash."""
    words = [f"        {quote(entry.name)}) words={quote(' '.join(_words(entry)))} ;;" for entry in root]
    return _filled(
        _BASH,
        STEPS="|".join(map(quote, _steps(root))),
        VALUES="\n".join(_bash_values(root)),
        WORDS="\n".join(words),
        PROGRAMS=" ".join(_programs(root)),
    )


def _bash_values(root: CommandEntry) -> Iterator[str]:
    """What follows a flag: one of a few words, a path, or something that only the user knows."""
    for entry in root:
        for flag in entry.flags:
            if not flag.value:
                continue
            patterns = "|".join(quote(f"{entry.name} {name}") for name in flag.names)
            if flag.choices:
                made = f'COMPREPLY=( $(compgen -W {quote(" ".join(flag.choices))} -- "$current") )'
            else:
                made = 'COMPREPLY=( $(compgen -f -- "$current") )' if flag.is_path else "COMPREPLY=()"
            yield f"        {patterns}) {made}; return ;;"


def _filled(template: str, **parts: str) -> str:
    for name, part in parts.items():
        template = template.replace(f"@{name}@", part)
    return template


# zsh

_ZSH = """\
#compdef @PROGRAMS@
# Completion of emberq for zsh; made by `emberq completion zsh`.
_emberq() {
    local at=${words[1]:t} i
    local -a found
    [[ $at == emberq ]] || at="emberq $at"
    for (( i = 2; i < CURRENT; i++ )); do
        case "$at ${words[i]}" in
            @STEPS@) at="$at ${words[i]}" ;;
        esac
    done
    case "$at ${words[CURRENT-1]}" in
@VALUES@
    esac
    case "$at" in
@WORDS@
    esac
    (( $#found )) && _describe word found
    [[ ${words[CURRENT]} == -* ]] || _files
}
# Loaded from a folder of fpath it is the function itself; read by `source` it is only made known.
if [[ $funcstack[1] == _emberq ]]; then _emberq "$@"; else compdef _emberq @PROGRAMS@; fi
"""


def zsh_script(root: CommandEntry) -> str:
    """The script for zsh, which shows what each word means."""
    words = [f"        {quote(entry.name)}) found=({' '.join(_zsh_words(entry))}) ;;" for entry in root]
    values = []
    for entry in root:
        for flag in entry.flags:
            patterns = "|".join(quote(f"{entry.name} {name}") for name in flag.names)
            if flag.choices:
                values.append(f"        {patterns}) compadd -- {' '.join(map(quote, flag.choices))}; return ;;")
            elif flag.value:
                values.append(f"        {patterns}) {'_files; ' if flag.is_path else ''}return ;;")
    return _filled(
        _ZSH,
        STEPS="|".join(map(quote, _steps(root))),
        VALUES="\n".join(values),
        WORDS="\n".join(words),
        PROGRAMS=" ".join(_programs(root)),
    )


def _zsh_words(entry: CommandEntry) -> Iterator[str]:
    for below in entry.commands:
        yield quote(f"{below.words[-1]}:{below.summary}")
    for argument in entry.arguments:
        yield from map(quote, argument.choices)
    for flag in entry.flags:
        for name in flag.names:
            yield quote(f"{name}:{flag.meaning}".replace("\\", "\\\\"))


# fish

_FISH = """\
# Completion of emberq for fish; made by `emberq completion fish`.
function __emberq_at
    set -l words (commandline -opc)
    set -l at emberq
    for word in $words[2..-1]
        if contains -- "$at $word" @STEPS@
            set at "$at $word"
        end
    end
    test "$at" = "$argv[1]"
end
complete -c emberq -f
@LINES@
"""


def fish_script(root: CommandEntry) -> str:
    """The script for fish, which shows what each word means."""
    return _filled(_FISH, STEPS=" ".join(map(quote, _steps(root))), LINES="\n".join(_fish_lines(root)))


def _fish_lines(root: CommandEntry) -> Iterator[str]:
    for entry in root:
        condition = f'-n "__emberq_at {quote(entry.name)}"'
        for below in entry.commands:
            yield f"complete -c emberq {condition} -a {below.words[-1]} -d {_fish_text(below.summary)}"
        for argument in entry.arguments:
            if argument.choices:
                yield f"complete -c emberq {condition} -a {_fish_text(' '.join(argument.choices))}"
        for flag in entry.flags:
            yield f"complete -c emberq {condition} {_fish_flag(flag)}"
            if entry.is_program:
                yield f"complete -c {entry.words[-1]} {_fish_flag(flag)}"


def _fish_flag(flag: FlagEntry) -> str:
    names = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in flag.names)
    value = ""
    if flag.choices:
        value = f" -x -a {_fish_text(' '.join(flag.choices))}"
    elif flag.value:
        value = " -r -F" if flag.is_path else " -x"
    return f"{names}{value} -d {_fish_text(flag.meaning)}"


def _fish_text(text: str) -> str:
    """In quotes: fish knows two escapes between single ones."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


SHELLS: dict[str, Callable[[CommandEntry], str]] = {"bash": bash_script, "zsh": zsh_script, "fish": fish_script}
