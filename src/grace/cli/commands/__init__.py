"""One file per command, or per family of them; `grace.cli` names them all."""
