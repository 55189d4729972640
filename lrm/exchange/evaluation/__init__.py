"""Models are evaluated by EleutherAI's harness: on an offline suite, or on its own tasks.

``lrm evaluate RUN`` evaluates any finished run or exported folder.
"""
