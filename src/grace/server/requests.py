"""The bodies of requests: OpenAI's fields, and `grace` for test-time scaling.

An unsupported field that would change the answer is refused unless it has its neutral value, so no
answer silently differs from what the client wanted. `null` means the default. The docstrings of the
models are their descriptions in the OpenAPI document.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from grace import plugins
from grace.answers import LETTERS
from grace.engines.structured import OBJECT, Form, check_schema
from grace.errors import UserInputError
from grace.records import Message
from grace.server.errors import ApiError

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("auto",),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
}
HARMLESS = (
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "parallel_tool_calls",
    "verbosity",
)

Text = Annotated[str, Field(max_length=2**20)]
StopText = Annotated[str, Field(min_length=1, max_length=256)]
Ids = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, max_length=2**20)]
Probability = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class Strict(BaseModel):
    """A body whose unknown fields are refused by name, unless they change nothing."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())
    neutral: ClassVar[Mapping[str, Sequence[Any]]] = NEUTRAL  # values that ask for nothing

    @model_validator(mode="before")
    @classmethod
    def _without_defaults(cls, data: Any) -> Any:
        """Drop fields that are null, neutral or harmless; pydantic refuses the rest by name."""
        if not isinstance(data, dict):
            return data
        return {
            key: value
            for key, value in data.items()
            if value is not None
            and key not in HARMLESS
            and not any(value == nothing for nothing in cls.neutral.get(key, ()))
        }


class TextPart(BaseModel):
    """A part of a turn; only text is supported."""

    type: Literal["text", "input_text", "output_text"]
    text: Text


class Turn(BaseModel):
    """One turn of a conversation; `developer` counts as `system`."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | Annotated[list[TextPart], Field(fail_fast=True)]

    def plain(self) -> Message:
        """Return the turn with its content as one text."""
        parts = self.content
        text = parts if isinstance(parts, str) else "".join(part.text for part in parts)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class ChatMessage(Turn):
    """A turn of a chat, which may be a function's call or its result."""

    @model_validator(mode="before")
    @classmethod
    def _text_only(cls, data: Any) -> Any:
        """Turn a function's call and its result into text turns; no content is a refusal."""
        if not isinstance(data, dict):
            return data
        if data.get("role") == "tool":
            return {"role": "user", "content": data.get("content")}
        match data:
            case {"tool_calls": [{"function": {"arguments": str(written)}}]} if not data.get(
                "content"
            ):
                return {"role": "assistant", "content": written}
        if data.get("role") == "function" or data.get("tool_calls") or data.get("function_call"):
            raise ValueError(
                "this turn calls several functions, or one beside text, or is a result in an old "
                "form; write into a user turn what was said"
            )
        if data.get("role") == "assistant" and data.get("content") is None:
            return data | {"content": data.get("refusal") or ""}
        return data


Schema = Annotated[dict[str, Any], AfterValidator(check_schema)]


class JsonSchema(BaseModel):
    """A schema that the answer follows; it is followed strictly, whatever `strict` says."""

    model_config = ConfigDict(extra="allow")

    followed: Schema = Field(alias="schema")


class SchemaFormat(BaseModel):
    """The answer is JSON that follows a schema."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


class ObjectFormat(BaseModel):
    """The answer is a JSON object; a `schema` beside it counts as that of `json_schema`."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["json_object"]


def _in_openais_form(format: Any) -> Any:
    """Write a schema beside `json_object`, as other servers take it, as OpenAI does."""
    match format:
        case {"type": "json_object", "schema": schema, **rest} if not rest:
            return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    return format


class Function(BaseModel):
    """A function, whose arguments the answer is; the model reads no description of it."""

    model_config = ConfigDict(extra="allow")

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
    parameters: Schema = OBJECT


class Tool(BaseModel):
    """A tool that is a function."""

    model_config = ConfigDict(extra="allow")

    type: Literal["function"]
    function: Function


class StreamOptions(BaseModel):
    """Options of a stream."""

    include_usage: bool | None = None


class GraceOptions(Strict):
    """Test-time scaling: the message is a question, asked with the prompt of the training run.

    With a budget of 1 it is asked once, greedily unless a temperature is set. With the prompt `raw`
    the messages are sent to the model unchanged, and no other option is allowed.
    """

    prompt: Literal["raw"] | None = None
    strategy: Annotated[str | None, Field(max_length=64, examples=["es"])] = None
    budget: Annotated[int | None, Field(ge=1, examples=[8])] = None
    threshold: Probability | None = None
    parallel: Annotated[int, Field(ge=1)] = 1
    choices: Annotated[list[Text], Field(max_length=len(LETTERS))] = []

    @model_validator(mode="after")
    def _raw_excludes_others(self) -> GraceOptions:
        others = sorted(self.model_fields_set - {"prompt"})
        if self.prompt == "raw" and others:
            raise ValueError(f"the prompt raw takes no other option; leave out {others[0]}")
        return self

    @field_validator("strategy")
    @classmethod
    def _built_in(cls, name: str | None) -> str | None:
        """Refuse `module:NAME`, without offering it: a request must not import anything."""
        plain = (name or "es").partition(",")[0].lower()
        rule = plain.rpartition("-")[2]
        if rule not in plugins.find("grace.strategies"):
            raise ValueError(f"{name!r} is no built-in strategy; use es, grace-sc, asc, esc or sc")
        return name


