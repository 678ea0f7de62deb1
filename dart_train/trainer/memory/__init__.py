"""Device memory of training: estimated before it begins, and explained when it does not suffice."""
