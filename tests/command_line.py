"""Running `minibert` in a test: in this process, or as a user starts it."""

import os
import re
import subprocess
import sys
from typing import Any

from typer.testing import CliRunner, Result

from minibert.cli.main import app


def run(*arguments: str, stdin: str | bytes | None = None, charset: str = "utf-8") -> Result:
    return CliRunner(charset=charset).invoke(app, arguments, input=stdin)


def process(*arguments: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    """`minibert` as a user starts it, in a process of its own."""
    options["env"] = os.environ | {"OMP_NUM_THREADS": "1"} | options.get("env", {})
    command = [sys.executable, "-m", "minibert", *arguments]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "encoding": "utf-8"} | options
    return subprocess.run(command, check=False, **options)


def fails(result: Result, message: str, status: int = 1) -> None:
    """The command failed with one line of error and nothing else."""
    assert result.exit_code == status, result.output
    assert result.stdout == ""
    assert re.search(message, result.stderr), result.stderr
    if status == 1:
        assert result.stderr.startswith("error: ")
        assert result.stderr.count("\n") == 1
