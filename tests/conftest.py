"""For all tests: thread counts set before anything imports torch; the same hypothesis examples in every run."""

import os

from hypothesis import settings

from gateway.threads import set_thread_counts

set_thread_counts(None)
settings.register_profile("same", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("explore", deadline=None)
# TIDEGATE_EXPLORE=1 draws new examples
settings.load_profile("explore" if os.environ.get("TIDEGATE_EXPLORE") else "same")
