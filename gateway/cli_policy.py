"""`tidegate policy …` and `tidegate keys …`: what is written in a policy set, without a server."""

import json
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from gateway.terminal import Text, console, fail
from policies.errors import PolicyError
from policies.schema import Stage

policy_app = typer.Typer(help="Policy sets.", no_args_is_help=True)
keys_app = typer.Typer(help="API keys.", no_args_is_help=True)

PathArgument = Annotated[Path, typer.Argument(help="A policy file, or a folder of them")]


@policy_app.command("check")
def check(path: PathArgument) -> None:
    """Load a policy set as the gateway would; every problem is told, with its place and its fix."""
    from policies.load import load

    policies = load(path)
    document = policies.document
    keys = sum(len(team.keys) for team in document.teams.values())
    typer.echo(
        f"{path}: fine. Revision {policies.revision}: "
        f"{len(document.models)} models, {len(document.teams)} teams, {keys} keys."
    )


@policy_app.command("explain")
def explain(
    path: PathArgument,
    team: Annotated[str, typer.Option()],
    app: Annotated[str, typer.Option()] = "default",
    stage: Annotated[Stage, typer.Option()] = "production",
    model: Annotated[Text, typer.Option(help="Its bounds apply too")] = None,
) -> None:
    """Every value in force for a team's app, with the line that it comes from."""
    from gateway import tables
    from policies import explain as explaining
    from policies.load import load
    from policies.resolve import UnknownName

    policies = load(path)
    try:
        lines = explaining.explain(policies, team, app, stage, model)
    except UnknownName as error:
        fail(str(error), code=2)
    console().print(tables.policy_table(f"{team}/{app}, revision {policies.revision}", lines))


@policy_app.command("schema")
def schema() -> None:
    """The JSON Schema of a policy set, for editors."""
    from policies.json_schema import json_schema

    typer.echo(json.dumps(json_schema(), indent=2))


@keys_app.command("new")
def new(
    team: Annotated[str, typer.Option(help="The team that the key belongs to")] = "dev",
    app: Annotated[str, typer.Option()] = "default",
    stage: Annotated[Stage, typer.Option(help="Whose limits apply")] = "production",
    models: Annotated[Text, typer.Option(help="Only these models, with commas between [default: all]")] = None,
    expires: Annotated[datetime | None, typer.Option(formats=["%Y-%m-%d"], help="Last day it works, UTC")] = None,
    admin: Annotated[bool, typer.Option("--admin", help="May use the admin routes")] = False,
) -> None:
    """Make an API key. It is shown here once; the policy file gets its hash."""
    from gateway.keys import key_lines
    from policies.keys import new_key

    text, digest = new_key()
    names = [m.strip() for m in models.split(",")] if models else None
    day = expires.date().isoformat() if expires else None
    try:
        lines = key_lines(team, digest, app=app, stage=stage, models=names, expires=day, admin=admin)
    except PolicyError as error:
        fail("\n".join(f"{p.message} ({p.fix})" for p in error.problems), code=2)
    typer.echo(f"{text}\n\n{lines}")
