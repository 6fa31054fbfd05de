"""The command line. Commands only gather options and print; torch is loaded by `serve` and `doctor` alone."""

import os
import sys
from importlib.metadata import version as distribution_version
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli_policy import keys_app, policy_app
from gateway.configure import SettingsError, load_settings, stray_variables
from gateway.settings import Settings
from gateway.terminal import Text, console, fail
from gateway.threads import set_thread_counts
from policies.errors import PolicyError
from policies.schema import Stage

app = typer.Typer(
    help="A context-budget-aware RAG gateway.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(policy_app, name="policy")
app.add_typer(keys_app, name="keys")

ConfigOption = Annotated[Text, typer.Option("--config", help="Settings file [default: tidegate.yaml, if it is here]")]
ModelOption = Annotated[Text, typer.Option(help="Folder, hub id or .gguf [default: the embedded SmolLM2]")]
PolicyOption = Annotated[Text, typer.Option(help="Policy file or folder [default: the packaged one]")]


def main() -> None:
    """Run a command; what an operator can mend is told in one line each, without a traceback."""
    os.environ.setdefault("TQDM_DISABLE", "1")  # libraries' progress bars would tear our lines; we tell what takes long
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        app()
    except SettingsError as error:
        fail(str(error), code=2)
    except PolicyError as error:
        fail(str(error), code=1)


@app.command()
def serve(
    ctx: typer.Context,
    config: ConfigOption = None,
    host: Annotated[Text, typer.Option(help="Address to listen on [default: 127.0.0.1]")] = None,
    port: Annotated[Text, typer.Option(help="Port, 0 for any that is free [default: 8080]")] = None,
    model: ModelOption = None,
    model_name: Annotated[Text, typer.Option(help="What clients call it [default: chat]")] = None,
    policy: PolicyOption = None,
    device: Annotated[Text, typer.Option(help="cpu, cuda, cuda:1 [default: auto]")] = None,
    dtype: Annotated[Text, typer.Option(help="float32, bfloat16, float16 [default: auto]")] = None,
    kv_bytes: Annotated[Text, typer.Option(help="Memory for KV blocks, as 2GiB")] = None,
    num_blocks: Annotated[Text, typer.Option(help="KV blocks, instead of --kv-bytes")] = None,
    block_size: Annotated[Text, typer.Option(help="Tokens a KV block holds [default: 16]")] = None,
    max_context_tokens: Annotated[Text, typer.Option(help="Prompt and answer together [default: the model's]")] = None,
    max_running: Annotated[Text, typer.Option(help="Sequences decoded together [default: 32]")] = None,
    step_tokens: Annotated[Text, typer.Option(help="Tokens computed in one step [default: 512]")] = None,
    num_threads: Annotated[Text, typer.Option(help="Compute threads [default: all CPUs]")] = None,
    embedder: Annotated[Text, typer.Option(help="default, none, or a sentence-transformers model")] = None,
    store: Annotated[Text, typer.Option(help="SQLite path or redis:// URL")] = None,
    data_dir: Annotated[Text, typer.Option(help="Where keys and state are kept [default: .tidegate]")] = None,
    log_level: Annotated[Text, typer.Option(help="debug, info, warning, error")] = None,
    log_format: Annotated[Text, typer.Option(help="auto, json, console")] = None,
) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    settings = _settings(ctx)
    set_thread_counts(settings.num_threads)
    from gateway.launch import StartFailed, launch

    try:
        launch(settings)
    except StartFailed as error:
        fail(str(error), code=1)


@app.command()
def demo() -> None:
    """Two RAG requests and their budget reports."""
    from gateway.demo import run_demo

    raise typer.Exit(run_demo(console()))


@app.command()
def plan(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(help="A request as JSON, as /v1/chat/completions takes it")],
    team: Annotated[str, typer.Option(help="Plan as for this team's key")] = "dev",
    app_name: Annotated[str, typer.Option("--app")] = "default",
    stage: Annotated[Stage, typer.Option()] = "development",
    config: ConfigOption = None,
    model: ModelOption = None,
    policy: PolicyOption = None,
) -> None:
    """Plan a request without a server: every fate with its reason, and the messages that would be sent."""
    settings = _settings(ctx)
    try:
        body = file.read_bytes()
    except OSError as error:
        fail(f"{file}: {error.strerror}", code=2)
    set_thread_counts(settings.num_threads)
    from gateway.offline import CANNOT_PLAN, plan_offline
    from gateway.tables import context_tables, message_texts

    try:
        planned = plan_offline(settings, body, team=team, app=app_name, stage=stage)
    except CANNOT_PLAN as error:
        fail(" ".join(str(error).split()), code=1)
    for part in (*context_tables(planned.report), *message_texts(planned.messages)):
        console().print(part)


@app.command()
def doctor(ctx: typer.Context, config: ConfigOption = None, model: ModelOption = None) -> None:
    """What this machine offers, and what is missing."""
    settings = _settings(ctx)
    set_thread_counts(settings.num_threads)
    from gateway.doctor import examine
    from gateway.tables import findings_table

    findings = examine(settings)
    console().print(findings_table(findings))
    raise typer.Exit(1 if any(f.fatal for f in findings) else 0)


@app.command()
def version() -> None:
    """The installed version."""
    typer.echo(distribution_version("tidegate"))


def _settings(ctx: typer.Context) -> Settings:
    """Settings with this command's options on top; strange variables are mentioned."""
    for name in stray_variables(os.environ):
        typer.echo(f"warning: {name} is no setting of Tidegate; it is not read", err=True)
    options = {name: value for name, value in ctx.params.items() if name != "config"}
    return load_settings(os.environ, options, ctx.params.get("config"))


if __name__ == "__main__":
    main()
