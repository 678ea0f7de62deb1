"""What is known of a model without torch: its tokens, image patches and coordinates; and tiny models for tests."""
