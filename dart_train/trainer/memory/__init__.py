"""What training takes of a device's memory, worked out before it begins, and told when it does not suffice."""
