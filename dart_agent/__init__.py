"""Policies for GUI environments: model text <-> typed actions, prompts, engines. Imports dart_gym only."""
