"""Facts about a model that need no torch: its tokens, image patches and coordinates; and tiny models for tests."""
