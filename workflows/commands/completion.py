"""Print a script that completes commands, options and configs in a shell. To have it in every shell, write it where the
shell looks, which `mkdir -p` may have to make first: `sparring completion bash >
~/.local/share/bash-completion/completions/sparring`, `... zsh > FOLDER/_sparring` for a folder of $fpath, `... fish >
~/.config/fish/completions/sparring.fish`."""

import argparse
import shlex
from pathlib import Path
from typing import NamedTuple

from sparring.workflows import ROOT
from sparring.workflows.program import NAME

SHELLS = ("bash", "zsh", "fish")


class Option(NamedTuple):
    """An option as a shell completes it."""

    names: list[str]
    about: str
    value: str | None
    """None where it takes none; `files`, or words to choose from, or nothing that is known."""


class Command(NamedTuple):
    """A command with its options, and what stands behind it."""

    name: str
    about: str
    options: list[Option]
    arguments: list[str]
    """What each argument is: `configs`, `files`, or words."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("shell", choices=SHELLS, help="the shell that reads it")


def call(arguments: argparse.Namespace) -> None:
    """Print the script."""
    top, commands = described(arguments.parser)
    print({"bash": bash, "zsh": zsh, "fish": fish}[arguments.shell](top, commands), end="")


def described(parser: argparse.ArgumentParser) -> tuple[list[Option], list[Command]]:
    """The options before the command, and the commands, read off the parser."""
    subs = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    about = {action.dest: action.help or "" for action in subs._choices_actions}
    commands = [
        Command(name, about[name], _options(sub), [_kind(one) for one in sub._actions if not one.option_strings])
        for name, sub in subs.choices.items()
    ]
    return _options(parser), commands


def _options(parser: argparse.ArgumentParser) -> list[Option]:
    shown = [one for one in parser._actions if one.option_strings and one.help != argparse.SUPPRESS]
    return [
        Option(list(one.option_strings), _plain(one.help or ""), None if one.nargs == 0 else _kind(one))
        for one in shown
    ]


def _kind(action: argparse.Action) -> str:
    """What an option's value or an argument is."""
    if action.choices is not None:
        return " ".join(map(str, action.choices))
    if action.metavar == "CONFIG":
        return "configs"
    return "files" if action.type is Path or action.dest == "store" else ""


def _plain(text: str) -> str:
    """A help text as shells can show it: one short line without marks that they read."""
    line = " ".join(text.split()).partition(" (")[0].partition(":")[0]
    return "".join(mark for mark in line if mark not in "[]`\\")


def bash(top: list[Option], commands: list[Command]) -> str:
    """The script for bash."""
    cases = "".join(_bash_case(command) for command in commands)
    valued = "|".join(name for option in top if option.value is not None for name in option.names)
    return f"""# Completes {NAME} in bash. Written by `{NAME} completion bash`.
_{NAME}_find() {{ # configs of the user and of the checkout, or files
    local found
    compopt -o filenames
    if [[ $1 == files ]]; then
        mapfile -t COMPREPLY < <(compgen -f -- "$2")
        return
    fi
    mapfile -t COMPREPLY < <(compgen -f -X '!*.yaml' -- "$2"; compgen -d -- "$2")
    if [[ ${{#COMPREPLY[@]}} == 0 && $2 != /* ]]; then
        while IFS= read -r found; do
            if [[ -d {shlex.quote(str(ROOT))}/$found ]]; then
                compopt -o nospace
                found+=/
            fi
            COMPREPLY+=("$found")
        done < <(cd {shlex.quote(str(ROOT))} && {{ compgen -f -X '!*.yaml' -- "$2"; compgen -d -- "$2"; }})
    fi
}}

_{NAME}() {{
    local word=${{COMP_WORDS[COMP_CWORD]//\\\\/}} before=${{COMP_WORDS[COMP_CWORD-1]}} command= options i
    for ((i = 1; i < COMP_CWORD; i++)); do
        case ${{COMP_WORDS[i]}} in
            {valued}) ((i++)) ;;
            -*) ;;
            *) command=${{COMP_WORDS[i]}}; break ;;
        esac
    done
    COMPREPLY=()
    case $command in
        '')
            case $before in
                {valued}) _{NAME}_find files "$word"; return ;;
            esac
            options={shlex.quote(" ".join([*_names(top), *(command.name for command in commands)]))}
            mapfile -t COMPREPLY < <(compgen -W "$options" -- "$word")
            return
            ;;
{cases}    esac
}}
complete -F _{NAME} {NAME}
"""


