"""The completions API of an OpenAI-compatible server: what is asked of it, and what it answers.

vLLM 0.26 and later lists the log-probabilities of any token ids (`logprob_token_ids`), in place of
the most probable tokens. Other servers list those only: then `<CNF>` may be missing, and all that
is known is that it is no more probable than the least probable one listed.

vLLM with the V1 model runner mixes up requests of both kinds in one batch (one that wants the most
probable tokens gets none), so a server that can list ids is never asked for the other.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from grace.engines import Sampling
from grace.engines.reading import Drawn, Reader, Step
from grace.engines.said import UpstreamError, short

PREFIX = "token_id:"
TOP = 20  # most probable tokens; what vLLM lists at most by default
UNKNOWN = -1  # a token whose text several tokens share
NO_LOGPROB = "the upstream gave what is no log-probability"
ROUNDING = 1e-3  # that a log-probability may be above 0
NOTHING = -9990.0  # what servers write for minus infinity is below
Json = dict[str, Any]


class Request(NamedTuple):
    """One sample of one prompt.

    Attributes:
        prompt: token ids.
        sampling: temperature, top-p and length.
        seed: of the server's random numbers; None: it takes its own.
        stream: answer token by token.
    """

    prompt: Sequence[int]
    sampling: Sampling
    seed: int | None = None
    stream: bool = False


def sample_body(model: str, reader: Reader, request: Request, *, lists_ids: bool) -> Json:
    """Return the body that asks for one sample.

    Whatever a server would otherwise take from the model's generation config (a top-k, a
    repetition penalty) is set to what changes nothing.
    """
    sampling = request.sampling
    body: Json = {
        "model": model,
        "prompt": list(request.prompt),
        "max_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop_token_ids": list(reader.stops),
        "return_tokens_as_token_ids": True,
        "return_token_ids": True,
        "stream": request.stream,
    }
    if request.seed is not None:
        body["seed"] = request.seed
    if reader.banned:
        body["logit_bias"] = {str(token): -100 for token in reader.banned}
    return body | listing(reader.asked if lists_ids else None)


def listing(ids: Sequence[int] | None) -> Json:
    """Return what asks for the log-probabilities of ids, or of the most probable tokens."""
    return {"logprobs": TOP} if ids is None else {"logprobs": 1, "logprob_token_ids": list(ids)}


class Names:
    """The ids behind the tokens that a server names: `token_id:7`, or else by their text.

    Args:
        tokenizer: the tokenizer with `<CNF>`.
        rows: of the model's vocabulary, which may be padded; the tokenizer's own ids count anyway.
    """

    def __init__(self, tokenizer: Any, rows: int = 0) -> None:
        self._tokenizer = tokenizer
        self._ids: dict[str, int] | None = None
        self._rows = max(rows, 1 + max(tokenizer.get_vocab().values(), default=-1))

    def checked(self, token: Any) -> int:
        """Return an id that a server has sent.

        Raises:
            UpstreamError: the model has no such token.
        """
        if type(token) is not int or not 0 <= token < self._rows:
            raise UpstreamError(
                "the upstream gave an id that is no token of the model", "malformed",
                said=short(repr(token)),
            )  # fmt: skip
        return token

    def find(self, name: str) -> int | None:
        """Return the id of a token, None where its text does not say.

        Raises:
            UpstreamError: it is named by an id that the model does not have.
        """
        if name.startswith(PREFIX) and name[len(PREFIX) :].lstrip("-").isdecimal():
            return self.checked(int(name[len(PREFIX) :]))
        if self._ids is None:
            self._ids = self._texts()
        return self._ids.get(name)

    def _texts(self) -> dict[str, int]:
        """Return the tokens whose text no other token has."""
        found: dict[str, int | None] = {}
        for token in range(len(self._tokenizer)):
            text = self._tokenizer.decode([token])
            found[text] = None if text in found else token
        return {text: token for text, token in found.items() if token is not None}


def read_steps(choice: Mapping[str, Any], names: Names, asked: Sequence[int] | None) -> list[Step]:
    """Return the steps in a choice, or in a part of one that streams.

    Args:
        choice: the choice.
        names: the ids behind the names of tokens; one that shares its text has the id `UNKNOWN`.
        asked: the ids that every step must list; None: it lists the most probable tokens.

    Raises:
        UpstreamError: log-probabilities or ids are missing, or the server has given up.
    """
    try:
        return _steps(choice, names, asked)
    except (AttributeError, TypeError, KeyError, ValueError) as error:
        raise UpstreamError(
            "the upstream sent no choice as vLLM does", "malformed", said=short(str(error))
        ) from None


def _steps(choice: Mapping[str, Any], names: Names, asked: Sequence[int] | None) -> list[Step]:
    reason = choice.get("finish_reason")
    if reason not in (None, "stop", "length"):
        raise UpstreamError(
            "the upstream gave up a sample", "failed", said=f"finish_reason {short(repr(reason))}"
        )
    listed = choice.get("logprobs") or {}
    tokens = listed.get("tokens") or []
    values, tops = listed.get("token_logprobs") or [], listed.get("top_logprobs") or []
    ids = choice.get("token_ids")
    if ids is None:
        found = map(names.find, tokens)
        ids = [UNKNOWN if token is None else token for token in found]
    else:
        ids = [names.checked(token) for token in ids]
    if not len(ids) == len(values) == len(tops):
        raise UpstreamError(
            f"the upstream gave {len(tokens)} tokens, {len(values)} log-probabilities and "
            f"{len(tops)} lists of them for {len(ids)} token ids",
            "malformed",
        )
    steps = [_step(*each, names, asked) for each in zip(ids, values, tops, strict=True)]
    if reason == "stop" and steps:
        steps[-1] = steps[-1]._replace(ends=True)
    return steps


def known(drawn: Drawn) -> Drawn:
    """Return what was drawn.

    Raises:
        UpstreamError: the server did not say which token.
    """
    if drawn.token == UNKNOWN:
        raise UpstreamError(
            "the upstream named a token by a text that several tokens have; it must return token "
            "ids, as vLLM does (`return_token_ids`)",
            "unsupported",
        )
    return drawn


def prompt_logprobs(choice: Mapping[str, Any], prompt: Sequence[int], last: int) -> list[float]:
    """Return the log-probabilities of the last tokens of a prompt.

    Raises:
        UpstreamError: the server did not return them.
    """
    rows = choice.get("prompt_logprobs")
    if rows is None or len(rows) != len(prompt):
        raise UpstreamError(
            "the upstream returned no prompt_logprobs, which the evidence of this model needs to "
            "rate a given response; use vLLM, or the transformers engine",
            "unsupported",
        )
    try:
        places = range(len(prompt) - last, len(prompt))
        return [_number(rows[i][str(prompt[i])]["logprob"]) for i in places]
    except (TypeError, KeyError) as error:
        raise UpstreamError(
            "the upstream's prompt_logprobs lack a token", "malformed", said=short(str(error))
        ) from None


def _step(token: int, value: Any, top: Any, names: Names, asked: Sequence[int] | None) -> Step:
    entries = {names.find(name): _number(logprob) for name, logprob in (top or {}).items()}
    logprobs = {i: logprob for i, logprob in entries.items() if i is not None}
    logprob = _number(value)
    if asked is not None:
        if missing := [i for i in asked if i != token and i not in logprobs]:
            raise UpstreamError(
                f"the upstream did not list ids {missing} although it was asked for them; it may "
                "decode speculatively, which c cannot be read with",
                "malformed",
            )
        return Step(token, logprob, logprobs)
    shown = {i: logprob for i, logprob in logprobs.items() if logprob > NOTHING}
    return Step(token, logprob, shown, _ceiling({token: logprob, **shown}, token))


def _ceiling(shown: Mapping[int, float], token: int) -> float:
    """Return the most that the log-probability of a token can be that is not listed.

    The chosen token is listed even where it is not among the most probable.
    """
    left = 1 - math.fsum(math.exp(logprob) for logprob in shown.values())
    others = [logprob for i, logprob in shown.items() if i != token]
    return min([math.log(max(left, 1e-6)), *others])


def _number(value: Any) -> float:
    """Return a log-probability; one that rounding has put above 0 counts as 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value <= ROUNDING:
        raise UpstreamError(NO_LOGPROB, "malformed", said=short(repr(value)))
    return min(float(max(value, -sys.float_info.max)), 0.0)
