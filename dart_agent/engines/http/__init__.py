"""Common parts of engines behind HTTP: requests with typed errors, chat messages, OpenAI-compatible servers."""
