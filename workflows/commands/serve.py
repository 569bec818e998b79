"""Answer queries over HTTP, with a search page and a JSON API, using all systems of a finished run. The folder of an
exported system can replace the config. Models and indexes are opened once. Stop the service with Ctrl-C. Programs also
get embeddings and reranking in the forms of OpenAI, Jina and Cohere."""

import argparse
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from sparring.components.config import UserError
from sparring.components.yaml_files import read_text
from sparring.workflows.commands.shared_arguments import add_cluster, add_config, check_places, opened, store_root
from sparring.workflows.distributed import cluster as clusters
from sparring.workflows.distributed.limits import cores
from sparring.workflows.distributed.machine import resolve_machine
from sparring.workflows.program import located
from sparring.workflows.report.run_folder import RunFolder, at_work
from sparring.workflows.serving import running
from sparring.workflows.serving.running import TOKEN
from sparring.workflows.store.availability import finished

PORT, HOST = 8000, "127.0.0.1"
TOKEN_CHARACTERS = 16
"""Minimum number of characters of a token."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_config(parser, "an experiment, such as configs/demo.yaml, or the folder of an exported system")
    add_cluster(parser)
    parser.add_argument(
        "--port", type=int, default=PORT, metavar="N", help=f"the port; 0 for any that is free (default: {PORT})"
    )
    parser.add_argument("--host", default=HOST, help="the address; 0.0.0.0 for all (default: this machine only)")
    parser.add_argument(
        "--system",
        action="append",
        default=[],
        metavar="NAME",
        dest="systems",
        help="serve this system alone; repeat it for several, the default first (default: all)",
    )
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help=f"a file with the token that requests must carry (default: ${TOKEN}, or none)",
    )
    parser.add_argument("--without-token", action="store_true", help="let other machines ask without a token")
    parser.add_argument(
        "--mcp",
        action="store_true",
        help="be a server of the Model Context Protocol on standard input and output, not on a port",
    )
    parser.add_argument(
        "--marks", type=Path, metavar="FILE", help="where marks are kept (default: marks.jsonl in the run's folder)"
    )


def call(arguments: argparse.Namespace) -> None:
    """Check that everything is there, open it, and answer until Ctrl-C."""
    from sparring.workflows.serving import marks, mcp_server
    from sparring.workflows.serving.access import is_loopback
    from sparring.workflows.serving.deployment import Service, free_port, run
    from sparring.workflows.serving.questions import LIMITS
    from sparring.workflows.serving.service import Served

    if arguments.mcp:
        mcp_server.check_package()
        for name, usual in {"port": PORT, "host": HOST, "token_file": None, "without_token": False}.items():
            if getattr(arguments, name) != usual:
                raise UserError(f"--{name.replace('_', '-')}: --mcp opens no port; accepted: one of the two")
    if not 0 <= arguments.port < 2**16:
        raise UserError(f"--port: got {arguments.port}; accepted: 0 to 65535")
    token, loopback = _token(arguments.token_file), is_loopback(arguments.host)
    if not loopback and token is None and not arguments.without_token:
        raise UserError(
            f"--host: {arguments.host} lets other machines ask; accepted: with a token (--token-file FILE "
            f"or ${TOKEN}), or with --without-token"
        )
    cluster = clusters.read_cluster(arguments.cluster)
    if arguments.mcp and cluster.address:
        raise UserError("--mcp: it runs in this process alone; accepted: a profile without `address`")
    served = Served(
        located(arguments.config).absolute(),
        arguments.assignments,
        arguments.runs.absolute(),
        _absolute(store_root(arguments)),
        arguments.systems,
        cores(),
        models={},
    )
    checked = served.check()
    port = arguments.port if arguments.mcp else free_port(arguments.host, arguments.port)
    file = (arguments.marks or checked.folder / marks.FILE).absolute()
    if arguments.marks is None and not checked.folder.is_dir():  # it was made with other --runs
        _make_folder(arguments)
    if not file.parent.is_dir():
        raise UserError(f"--marks: {file.parent} is no folder")
    marks.Marks(file)
    # Without an address the service runs in this process, and needs no Ray to find GPUs.
    machine = resolve_machine(cluster if cluster.address else cluster.model_copy(update={"mode": "inline"}))
    served = replace(served, models={"cuda": machine.cuda, "batch_tokens": machine.batch_tokens})
    service = Service(served, arguments.host, port, loopback, token, file, checked.identity)

    count, say = len(checked.systems), partial(print, file=sys.stderr if arguments.mcp else sys.stdout, flush=True)
    say(f"Opening {count} system{'s' if count > 1 else ''} ...")
    if checked.moment:
        say(f"  the run is not finished: the default system is its choice {checked.moment}")
    for name, reason in checked.left_out.items():
        say(f"  left out: {name}: {reason}")
    if arguments.mcp:
        with at_work(checked.folder):
            with mcp_server.quiet_output():
                answering = served.open()
            say("Ready on standard input and output.")
            mcp_server.run(answering, marks.Marks(file))
        return

    def ready() -> None:
        say(f"Ready: {service.url}")
        say(f"  default system: {checked.default}; marks: {file}")
        say("  Ctrl-C stops it.")

    announced = running.announced(checked.folder, service.url, checked.identity, checked.systems, LIMITS)
    with at_work(checked.folder), announced:
        run(service, machine, ready)
    say("Stopped.")


def _make_folder(arguments: argparse.Namespace) -> None:
    """Make the folder of a run that has a verdict. NotMade if it has none yet."""
    experiment, store = opened(arguments)
    finished(store, experiment.outcome.newest(store).results)
    check_places(arguments, experiment, store, ())
    folder = RunFolder(experiment, store)
    folder.write_plan()
    folder.link()


def _token(file: Path | None) -> str | None:
    if file is not None and not file.is_file():
        raise UserError(f"--token-file: {file}: no such file")
    token = read_text(file).strip() if file is not None else os.environ.get(TOKEN)
    where = "--token-file" if file is not None else f"${TOKEN}"
    if token is not None and (len(token) < TOKEN_CHARACTERS or not token.isascii() or len(token.split()) != 1):
        raise UserError(
            f"{where}: accepted: a word of at least {TOKEN_CHARACTERS} ASCII characters, such as "
            "`openssl rand -hex 32` writes"
        )
    return token


def _absolute(store: str) -> str:
    return store if "://" in store else str(Path(store).absolute())
