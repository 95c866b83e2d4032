"""dpfedls on the command line. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import click
import typer

from dpfedls import __version__
from dpfedls.commands import audit, deploy, grids, planner, privacy, reproduce, theory, training
from dpfedls.commands.arguments import restore_help
from dpfedls.commands.examples import add_examples
from dpfedls.commands.output import one_line
from dpfedls.errors import BudgetExhausted, InputError, RankLost, Stopped

app = typer.Typer(
    name="dpfedls",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for command in (
    training.demo,
    training.recipes,
    training.run,
    training.resume,
    training.report,
    training.export,
    planner.planner,
    training.attack,
    training.doctor,
    audit.audit,
    theory.theory,
    grids.sweep,
    grids.tune,
):
    app.command()(command)
app.command(epilog=reproduce.ITEM_LIST)(reproduce.reproduce)
app.add_typer(privacy.app, name="privacy")
app.add_typer(deploy.app, name="deploy")
add_examples(app)


def _say_version(asked: bool) -> None:
    if asked:
        print(f"dpfedls {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_say_version, is_eager=True, help="Say which version this is."
        ),
    ] = False,
) -> None:
    """Differentially private federated learning with Laplacian smoothing."""


_command = typer.main.get_command(app)
restore_help(app, _command)


def main() -> None:
    """Run a command; wrong input is one line on stderr and exit code 2, never a traceback."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    try:
        code = _command(standalone_mode=False, prog_name="dpfedls")
        sys.stdout.flush()  # what cannot be written is said here, not while Python shuts down
        if code == 130:  # typer's answer to Ctrl-C
            raise KeyboardInterrupt
    except click.exceptions.NoArgsIsHelpError as shown:
        print(shown.format_message())
        code = 2
    except click.UsageError as error:
        said = " ".join(error.format_message().split()).rstrip(".")
        about = error.ctx.command_path if error.ctx else "dpfedls"
        code = _complain(f"{said}; see: {about} --help", 2)
    except InputError as error:
        code = _complain(str(error), 2)
    except OSError as error:
        code = _complain(*_failing_file(error))
    except BudgetExhausted as error:
        code = _complain(str(error), 3)
    except (RankLost, Stopped) as error:
        code = _complain(str(error), 1)
    except (KeyboardInterrupt, click.Abort) as error:
        # click takes an EOFError, which a file cut short may raise, for the end of its own input.
        if isinstance(error.__cause__, EOFError):
            code = _complain(f"a file ends too early ({error.__cause__}); fetch it again", 2)
        else:
            code = _complain("stopped", 1)
    sys.exit(code if isinstance(code, int) else 0)


_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EROFS)


def _failing_file(error: OSError) -> tuple[str, int]:
    """What to say of a file that cannot be read or written, and the exit code."""
    if error.filename is None and error.errno in (*_DISK, errno.EPIPE):  # our files have names
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing more goes there
        return f"standard output: {error.strerror}; the answer could not be written", 1
    where = f"{error.filename}: " if error.filename else ""
    if error.errno not in _DISK:
        return f"{where}{error.strerror or error}; check the path and its permissions", 2
    place = Path(error.filename or ".").resolve()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    return (
        f"{where}{error.strerror}; {free} bytes are free there, and what was finished before is "
        "kept: free some space, then go on with the same command, or dpfedls resume",
        1,
    )


def _complain(message: str, code: int) -> int:
    print(f"dpfedls: {one_line(message)}", file=sys.stderr)
    return code
