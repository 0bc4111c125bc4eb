"""Optional packages that a test hides, as if they were not installed."""

import builtins

import pytest


def without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise ImportError when matplotlib or one of its modules is imported."""
    real_import = builtins.__import__

    def import_all_but_matplotlib(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", import_all_but_matplotlib)
