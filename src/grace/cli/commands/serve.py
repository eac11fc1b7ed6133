"""`grace serve`, `grace proxy` and `grace export`: a trained model where others can use it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grace.cli.options import Base, Device, Dtype, ModelPath, examples, listed
from grace.errors import ConfigError

if TYPE_CHECKING:
    from grace.model import Model
    from grace.server import ServerSettings


SERVE = examples(
    "grace serve runs/qwen",
    "grace serve runs/qwen --host 0.0.0.0 --api-key $KEY",
)
PROXY = examples(
    "grace proxy --upstream http://127.0.0.1:8001",
    "grace proxy exported/qwen --upstream http://gpu:8001 --model lora --api-key $KEY",
)
EXPORT = examples(
    "grace export runs/qwen exported/qwen",
    "grace export runs/qwen exported/qwen-lora --format vllm-lora",
    "grace export runs/qwen exported/qwen-gguf --format gguf --dtype q4_k_m",
)
RETRIES = 2  # of a proxy; its client waits


Host = Annotated[str, typer.Option(help="address to listen on")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="port to listen on; 0 takes a free one")]
ApiKey = Annotated[
    str, typer.Option(envvar="GRACE_API_KEY", help="key that clients must send; default: none")
]
ApiKeyFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="read the key from this file instead"),
]
Name = Annotated[
    str | None, typer.Option(help="what clients call the model; default: the directory's name")
]
MaxTokens = Annotated[int, typer.Option(min=1, help="most tokens of one answer")]
MaxWaiting = Annotated[
    int, typer.Option(min=1, help="requests that may wait; further ones get 429")
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(metavar="NAMES", help="names by which clients may call the server"),
]
Timeout = Annotated[float, typer.Option(min=0.1, help="seconds until a request fails")]


def serve(
    path: ModelPath,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    api_key: ApiKey = "",
    api_key_file: ApiKeyFile = None,
    name: Name = None,
    max_tokens: MaxTokens = 4096,
    max_waiting: MaxWaiting = 64,
    timeout: Timeout = 300.0,
    allow_host: AllowHost = None,
    base: Base = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
) -> None:
    """Serve a model: an OpenAI-compatible API with a confidence on every choice, and a page."""
    from grace.model import load
    from grace.server import ServerSettings

    settings = ServerSettings(
        name=name or _name_of(path),
        api_key=read_key(api_key, api_key_file),
        max_tokens=max_tokens,
        max_waiting=max_waiting,
        timeout_s=timeout,
        hosts=(host, *listed(allow_host)),
    )
    model = load(path, base=base, device=device, dtype=dtype)
    _run(model, path, settings, host, port)


def proxy(
    upstream: Annotated[str, typer.Option(metavar="URL", help="an OpenAI-compatible server")],
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="DIR",
            help="the export that it serves, or its run; default: the directory that it names",
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="what the upstream calls the model, if it has several")
    ] = None,
    upstream_key: Annotated[
        str, typer.Option(envvar="GRACE_UPSTREAM_KEY", help="API key of the upstream")
    ] = "",
    host: Host = "127.0.0.1",
    port: Port = 8000,
    api_key: ApiKey = "",
    api_key_file: ApiKeyFile = None,
    name: Name = None,
    max_tokens: MaxTokens = 4096,
    max_running: Annotated[
        int, typer.Option(min=1, help="requests that the upstream gets at a time")
    ] = 256,
    max_waiting: MaxWaiting = 64,
    timeout: Timeout = 300.0,
    allow_host: AllowHost = None,
) -> None:
    """Serve a model that runs elsewhere (vLLM, SGLang, llama-server): the API of `grace serve`.

    Only the tokenizer and small JSON files are read from DIR; no weights are loaded.
    """
    from grace.model.connecting import connect, served_directory
    from grace.server import ServerSettings

    upstream_key = read_key(upstream_key)
    served = path or served_directory(upstream, model=model, api_key=upstream_key)
    connected = connect(
        upstream,
        served,
        model=model,
        api_key=upstream_key,
        retries=RETRIES,
        timeout_s=timeout,
        max_in_flight=max_running,
    )
    _show_upstream(connected.engine)
    settings = ServerSettings(
        name=name or _name_of(served),
        api_key=read_key(api_key, api_key_file),
        max_tokens=max_tokens,
        max_running=max_running,
        max_waiting=max_waiting,
        timeout_s=timeout,
        hosts=(host, *listed(allow_host)),
    )
    _run(connected, served, settings, host, port)


def export(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="run or adapter directory")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="directory to write")],
    format: Annotated[
        str,
        typer.Option(
            help="merged: a plain Hugging Face model; vllm-lora: a LoRA for the base model in "
            "vLLM; gguf: a file for llama.cpp; adapter: as trained"
        ),
    ] = "merged",
    base: Base = None,
    dtype: Annotated[
        str,
        typer.Option(
            help="merged: auto (as the base), float32, bfloat16, float16; "
            "gguf: auto (as a GGUF base, else float16), float32, float16, q8_0, q4_k_m"
        ),
    ] = "auto",
    license_: Annotated[
        str | None,
        typer.Option(
            "--license", metavar="ID", help="licence in the model card; default: that of the base"
        ),
    ] = None,
) -> None:
    """Write a trained model in a form that other programs load."""
    from grace.export import export_model
    from grace.model.loading import adapter_folder, recorded_base
    from grace.store import read_card

    folder = adapter_folder(path, None)
    if folder is None:
        raise ConfigError(f"{path} is neither a run nor an adapter; train one: grace run {path}")
    backbone = base or recorded_base(folder, read_card(folder))
    written = export_model(
        path, folder, backbone, out, form=format, dtype=dtype, license_id=license_
    )
    print(f"exported {written.form} to {out} ({written.size / 2**20:.1f} MiB)")
    print(f"next:   {written.hint}")


def _run(model: Model, path: str | Path, settings: ServerSettings, host: str, port: int) -> None:
    from grace.server import about, create_app, leave, serve

    app = create_app(model, settings, about(model, Path(path), settings.max_tokens))
    serve(app, host=host, port=port, name=settings.name, protected=bool(settings.api_key))
    leave()


def _show_upstream(engine: Any) -> None:
    served, software = engine.served, engine.remote.software
    ran = f"{software} {served.version}".strip() if served.version or software != "vLLM" else ""
    print(f"upstream: {served.model} on {ran or 'a server'}")


def _name_of(path: str | Path) -> str:
    return Path(path).resolve().name or "grace"


def read_key(given: str, file: Path | None = None) -> str:
    """Return a key without the space around it, empty where none is given.

    Args:
        given: what an option or the environment holds.
        file: a file that holds nothing but the key.

    Raises:
        ConfigError: both are given, the file cannot be read, or there is nothing but space.
    """
    if file is None:
        if given and not given.strip():
            raise ConfigError("the key is nothing but space; leave it out, or give one")
        return given.strip()
    if given:
        raise ConfigError(
            "a key is given and a file with one (GRACE_API_KEY counts as --api-key); give one"
        )
    try:
        key = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise ConfigError(f"the key in {file} cannot be read: {reason}") from None
    if not key:
        raise ConfigError(f"{file} holds no key; write one into it")
    return key
