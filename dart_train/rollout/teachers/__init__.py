"""Teachers: what the policy learns from in states that it came to itself, where its own rewards say nothing."""
