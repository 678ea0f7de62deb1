"""OSWorld's in-VM HTTP API, served for a desktop of this package, so that OSWorld's own code can drive it.

Others import `api_server` and `api_address`; the routes and their helpers are parts.
"""
