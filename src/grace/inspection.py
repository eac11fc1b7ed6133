"""Models with confidence in Inspect AI: `inspect eval task.py --model grace/runs/mine`.

The confidence of an answer is in `output.metadata["confidence"]`, those of `num_choices` answers
are in `output.metadata["confidences"]`; a scorer reads them from `state.output.metadata`. Messages
are sent to the model unchanged. With `-M ask=true` the last user turn is a question and gets the
prompt of the training run, for which the confidence is calibrated. Further `-M` arguments are
passed to `grace.load`.
"""

from __future__ import annotations

import functools
import secrets
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import anyio.to_thread
from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    GenerateConfig,
    ModelAPI,
    ModelOutput,
    ModelUsage,
    modelapi,
)
from inspect_ai.tool import ToolChoice, ToolInfo

from grace.errors import UserInputError
from grace.records import Message, Response

STOPS = {"stop": "stop", "length": "max_tokens"}
UNUSED = ("top_k", "frequency_penalty", "presence_penalty", "logit_bias", "response_schema")


@modelapi(name="grace")  # type: ignore[untyped-decorator]
def grace() -> type[ModelAPI]:
    """Return the provider behind `grace/PATH`."""
    return GraceAPI


class GraceAPI(ModelAPI):  # type: ignore[misc]
    """A model in this process; requests take turns."""

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig = GenerateConfig(),  # noqa: B008 (as in Inspect)
        ask: bool = False,
        **model_args: Any,
    ) -> None:
        from grace.model import load

        super().__init__(model_name, base_url, api_key, [], config)
        self._ask = ask
        self._model = load(model_name, **model_args)
        self._turn = threading.Lock()

    async def generate(
        self,
        input: list[ChatMessage],
        tools: list[ToolInfo],
        tool_choice: ToolChoice,
        config: GenerateConfig,
    ) -> ModelOutput:
        """Return the answers to a conversation, with their confidences as metadata."""
        if tools:
            raise UserInputError("grace models call no tools; use a task without tools")
        if unused := [name for name in UNUSED if getattr(config, name)]:
            raise UserInputError(f"grace models take no {unused[0]}; leave it out")
        chat = self._chat(input)
        return await anyio.to_thread.run_sync(functools.partial(self._answer, chat, config))

    def max_connections(self) -> int:
        """Return the number of requests at a time: the model takes one."""
        return 1

    def _chat(self, turns: Sequence[ChatMessage]) -> list[Message]:
        parts = [part for turn in turns for part in turn.content if not isinstance(part, str)]
        if others := {part.type for part in parts} - {"text", "reasoning"}:
            raise UserInputError(
                f"grace models read text only, and a message has {', '.join(sorted(others))}; "
                "use a task without"
            )
        if not self._ask:
            return [Message(role=turn.role, content=turn.text) for turn in turns]
        questions = [turn.text for turn in turns if turn.role == "user"]
        if not questions:
            raise UserInputError("ask=true needs a user turn; add one, or leave ask out")
        return self._model.messages(questions[-1])

    def _answer(self, chat: list[Message], config: GenerateConfig) -> ModelOutput:
        from grace.chat import encode_chat
        from grace.engines import Sampling

        model = self._model
        sampling = Sampling(
            num_samples=config.num_choices or 1,
            temperature=0.0 if config.temperature is None else config.temperature,
            top_p=1.0 if config.top_p is None else config.top_p,
            max_new_tokens=config.max_tokens or model.sample.longest,
            seed=secrets.randbelow(2**32) if config.seed is None else config.seed,
        )
        prompt = encode_chat(model.engine.tokenizer, chat)
        with self._turn:
            ((_, samples),) = model.engine.generate([prompt], sampling)
            samples = [self._cut(prompt, one, config.stop_seqs or ()) for one in samples]
        return self._output(samples, len(prompt), model.is_trained_on(chat))

    def _cut(self, prompt: Sequence[int], sample: Response, stops: Sequence[str]) -> Response:
        """Return a sample up to the first stop string, with the confidence of that text."""
        from grace.chat import encode_text

        text = min((sample.text.partition(stop)[0] for stop in stops), key=len, default=sample.text)
        if text == sample.text:
            return sample
        engine, c = self._model.engine, None
        if text.strip():
            (c,) = engine.confidences([prompt], [encode_text(engine.tokenizer, text)])
        return replace(sample, text=text, finish_reason="stop", confidence=c)

    def _output(self, samples: Sequence[Response], read: int, calibrated: bool) -> ModelOutput:
        written = sum(len(one.token_ids) + (one.finish_reason == "stop") for one in samples)
        confidences = [one.confidence for one in samples]
        return ModelOutput(
            model=self.model_name,
            choices=[
                ChatCompletionChoice(
                    message=ChatMessageAssistant(content=one.text.strip(), model=self.model_name),
                    stop_reason=STOPS[one.finish_reason],
                )
                for one in samples
            ],
            usage=ModelUsage(input_tokens=read, output_tokens=written, total_tokens=read + written),
            metadata={
                "confidence": confidences[0],
                "confidences": confidences,
                "calibrated": calibrated,  # the prompt is that of the training run
            },
        )