class _Sampled(Strict):
    model: Annotated[str, Field(max_length=256)]
    n: Annotated[int, Field(ge=1)] = 1
    temperature: Annotated[float | None, Field(ge=0, le=2, allow_inf_nan=False)] = None
    top_p: Annotated[float | None, Field(gt=0, le=1, allow_inf_nan=False)] = None
    max_tokens: Annotated[int | None, Field(ge=1)] = None
    stop: StopText | Annotated[list[StopText], Field(max_length=4)] = []
    seed: Annotated[int | None, Field(ge=-(2**63), lt=2**63)] = None
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()

    @property
    def stops(self) -> list[str]:
        """The stop strings as a list."""
        return [self.stop] if isinstance(self.stop, str) else self.stop

    @property
    def longest(self) -> int | None:
        """The maximum number of tokens of an answer, None for the default."""
        return self.max_tokens


class ChatRequest(_Sampled):
    """The body of `/v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Field(fail_fast=True, min_length=1, max_length=1024)]
    max_completion_tokens: Annotated[int | None, Field(ge=1)] = None
    logprobs: bool = False
    top_logprobs: Annotated[int | None, Field(ge=0, le=20)] = None
    grace: GraceOptions | None = None
    response_format: Annotated[
        SchemaFormat | ObjectFormat | None,
        Field(discriminator="type"),
        BeforeValidator(_in_openais_form),
    ] = None
    tools: Annotated[list[Tool], Field(max_length=128)] = []
    tool_choice: Literal["none", "required"] | Tool | None = None  # one by its name

    @property
    def form(self) -> Form | None:
        """The form that the answer must have, if any."""
        tools, chosen, format = self.tools, self.tool_choice, self.response_format
        if chosen == "none":
            tools = []
        elif chosen is not None and not tools:
            raise _refused("tool_choice", "there is none of tools; send the tool as well")
        elif isinstance(chosen, Tool):
            tools = [tool for tool in tools if tool.function.name == chosen.function.name]
        if self.tools and chosen != "none" and (chosen is None or len(tools) != 1):
            raise _refused(
                "tools",
                "the model does not choose among tools; name one of them in tool_choice, or send "
                "a single one with tool_choice required",
            )
        if not tools and format is None:
            return None
        if tools and format is not None:
            raise _refused("response_format", "an answer has one form; leave this or tools out")
        if self.grace is not None and self.grace.prompt != "raw":
            raise _refused("grace", "an answer with a form takes no option but the prompt raw")
        if isinstance(format, SchemaFormat):
            return Form(format.json_schema.followed)
        return Form(tools[0].function.parameters, tools[0].function.name) if tools else Form(OBJECT)

    @field_validator("top_logprobs")
    @classmethod
    def _needs_logprobs(cls, count: int | None, info: ValidationInfo) -> int | None:
        if count and not info.data.get("logprobs"):
            raise ValueError("without logprobs no tokens are listed; set logprobs to true")
        return count

    @property
    def longest(self) -> int | None:
        """The maximum number of tokens of an answer, None for the default."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def top(self) -> int | None:
        """The number of most probable tokens to list per step; None: list no tokens."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def chat(self) -> list[Message]:
        """The conversation."""
        return [message.plain() for message in self.messages]

    @property
    def question(self) -> str:
        """The only user turn, which `grace` options need."""
        last = self.messages[-1].role
        if len(self.messages) > 1 or last != "user":
            raise UserInputError(
                f"`grace` needs one user turn, but messages has {len(self.messages)} turns and "
                f"ends with {last!r}; send one user turn, or leave `grace` out"
            )
        return self.chat[0]["content"]


class CompletionRequest(_Sampled):
    """The body of `/v1/completions`: one prompt or several, each a text or token ids.

    Special tokens in a text are characters. With `echo` an answer begins with its prompt.
    """

    prompt: Text | Ids | Annotated[list[Text] | list[Ids], Field(min_length=1, max_length=256)]
    max_tokens: Annotated[int | None, Field(ge=0)] = None
    echo: bool = False
    logprobs: Annotated[int | None, Field(ge=0, le=20)] = None

    @property
    def top(self) -> int | None:
        """The number of most probable tokens to list per step; None: list no tokens."""
        return self.logprobs

    @property
    def prompts(self) -> Sequence[str | list[int]]:
        """The prompts as a list."""
        if isinstance(self.prompt, str) or isinstance(self.prompt[0], int):
            return [self.prompt]
        return cast(list[str | list[int]], self.prompt)

    @model_validator(mode="after")
    def _asks_for_something(self) -> CompletionRequest:
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("max_tokens is 0, which needs echo; ask for at least one token")
        return self


def _refused(param: str, message: str) -> ApiError:
    return ApiError(400, f"{param}: {message}", param=param)


class ScoreItem(Strict):
    """A response, and one of `question` (with its `choices`), `prompt` and `messages`.

    `question` gets the prompt of the training run; `prompt` is a user turn, taken unchanged.
    """

    response: Text
    question: Text | None = None
    choices: Annotated[list[Text], Field(max_length=len(LETTERS))] = []
    prompt: Text | None = None
    messages: (
        Annotated[list[ChatMessage], Field(fail_fast=True, min_length=1, max_length=1024)] | None
    ) = None

    @model_validator(mode="after")
    def _has_one_prompt(self) -> ScoreItem:
        named = [name for name in ("question", "prompt", "messages") if getattr(self, name)]
        if len(named) != 1:
            raise ValueError(f"give exactly one of question, prompt and messages, not {named}")
        if self.choices and not self.question:
            raise ValueError("choices belong to a question; write them into the prompt")
        return self

    def chat(self, model: Any) -> list[Message]:
        """Return the conversation that the response answers."""
        if self.question:
            return list(model.messages(self.question, self.choices))
        if self.messages:
            return [message.plain() for message in self.messages]
        return [{"role": "user", "content": self.prompt or ""}]


class ScoreRequest(Strict):
    """The body of `/v1/score`."""

    model: Annotated[str, Field(max_length=256)]
    input: Annotated[list[ScoreItem], Field(fail_fast=True, min_length=1)]
