"""The benchmark's other side, compiled: ``make test-models``.

A layer of transformers takes more than a minute to compile, so it is no part of ``make test``.
"""

import pytest
from test_bench import assert_the_peer_follows


@pytest.mark.compiles
def test_the_compiled_peer_follows_schedule_groups_and_clipping(settings, smoke_runs):
    assert_the_peer_follows(settings, smoke_runs, "plain")
