"""Which rollout is played next: pure decisions about tasks, groups and batches."""
