"""`grace serve`, `grace proxy` and `grace export`: put a trained model to use."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grace.cli.options import Base, Device, Dtype, ModelPath, examples, from_one, listed
from grace.errors import ConfigError
from grace.store import read_card

if TYPE_CHECKING:
    from socket import socket

    from grace.model import Model
    from grace.server import FallbackSettings, ServerSettings


SERVE_EXAMPLES = examples(
    "grace serve runs/mine",
    "grace serve runs/mine --host 0.0.0.0 --api-key-file key.txt",
    "grace serve runs/mine --fallback http://big:8002 --fallback-model qwen-72b --below 0.7",
)
PROXY_EXAMPLES = examples(
    "grace proxy --upstream http://127.0.0.1:8001",
    "grace proxy exported/mine --upstream http://gpu:8001 --model lora --api-key-file key.txt",
    "grace proxy exported/mine --upstream http://gpu:8001 --fallback http://big:8002 "
    "--fallback-model qwen-72b --below 0.7",
)
EXPORT_EXAMPLES = examples(
    "grace export runs/mine exported/mine",
    "grace export runs/mine exported/mine-lora --format vllm-lora",
    "grace export runs/mine exported/mine-gguf --format gguf",
)
RETRIES = 2  # of a request of the proxy, whose client waits

Host = Annotated[str, typer.Option(help="Address to listen on.")]
Port = Annotated[
    int,
    typer.Option(min=0, max=65535, metavar="PORT", help="Port to listen on; 0 takes a free one."),
]
ApiKey = Annotated[
    str, typer.Option(envvar="GRACE_API_KEY", help="Key that clients must send, if any.")
]
ApiKeyFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="File with the key that clients must send.")
]
Name = Annotated[
    str | None,
    typer.Option(show_default="name of the directory", help="Name of the model in the API."),
]
MaxTokens = Annotated[int, from_one(help="Largest number of tokens of an answer.")]
MaxWaiting = Annotated[
    int, from_one(help="Largest number of waiting requests; more are refused with 429.")
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAMES", help="Further host names by which clients may address the server."
    ),
]
Timeout = Annotated[
    float, typer.Option(min=0.1, metavar="SECONDS", help="Seconds until a request fails.")
]
FallbackUrl = Annotated[
    str | None,
    typer.Option(
        "--fallback",
        metavar="URL",
        help="Address of a server with a bigger model, which answers below a confidence.",
    ),
]
FallbackModel = Annotated[
    str | None, typer.Option(metavar="NAME", help="Name of the bigger model on its server.")
]
FallbackKey = Annotated[
    str, typer.Option(envvar="GRACE_FALLBACK_KEY", help="API key of the bigger model's server.")
]
Below = Annotated[
    float | None,
    typer.Option(
        metavar="TAU", help="Confidence below which the bigger model is asked (`grace cascade`)."
    ),
]


def serve(
    path: ModelPath,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    api_key: ApiKey = "",
    api_key_file: ApiKeyFile = None,
    name: Name = None,
    max_tokens: MaxTokens = 4096,
    max_waiting: MaxWaiting = 256,
    timeout: Timeout = 300.0,
    allow_host: AllowHost = None,
    fallback: FallbackUrl = None,
    fallback_model: FallbackModel = None,
    fallback_key: FallbackKey = "",
    below: Below = None,
    base: Base = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
) -> None:
    """Serve a model with an OpenAI-compatible API, a confidence on every answer, and a web page."""
    from grace.model import load
    from grace.server import ServerSettings, bind

    settings = ServerSettings(
        name=name or _name_of(path),
        api_key=read_key(api_key, api_key_file),
        max_tokens=max_tokens,
        max_waiting=max_waiting,
        timeout_s=timeout,
        hosts=(host, *_host_names(allow_host)),
        fallback=_fallback(fallback, fallback_model, fallback_key, below),
    )
    with bind(host, port) as bound:  # so that a port that is taken is an error before loading
        model = load(path, base=base, device=device, dtype=dtype)
        _run(model, path, settings, bound, host)


def proxy(
    upstream: Annotated[
        str, typer.Option(metavar="URL", help="Address of the server that runs the model.")
    ],
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="DIR",
            show_default="the one that the server names",
            help="Directory of the export that runs there, or of its run.",
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Name of the model on that server, if it has several.")
    ] = None,
    upstream_key: Annotated[
        str, typer.Option(envvar="GRACE_UPSTREAM_KEY", help="API key of that server.")
    ] = "",
    host: Host = "127.0.0.1",
    port: Port = 8000,
    api_key: ApiKey = "",
    api_key_file: ApiKeyFile = None,
    name: Name = None,
    max_tokens: MaxTokens = 4096,
    max_running: Annotated[
        int, from_one(help="Largest number of requests sent to that server at a time.")
    ] = 256,
    max_waiting: MaxWaiting = 256,
    timeout: Timeout = 300.0,
    allow_host: AllowHost = None,
    fallback: FallbackUrl = None,
    fallback_model: FallbackModel = None,
    fallback_key: FallbackKey = "",
    below: Below = None,
) -> None:
    """Serve the API of `grace serve` for a model that runs in vLLM, SGLang or llama-server.

    Only the tokenizer and small JSON files are read from DIR; no weights are
    loaded.
    """
    from grace.model.loading import connect, served_directory
    from grace.server import ServerSettings, bind

    upstream_key = read_key(upstream_key)
    other = _fallback(fallback, fallback_model, fallback_key, below)
    with bind(host, port) as bound:
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
            hosts=(host, *_host_names(allow_host)),
            fallback=other,
        )
        _run(connected, served, settings, bound, host)


def export(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a run or an adapter.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Directory to write.")],
    format: Annotated[
        str,
        typer.Option(
            help="merged: a plain Hugging Face model; vllm-lora: a LoRA for the base model in "
            "vLLM; gguf: a file for llama.cpp; adapter: as trained."
        ),
    ] = "merged",
    base: Base = None,
    dtype: Annotated[
        str,
        typer.Option(
            help="Number format of the weights. merged: auto (as the base), float32, bfloat16, "
            "float16; gguf: auto (as a GGUF base, else float16), float32, float16."
        ),
    ] = "auto",
    license_: Annotated[
        str | None,
        typer.Option(
            "--license",
            metavar="ID",
            show_default="that of the base",
            help="Licence in the model card, such as apache-2.0.",
        ),
    ] = None,
) -> None:
    """Export a fitted model for Transformers, vLLM or llama.cpp."""
    from grace.export import export_model
    from grace.model.loading import adapter_folder, backbone
    from grace.model.ready import ready_head
    from grace.pipeline.settings import absolute_model

    folder = adapter_folder(path, None)
    if folder is None and base is None and not read_card(path):
        folder = ready_head(path)
    if folder is None:
        if written := read_card(path).get("format"):
            raise ConfigError(
                f"{path} is an export already ({written}); name the run or the adapter that it was "
                "made from"
            )
        raise ConfigError(
            f"{path} is neither a run nor an adapter, and there is no ready-made head for it; name "
            "a run (of `grace run`) or an adapter (of `grace fit`)"
        )
    model = backbone(path, folder, read_card(folder), base and absolute_model(base))
    written = export_model(path, folder, model, out, form=format, dtype=dtype, license_id=license_)
    print(f"exported {format} to {out} ({written.size / 2**20:.1f} MiB)")
    print(f"next:   {written.hint}")


def _run(
    model: Model, path: str | Path, settings: ServerSettings, bound: socket, host: str
) -> None:
    from grace.server import create_app, leave, serve

    app = create_app(model, settings, Path(path))
    serve(
        app,
        bound,
        host=host,
        name=settings.name,
        protected=bool(settings.api_key),
        has_choices=model.task.kind == "choice",
    )
    leave()


def _show_upstream(engine: Any) -> None:
    served, software = engine.served, engine.remote.software
    ran = f"{software} {served.version}".strip() if served.version or software != "vLLM" else ""
    print(f"upstream: {served.model} on {ran or 'a server'}")


def _fallback(
    url: str | None, model: str | None, key: str, below: float | None
) -> FallbackSettings | None:
    from grace.server import FallbackSettings

    if url is None and model is None and below is None:
        return None
    if url is None or model is None or below is None:
        raise ConfigError(
            "a bigger model needs --fallback URL, --fallback-model NAME and --below TAU, all three"
        )
    return FallbackSettings(url=url, model=model, below=below, api_key=read_key(key))


def _host_names(allowed: list[str] | None) -> list[str]:
    names = listed(allowed)
    for name in names:
        if not re.fullmatch(r"[\w.:%\[\]-]+", name):
            raise ConfigError(
                f"--allow-host {name} is not a host name; give the name alone, without http:// "
                "and path, as in --allow-host gpu.example.org"
            )
    return names


def _name_of(path: str | Path) -> str:
    return Path(path).resolve().name or "grace"


def read_key(key: str, file: Path | None = None) -> str:
    """Return an API key without the space around it, empty for none."""
    if file is None:
        if key and not key.strip():
            raise ConfigError("the API key is nothing but space; leave it out, or write one")
        return key.strip()
    if key:
        raise ConfigError(
            "there is a key in --api-key (or GRACE_API_KEY) and one in --api-key-file; give one"
        )
    try:
        key = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not a text file"
        raise ConfigError(
            f"the key in {file} cannot be read: {reason}; check path and rights"
        ) from None
    if not key:
        raise ConfigError(f"{file} holds no key; write one into it")
    return key
