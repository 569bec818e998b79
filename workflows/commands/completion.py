"""Print a script that completes commands, options and configs in a shell. Write it to the file that your shell reads:
`sparring completion bash > ~/.local/share/bash-completion/completions/sparring`, `sparring completion zsh >
FOLDER/_sparring` for a folder of $fpath, or `sparring completion fish > ~/.config/fish/completions/sparring.fish`.
Create the folder with `mkdir -p` if it is missing."""

import argparse
from pathlib import Path

import shtab

from sparring.workflows.program import NAME


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("shell", choices=shtab.SUPPORTED_SHELLS, help="the shell that reads the script")


def call(arguments: argparse.Namespace) -> None:
    """Print the script."""
    top: argparse.ArgumentParser = arguments.parser
    top.prog = NAME
    commands = next(action for action in top._actions if isinstance(action, argparse._SubParsersAction))
    for parser in (top, *commands.choices.values()):
        parser.description = (parser.description or "").partition(". ")[0]  # shells show it next to the command
        for action in parser._actions:
            if action.metavar == "CONFIG":
                action.complete = shtab.glob("*.yaml")
            elif action.type is Path or action.dest in ("store", "folder"):
                action.complete = shtab.FILE
    print(shtab.complete(top, arguments.shell))
