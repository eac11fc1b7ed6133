"""One file per command, or per family of them; `grace.cli.app` names them all."""
