from flower_client import app

__all__ = ["app"]
