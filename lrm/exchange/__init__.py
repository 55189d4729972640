"""Finished runs as transformers folders, and back; norms of any checkpoint."""
