"""dpfedls on the command line. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import click
import typer

from dpfedls import __version__
from dpfedls.commands import audit, deploy, grids, privacy, reproduce, theory, training
from dpfedls.errors import BudgetExhausted, InputError, RankLost, Stopped

app = typer.Typer(
    name="dpfedls",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (
    training.demo,
    training.recipes,
    training.run,
    training.resume,
    training.report,
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


def main() -> None:
    """Run a command; wrong input is one line on stderr and exit code 2, never a traceback."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    try:
        code = app(standalone_mode=False)
        if code == 130:  # typer's answer to Ctrl-C
            raise KeyboardInterrupt
    except click.exceptions.NoArgsIsHelpError as shown:
        print(shown.format_message())
        code = 2
    except click.ClickException as error:
        code = _complain(" ".join(error.format_message().split()), 2)
    except InputError as error:
        code = _complain(str(error), 2)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        code = _complain(f"{where}{error.strerror or error}; check the path and its rights", 2)
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


def _complain(message: str, code: int) -> int:
    print(f"dpfedls: {message}", file=sys.stderr)
    return code
