"""Policies of hosted models with computer use, and the action formats of their APIs: Anthropic, OpenAI, Google."""
