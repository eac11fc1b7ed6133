"""The `grace` command. Errors are one line on standard error, exit code 2."""

from __future__ import annotations

import os
import sys

from grace.cli.app import app
from grace.errors import GraceError


def main() -> None:
    """Run the command line."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        app()
    except GraceError as error:
        print(f"grace: error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("grace: stopped; the same command resumes where it was", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
