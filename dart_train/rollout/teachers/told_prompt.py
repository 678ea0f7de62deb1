"""A student's prompt with an addition for a teacher, at the end of the newest message. Pure."""

from dart_agent.engines.base.engine import Prompt
from dart_agent.models.model_tokens import ModelTokens

LONGEST_TOLD = 8000
"""Longest addition in characters; the rest is cut off."""


def told_prompt(prompt: Prompt, told: str, tokens: ModelTokens) -> Prompt:
    """Return the prompt with a text at the end of its last complete message; the answer begins the one after it.

    The text is encoded as plain text, so nothing in it can end the message.
    """
    ids = prompt.token_ids
    ends = [place for place, token in enumerate(ids) if token == tokens.im_end_id]
    if not told or not ends:
        return prompt
    more = tokens.encode(f"\n{told[:LONGEST_TOLD]}")
    return Prompt((*ids[: ends[-1]], *more, *ids[ends[-1] :]), prompt.images)
