"""Messages: a prompt of token ids written as the chat messages that render to it, for servers that take only those.

This is the way back from `conversation`: the ids are cut at the tokens of the chat layout and decoded. A server
tokenises the text again, so the ids it uses can differ: callers that need exact ids compare what the server reports.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from dart_agent.engines.base.engine import Prompt, RequestRefused
from dart_agent.models.model_tokens import ModelTokens


def chat_messages(prompt: Prompt, tokens: ModelTokens, urls: Sequence[str], *, begun: int = 0) -> list[dict[str, Any]]:
    """The messages of a prompt, as in OpenAI's chat completions, with `urls` for its images.

    Args:
        prompt: in the chat layout.
        tokens: of its ids.
        urls: of its images.
        begun: number of ids at its end that belong to a response which is to be continued: that becomes the last
            message, and a part of what opens responses with it.

    Returns:
        `{"role", "content"}` each; the content is a string, or a list of parts where there are images.

    Raises:
        RequestRefused: the ids do not follow the layout.
    """
    ids, images = list(prompt.token_ids), iter(urls)
    starts = [index for index, token_id in enumerate(ids) if token_id == tokens.im_start_id]
    if not starts or starts[0] != 0 or not tokens.decode(ids[starts[-1] :]).startswith("assistant\n"):
        raise RequestRefused(
            "the prompt is not in the chat layout (messages, then the opening of the response); this server takes "
            "nothing else: serve the model with vLLM's /inference/v1/generate"
        )
    messages = []
    for start, end in zip(starts, starts[1:], strict=False):
        body = ids[start + 1 : end]
        if tokens.im_end_id not in body:
            raise RequestRefused("a message of the prompt has no end: it is not in the chat layout")
        parts = _parts(body[: len(body) - body[::-1].index(tokens.im_end_id) - 1], tokens)
        role, newline, rest = str(parts[0]).partition("\n")
        if not newline:
            raise RequestRefused("a message of the prompt has no role: it is not in the chat layout")
        content = [_part(part, images) for part in ([rest] if rest else []) + parts[1:]]
        plain = [part["text"] for part in content if part["type"] == "text"]
        messages.append({"role": role, "content": content if len(plain) < len(content) else "".join(plain)})
    if begun:
        written = tokens.decode(ids[starts[-1] + 1 :], special=True)
        messages.append({"role": "assistant", "content": written.removeprefix("assistant\n")})
    return messages


def _parts(ids: Sequence[int], tokens: ModelTokens) -> list[str | None]:
    """Texts, and None for every image, in order; the first is a text."""
    parts: list[str | None] = []
    text: list[int] = []
    for token_id in ids:
        if token_id == tokens.vision_start_id:
            parts += [tokens.decode(text, special=True), None]
            text = []
        elif token_id not in (tokens.image_pad_id, tokens.vision_end_id):
            text.append(token_id)
    last = tokens.decode(text, special=True)
    first, rest = (parts[:1] or [last]), (parts[1:] + [last] if parts else [])
    return first + [part for part in rest if part != ""]


def _part(part: str | None, images: Iterator[str]) -> dict[str, Any]:
    if part is not None:
        return {"type": "text", "text": part}
    url = next(images, None)
    if url is None:
        raise RequestRefused("the prompt names more images than it has")
    return {"type": "image_url", "image_url": {"url": url}}
