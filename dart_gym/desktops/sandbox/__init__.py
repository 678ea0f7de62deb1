"""The little machine of one embedded desktop: a bubblewrap sandbox, the program inside it, and its runtime directory.

Others import `sandbox.Sandbox`. `guest` runs inside, `guest_client` talks to it from the host, `osworld_profile` lays
out the machine that OSWorld's tasks expect.
"""
