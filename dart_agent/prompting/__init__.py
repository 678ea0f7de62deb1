"""The history of an episode -> the prompt of its next step."""
