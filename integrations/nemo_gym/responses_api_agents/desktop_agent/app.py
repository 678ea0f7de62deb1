"""What NeMo Gym starts for a `desktop_agent`."""

from dart_gym_nemo import DesktopAgent

if __name__ == "__main__":
    DesktopAgent.run_webserver()
