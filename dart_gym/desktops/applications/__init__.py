"""What runs on a desktop: OSWorld's applications on Debian, the browser with DevTools, the accessibility tree.

Other rooms import `browser`, `devtools`, `accessibility` and `debian_applications`; `accessibility_reader` runs inside
the desktop, on the system's Python.
"""
