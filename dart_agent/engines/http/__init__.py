"""What engines behind HTTP share: requests with typed errors, prompts as chat messages; OpenAI-compatible servers."""
