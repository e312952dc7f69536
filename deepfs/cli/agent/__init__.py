"""The command `deepfs agent`. What it does is in the modules beside this one, which need what an agent needs."""

from typing import Any

import click


@click.command()
@click.argument("task", required=False)
@click.option("--on", metavar="URL|FILE.toml|DIRECTORY", help="The files; by default the current directory.")
@click.option(
    "--model",
    metavar="PROVIDER:NAME",
    envvar="DEEPFS_MODEL",
    show_envvar=True,
    help="The model; scripted:FILE plays a script, without a key.",
)
@click.option("--trust", is_flag=True, help="Let the TOML file weaken approvals and say how the model is reached.")
@click.option("-y", "--yes", is_flag=True, help="Approve all calls of tools.")
@click.option("--staged", is_flag=True, help="Keep changes of files apart until the agent commits them, and ask then.")
@click.option("--json", "as_json", is_flag=True, help="Write events as JSON, one a line.")
@click.option("-q", "--quiet", is_flag=True, help="Write nothing but what the agent says, and ask nobody.")
@click.option("-v", "--verbose", is_flag=True, help="Show arguments and results of calls, and tracebacks.")
@click.option("-c", "--continue", "resumes", is_flag=True, help="Go on with the last thread on these files.")
@click.option("--thread", metavar="NAME", help="The thread to go on with, or the name of a new one.")
@click.option("--threads", metavar="FILE", help="The SQLite database of the threads.")
@click.option("--list-threads", "lists", is_flag=True, help="List the threads.")
def agent(on: str | None, **options: Any) -> None:
    """Have an agent do a TASK on files, or talk with one.

    TASK may be - for the standard input. On a terminal, a person is asked before files change or commands run;
    elsewhere such calls are refused, unless --yes approves them.
    """
    try:
        import langchain  # noqa: F401

        from deepfs.cli.agent.run import run_agent
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        raise click.ClickException(f"an agent needs {package}: pip install 'deepfs[agents,cli]'") from None
    given = click.get_current_context().obj
    run_agent(on=given.on if on is None else on, variables=given.variables, **options)
