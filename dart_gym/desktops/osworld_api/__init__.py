"""OSWorld's in-VM HTTP API, served for a desktop of this package, so that OSWorld's own code can drive it.

`api_server` and `api_address` are the face; the routes and their helpers are parts.
"""
