"""The command line: `sparring COMMAND ...`, and `python -m workflows COMMAND ...` in a checkout."""

import argparse
import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from sparring.components.config import UserError
from sparring.workflows.commands import (
    adapt,
    chaos,
    clean,
    completion,
    convert,
    doctor,
    encode,
    evaluate,
    export,
    init,
    marks,
    plan,
    push,
    record,
    report,
    rerank,
    run,
    search,
    serve,
    shared_arguments,
    show,
    submit,
    tune,
    verify,
)
from sparring.workflows.program import program, without_passwords
from sparring.workflows.store import s3
from sparring.workflows.store.availability import NotMade, remade
from sparring.workflows.store.dag import StepFailed

COMMANDS = (
    adapt,
    init,
    plan,
    run,
    submit,
    tune,
    show,
    report,
    record,
    search,
    encode,
    rerank,
    serve,
    marks,
    export,
    push,
    convert,
    evaluate,
    verify,
    clean,
    doctor,
    chaos,
    completion,
)
"""A module for each command, named like the command. Its docstring is the help, `add_arguments` takes a parser, and
`call` takes the parsed arguments."""

OF_THE_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE}
"""Errors of a disk that is full, read-only, broken or someone else's. A traceback would not explain them."""
OF_RIGHTS = {errno.EACCES, errno.EPERM}
"""Errors that say that this user has no permission."""
YOURS = "files and folders that you may use; --store PLACE moves the store, --runs FOLDER the runs"

KEPT = "Finished steps are kept. Repeat the command to resume."
FIX_AND_REPEAT = "Finished steps are kept. Fix the cause, then repeat the command to resume."

GUIDE = """\
Sparring trains retrievers and rerankers for your documents, compares them with what you run today, and says what to
deploy.

To begin:
  {program} run configs/demo.yaml              train and compare in minutes, on documentation that is installed here
  {program} search configs/demo.yaml "QUESTION"
                                               search with the result
Your own collection, a folder or a file (BEIR, MS MARCO, DPR, CSV, TSV, JSON lines, Parquet, lists of texts):
  {program} adapt MY-FOLDER                    `init` and `run` in one command
  {program} init MY-FOLDER                     describe the collection, and write a short config, MY-FOLDER.yaml
  {program} plan MY-FOLDER.yaml                list the steps, and the numbers chosen for the collection
  {program} run MY-FOLDER.yaml                 train and compare; ends with the system to deploy

"""
"""Text that the command prints if it is called without arguments."""


def main(words: list[str] | None = None) -> int:
    """Run one command. Return 0 for done, 2 for a user's mistake, 1 for a failure, 130 for Ctrl-C and 143 for
    SIGTERM."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the caller closed it, as `>&-` does
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):  # with LANG=C it cannot write all characters
        sys.stdout.reconfigure(errors="backslashreplace")
    for word in sys.argv[1:] if words is None else words:
        if any("\ud800" <= character <= "\udfff" for character in word):
            print(
                f"error: argument {word!a}: it is not UTF-8. Write it in UTF-8. If it names a file or folder, rename "
                "that, or enter the folder and write `.`",
                file=sys.stderr,
            )
            return 2
    if not (sys.argv[1:] if words is None else words):
        print(GUIDE.format(program=program()) + parser().format_help(), end="")
        return 0
    arguments = parser().parse_args(words)
    terminated = threading.Event()

    def terminate(number: int, frame: Any) -> NoReturn:
        terminated.set()  # Ray replaces an exception that is raised while it waits
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, terminate)
    try:
        arguments.call(arguments)
        sys.stdout.flush()
        return 0
    except UserError as mistake:
        return _said(mistake, arguments)
    except StepFailed as error:
        print(without_passwords(f"failed: {error}\n{FIX_AND_REPEAT}"), file=sys.stderr)
        return 1
    except KeyboardInterrupt as stop:
        reason = "Terminated." if terminated.is_set() else "Interrupted."
        # Commands without a cluster, and `plan`, run no steps; the files of `chaos` are removed.
        runs = hasattr(arguments, "cluster") and not {"estimate", "kills"} & vars(arguments).keys()
        kept = f" {KEPT}" if runs else ""
        print(f"\n{str(stop) or reason + kept}", file=sys.stderr)
        return 143 if terminated.is_set() else 130
    except BrokenPipeError:  # the program that reads our output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # a name on the command line or in a config
            print(f"error: {UserError(f'{error.filename}: {error.strerror}')}", file=sys.stderr)
            return 2
        if error.errno not in OF_THE_DISK:
            if lost := shared_arguments.damaged(arguments):  # an error of Arrow's, not of a system call
                return _said(lost, arguments)
            raise
        place = f"{error.filename}: " if error.filename else _output() or _disks(arguments)
        if error.errno in OF_RIGHTS and error.filename:
            print(f"error: {place}{error.strerror}; accepted: {YOURS}", file=sys.stderr)
            return 2
        print(f"failed: {place}{error.strerror}\n{FIX_AND_REPEAT}", file=sys.stderr)
        return 1
    except Exception:
        if lost := shared_arguments.damaged(arguments):
            return _said(lost, arguments)
        raise
    finally:
        with suppress(KeyboardInterrupt):  # a second Ctrl-C, while leaving Ray
            shared_arguments.leave()


def _output() -> str:
    """Name this program's output, if it cannot be written. Such errors name no file. Return "" if it can be written."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python writes the rest when it ends
        return "standard output: "
    return ""