def _bash_case(command: Command) -> str:
    lines = [f"        {command.name})", "            case $before in"]
    for option in command.options:
        if option.value is not None:
            lines.append(f"                {'|'.join(option.names)}) {_bash_value(option.value)}; return ;;")
    lines += ["            esac", f"            options={shlex.quote(' '.join(_names(command.options)))}"]
    first = command.arguments[0] if command.arguments else ""
    rest = "files" if "files" in command.arguments[1:] else ""
    behind = f"if [[ $before == {command.name} ]]; then {_bash_value(first)}; else {_bash_value(rest or first)}; fi"
    return (
        "".join(f"{line}\n" for line in lines)
        + f"""\
            if [[ $word == -* ]]; then
                mapfile -t COMPREPLY < <(compgen -W "$options" -- "$word")
            else
                {behind}
            fi
            ;;
"""
    )


def _bash_value(kind: str) -> str:
    if kind in ("configs", "files"):
        return f'_{NAME}_find {kind} "$word"'
    return f'mapfile -t COMPREPLY < <(compgen -W {shlex.quote(kind)} -- "$word")' if kind else ":"


def _names(options: list[Option]) -> list[str]:
    return [name for option in options for name in option.names]


def zsh(top: list[Option], commands: list[Command]) -> str:
    """The script for zsh."""
    listed = "\n".join(f"        {shlex.quote(f'{one.name}:{_plain(one.about)}')}" for one in commands)
    cases = "".join(
        f"                {one.name})\n                    _arguments {' '.join(_zsh_options(one.options))} "
        f"{' '.join(_zsh_argument(kind) for kind in one.arguments)}\n                    ;;\n"
        for one in commands
    )
    return f"""#compdef {NAME}
# Completes {NAME} in zsh. Written by `{NAME} completion zsh`.
_{NAME}_configs() {{ # of the user, or else of the checkout
    _files -g '*.yaml' || _files -W {shlex.quote(str(ROOT))} -g '*.yaml'
}}

_{NAME}() {{
    local state line
    local -a commands=(
{listed}
    )
    _arguments -C {" ".join(_zsh_options(top))} '1:command:->command' '*::argument:->argument'
    case $state in
        command) _describe command commands ;;
        argument)
            case $words[1] in
{cases}            esac
            ;;
    esac
}}
if [[ $funcstack[1] == _{NAME} ]]; then
    _{NAME} "$@"
else
    compdef _{NAME} {NAME}
fi
"""


def _zsh_options(options: list[Option]) -> list[str]:
    made = []
    for option in options:
        value = "" if option.value is None else f":value:{_zsh_value(option.value)}"
        made += [shlex.quote(f"*{name}[{option.about}]{value}") for name in option.names]
    return made


def _zsh_argument(kind: str) -> str:
    return shlex.quote(f":argument:{_zsh_value(kind)}")


def _zsh_value(kind: str) -> str:
    if kind == "configs":
        return f"_{NAME}_configs"
    return "_files" if kind == "files" else f"({kind})" if kind else " "


def fish(top: list[Option], commands: list[Command]) -> str:
    """The script for fish."""
    lines = [
        f"# Completes {NAME} in fish. Written by `{NAME} completion fish`.",
        f"function __{NAME}_configs # of the user, or else of the checkout",
        "    set -l found (__fish_complete_suffix .yaml)",
        "    if test (count $found) -eq 0",
        f"        pushd {shlex.quote(str(ROOT))}; set found (__fish_complete_suffix .yaml); popd",
        "    end",
        "    printf '%s\\n' $found",
        "end",
        f"complete -c {NAME} -f",
        *(_fish_option("__fish_use_subcommand", option) for option in top),
    ]
    for one in commands:
        about = shlex.quote(_plain(one.about))
        lines.append(f"complete -c {NAME} -n __fish_use_subcommand -a {one.name} -d {about}")
        seen = f"'__fish_seen_subcommand_from {one.name}'"
        lines += [_fish_option(seen, option) for option in one.options]
        lines += [f"complete -c {NAME} -n {seen} {_fish_value(kind)}" for kind in dict.fromkeys(one.arguments) if kind]
    return "".join(f"{line}\n" for line in lines)


def _fish_option(where: str, option: Option) -> str:
    names = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names)
    value = "" if option.value is None else f" -r {_fish_value(option.value)}"
    return f"complete -c {NAME} -n {where} {names}{value} -d {shlex.quote(option.about)}"


def _fish_value(kind: str) -> str:
    if kind == "configs":
        return f"-a '(__{NAME}_configs)'"
    return "-F" if kind == "files" else f"-a {shlex.quote(kind)}"
