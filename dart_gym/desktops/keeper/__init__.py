"""The keeper: a process of its own for each desktop of this machine, between its programs and the server.

Whatever a program of the desktop may stall, shrink, replace or flood (the X server, its framebuffer, logs, the guest's
replies, the browser's first answers) is touched by the keeper alone. Others import `kept_desktop.KeptDesktop`;
`fork_server` starts keepers, `keeper_process` is one.
"""
