"""OSWorld's set-up steps (`config` and `evaluator.postconfig`) on a desktop, and the cache of the files they need.

`setup_runner.run_steps` and `download_cache.DownloadCache` are the face; one module per kind of step.
"""
