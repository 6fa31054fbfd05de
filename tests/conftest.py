"""For all tests: thread counts set before anything imports torch; the same hypothesis examples in every CI run."""

import os

from hypothesis import settings

from gateway.threads import set_thread_counts

set_thread_counts(None)
settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("dev", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "dev")
