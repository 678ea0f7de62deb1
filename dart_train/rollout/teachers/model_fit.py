"""Check that a model can judge a student's tokens: ids and screenshot pads must mean the same to both models."""

from pathlib import Path

from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens


def misfit(model: str | Path, tokens: ModelTokens, vision: VisionSpec) -> str:
    """Return why a model cannot judge the tokens of a student with this tokenizer and image processor, or "".

    Raises:
        ConfigurationError: if `model` is not the directory of a model.
    """
    if difference := tokens.difference(ModelTokens.load(model)):
        return (
            f"teacher.options.model: {model} has another tokenizer than the student, whose tokens it is to read: "
            f"{difference}; take a teacher of the same family"
        )
    other = VisionSpec.from_dir(model)
    if (vision.patch_size, vision.merge_size) != (other.patch_size, other.merge_size):
        return (
            f"teacher.options.model: {model} cuts screenshots into patches of {other.patch_size} pixels, merged by "
            f"{other.merge_size}; the student's are {vision.patch_size} and {vision.merge_size}: take a teacher of the "
            "same family"
        )
    return ""