def _disks(arguments: argparse.Namespace) -> str:
    """Name the places on disk that may cause an error which names no file."""
    places = [str(place) for key in ("store", "runs") if (place := getattr(arguments, key, None)) is not None]
    places = [str(s3.local_path(place)) if "://" in place else place for place in places]  # its cache on this machine
    return f"{' or '.join(places)}: " if places else ""


def _said(mistake: UserError, arguments: argparse.Namespace) -> int:
    """Print a mistake, with the command that makes a missing file. Return the exit status."""
    named, error = isinstance(getattr(arguments, "config", None), Path), remade(mistake)
    error = (
        shared_arguments.labelled_here(error, arguments)
        if named and isinstance(error, NotMade) and error.name
        else error
    )
    message = str(error)
    if isinstance(error, NotMade) and getattr(arguments, "known_as", None) is not None:
        message = f"{error}: repeat the command"  # the command that sent this job has no --until
    elif isinstance(error, NotMade):
        hint = shared_arguments.other_runs(arguments) if named and isinstance(mistake, NotMade) else ""
        finished = named and not error.again and shared_arguments.is_finished(arguments)
        message = error.told(shared_arguments.run_command(arguments) if named else None, finished=finished) + hint
    print(without_passwords(f"error: {message}"), file=sys.stderr)
    return 2


OF_ALL = ("--store", "--runs")
"""Options that all commands have. They stand before the command."""


class Parser(argparse.ArgumentParser):
    """Parser of all commands, or of one. For an unknown argument it prints one line that names the help of its own
    command. For a wrong choice the line names the most similar one."""

    def error(self, message: str) -> NoReturn:
        """Print one line and exit with status 2."""
        self.exit(2, f"error: {message} (more: {self.prog} --help)\n")

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        parsed, rest = super().parse_known_args(args, namespace)
        # argparse does not assign a word behind an option to an optional positional argument.
        for action in self._get_positional_actions():
            if action.nargs == "?" and getattr(parsed, action.dest) is None and rest and rest[0][:1] != "-":
                setattr(parsed, action.dest, self._get_value(action, rest.pop(0)))
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}{self._hint(rest[0].partition('=')[0])}")
        return parsed, rest

    def _hint(self, option: str) -> str:
        if option in OF_ALL:
            return f"; accepted: before the command, {program()} {option} PLACE COMMAND ..."
        near = get_close_matches(option, [*self._option_string_actions, *OF_ALL], 1, 0.8)
        return "".join(f"; did you mean {match}?" for match in near)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            near = get_close_matches(str(value), map(str, action.choices or ()), 1)
            error.message += "".join(f"; did you mean {match}?" for match in near)
            raise


def parser() -> argparse.ArgumentParser:
    """Build the parser of all commands, with their arguments and help."""
    top = Parser(
        prog=program(),
        description="Train and compare retrievers and rerankers, and search with the best system.",
        epilog=f"Begin with: {program()} plan configs/demo.yaml",
    )
    top.add_argument(
        "--store",
        metavar="PLACE",
        help="place of the artifacts: a directory, or s3://BUCKET/PREFIX (default: $SPARRING_STORE or store)",
    )
    top.add_argument(
        "--runs",
        type=Path,
        metavar="FOLDER",
        default=Path("runs"),
        help="folder of each run's report and links (default: runs)",
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in COMMANDS:
        description = module.__doc__ or ""
        name, sentence = module.__name__.rpartition(".")[2], description.partition(". ")[0].rstrip(".")
        sub = commands.add_parser(name, help=sentence, description=description)
        module.add_arguments(sub)
        sub.set_defaults(call=module.call, parser=top)
    return top
