"""Models are evaluated by EleutherAI's harness: on an offline suite, or on its own tasks.

``python -m lrm.exchange.evaluation RUN`` evaluates any finished run or exported folder.
"""
