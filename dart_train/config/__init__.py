"""The configuration of a run: one typed tree, read from YAML with dotted overrides."""
