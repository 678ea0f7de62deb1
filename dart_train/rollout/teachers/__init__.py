"""Teachers: help for the policy in states that it reached itself, where its own rewards say nothing."""
