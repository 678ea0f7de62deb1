"""OSWorld's set-up steps (`config` and `evaluator.postconfig`) on a desktop, and the cache of the files they need.

Others import `setup_runner.run_steps` and `download_cache.DownloadCache`; one module per kind of step.
"""
