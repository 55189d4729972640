"""From runs on disk to tables, claims and figures. Nothing here imports torch or trains."""
