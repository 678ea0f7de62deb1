"""Ways to deal out rollouts that wait: task-wise and batch-wise, which DART is compared with."""
