"""`grace serve` and `grace export`: a trained model where others can use it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grace.cli.options import Base, Device, Dtype, ModelPath, RunPath, examples
from grace.errors import ConfigError

SERVE = examples(
    "grace serve runs/qwen",
    "grace serve runs/qwen --host 0.0.0.0 --api-key $KEY",
)
EXPORT = examples(
    "grace export runs/qwen exported/qwen",
    "grace export runs/qwen exported/qwen-lora --format vllm-lora",
)
SERVER_PACKAGES = ("fastapi", "uvicorn", "prometheus_client")


def serve(
    path: ModelPath,
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="port; 0: a free one")] = 8000,
    api_key: Annotated[
        str, typer.Option(envvar="GRACE_API_KEY", help="what clients must send; default: nothing")
    ] = "",
    name: Annotated[
        str | None, typer.Option(help="what clients call the model; default: the directory's name")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="most tokens of one answer")] = 4096,
    max_waiting: Annotated[int, typer.Option(min=1, help="requests in the queue, then 429")] = 64,
    timeout: Annotated[float, typer.Option(min=0.1, help="seconds until a request fails")] = 300.0,
    base: Base = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
) -> None:
    """Serve a model: an OpenAI-compatible API with a confidence on every choice, and a page."""
    _check_server()
    from grace.model import load
    from grace.server import ServerSettings, create_app
    from grace.server import serve as run
    from grace.server.about import about

    settings = ServerSettings(
        name=name or Path(path).resolve().name or "grace",
        api_key=api_key,
        max_tokens=max_tokens,
        max_waiting=max_waiting,
        timeout_s=timeout,
    )
    model = load(path, base=base, device=device, dtype=dtype)
    app = create_app(model, settings, about(model, Path(path), max_tokens))
    run(app, host=host, port=port, name=settings.name, protected=bool(api_key))


def export(
    path: RunPath,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="directory to write")],
    format: Annotated[
        str,
        typer.Option(
            help="merged: a plain Hugging Face model; vllm-lora: a LoRA for the base model in "
            "vLLM; adapter: as trained"
        ),
    ] = "merged",
    base: Base = None,
    dtype: Annotated[
        str, typer.Option(help="of merged weights: auto (as the base), float32, bfloat16, float16")
    ] = "auto",
    license_: Annotated[
        str | None,
        typer.Option(
            "--license", metavar="ID", help="for the model card; default: that of the base"
        ),
    ] = None,
) -> None:
    """Write a trained model in a form that other programs load."""
    from grace.export import export_model
    from grace.model.places import adapter_folder, read_card, recorded_base

    folder = adapter_folder(path, None)
    if folder is None:
        raise ConfigError(f"{path} is neither a run nor an adapter; train one: grace run {path}")
    backbone = base or recorded_base(folder, read_card(folder))
    written = export_model(
        path, folder, backbone, out, form=format, dtype=dtype, license_id=license_
    )
    print(f"exported {written.form} to {out} ({written.size / 2**20:.1f} MiB)")
    print(f"next:   {written.hint}")


def _check_server() -> None:
    import importlib.util

    missing = [name for name in SERVER_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"the server needs {', '.join(missing)}; pip install 'grace-confidence[server]'"
        )
