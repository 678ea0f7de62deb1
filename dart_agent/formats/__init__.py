"""Action formats: how models of each family write actions."""
