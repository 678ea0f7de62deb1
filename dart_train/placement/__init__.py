"""Which GPUs and cores of a machine go to which processes of a run: what is here, and a split of it."""
